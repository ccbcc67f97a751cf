"""Validates a request's tools, given in OpenAI's format, for the providers to convert to their own format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quintain.contracts.invoke import InvokeSettings, JsonObject
from quintain.contracts.message import describe_validation_error
from quintain_worker.providers.conversation import refusal

#: The tool choices that name no function.
_CHOICE_MODES = ("none", "auto", "required")


class FunctionTool(BaseModel):
    """A function that a model may call. ``parameters`` is a JSON schema; None means no parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    @property
    def parameters_schema(self) -> JsonObject:
        """The JSON schema of the parameters, also where there are none."""
        return {"type": "object", "properties": {}} if self.parameters is None else self.parameters


class _ToolDefinition(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["function"]
    function: FunctionTool


class _FunctionName(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str


class _FunctionChoice(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["function"]
    function: _FunctionName


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """The tools that a model may call, and the tool choice.

    ``raw_tools`` and ``raw_choice`` are as in the request. ``choice_mode`` is none, auto, required or None;
    ``required_function`` is the function that must be called, if one is named. ``parallel`` is whether one answer may
    call several.
    """

    functions: Sequence[FunctionTool]
    raw_tools: Sequence[JsonObject]
    choice_mode: str | None = None
    required_function: str | None = None
    raw_choice: str | JsonObject | None = None
    parallel: bool | None = None


def tools_of(settings: InvokeSettings) -> ToolSettings | None:
    """Validate the tools of these settings; None where there are none.

    Raises `ProviderFailure`, naming the field, for tools that no provider supports.
    """
    if settings.tools is None:
        if settings.tool_choice is not None and settings.tool_choice != "none":
            raise refusal("settings.toolChoice", "there are no settings.tools to choose from; leave it out")
        return None
    if not settings.tools:
        raise refusal("settings.tools", "it is empty; leave it out")
    functions = [_read_function(index, raw_tool) for index, raw_tool in enumerate(settings.tools)]
    choice_mode, required_function = _read_choice(settings.tool_choice, functions)
    return ToolSettings(
        functions=functions,
        raw_tools=settings.tools,
        choice_mode=choice_mode,
        required_function=required_function,
        raw_choice=settings.tool_choice,
        parallel=settings.parallel_tool_calls,
    )


def _read_function(index: int, raw_tool: JsonObject) -> FunctionTool:
    try:
        return _ToolDefinition.model_validate(raw_tool).function
    except ValidationError as error:
        raise refusal(f"settings.tools[{index}]", describe_validation_error(error)) from None


def _read_choice(
    raw_choice: str | JsonObject | None, functions: Sequence[FunctionTool]
) -> tuple[str | None, str | None]:
    if raw_choice is None or raw_choice in _CHOICE_MODES:
        return (None if raw_choice is None else str(raw_choice)), None
    try:
        function_name = _FunctionChoice.model_validate(raw_choice).function.name
    except ValidationError:
        hint = 'write none, auto, required, or {"type": "function", "function": {"name": …}}'
        raise refusal("settings.toolChoice", hint) from None
    if function_name not in {function.name for function in functions}:
        raise refusal("settings.toolChoice", "it names none of settings.tools")
    return None, function_name

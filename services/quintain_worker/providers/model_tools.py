"""The tools of a request, as OpenAI writes them: read and judged once, for each provider to write in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quintain.contracts.invoke import InvokeSettings, JsonObject
from quintain.contracts.message import explain
from quintain_worker.providers.conversation import refusal

#: What a choice may be where it names no function.
_WORDS = ("none", "auto", "required")


class Function(BaseModel):
    """A function that a model may call. ``parameters`` is a JSON schema; without one it takes none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    @property
    def schema_of_parameters(self) -> JsonObject:
        """The schema of its parameters, where there are none too."""
        return {"type": "object", "properties": {}} if self.parameters is None else self.parameters


class _Tool(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["function"]
    function: Function


class _Named(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str


class _Choice(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["function"]
    function: _Named


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a model may call, and must. ``written`` and ``choice_written`` are the request's own words;
    ``choice`` is one of none, auto and required, or None; ``named`` is the one function that must be called.
    """

    functions: Sequence[Function]
    written: Sequence[JsonObject]
    choice: str | None = None
    named: str | None = None
    choice_written: str | JsonObject | None = None


def tools_of(settings: InvokeSettings) -> Tools | None:
    """The tools of these settings. Raises `ProviderFailure`, naming the field, for what no provider takes."""
    if settings.tools is None:
        if settings.tool_choice is not None:
            raise refusal("settings.toolChoice", "there are no settings.tools to choose from; leave it out")
        return None
    if not settings.tools:
        raise refusal("settings.tools", "it is empty; leave it out")
    functions = [_function(index, written) for index, written in enumerate(settings.tools)]
    choice, named = _choice(settings.tool_choice, functions)
    return Tools(
        functions=functions,
        written=settings.tools,
        choice=choice,
        named=named,
        choice_written=settings.tool_choice,
    )


def _function(index: int, written: JsonObject) -> Function:
    try:
        return _Tool.model_validate(written).function
    except ValidationError as error:
        raise refusal(f"settings.tools[{index}]", explain(error)) from None


def _choice(written: str | JsonObject | None, functions: Sequence[Function]) -> tuple[str | None, str | None]:
    if written is None or written in _WORDS:
        return (None if written is None else str(written)), None
    try:
        named = _Choice.model_validate(written).function.name
    except ValidationError:
        mend = 'write none, auto, required, or {"type": "function", "function": {"name": …}}'
        raise refusal("settings.toolChoice", mend) from None
    if named not in {function.name for function in functions}:
        raise refusal("settings.toolChoice", "it names none of settings.tools")
    return None, named

"""Reads the steps of an agent: OpenTelemetry's names for GenAI, or OpenAI's messages with tool calls. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from quintain.apis.answer_json import parse_json
from quintain.apis.translation import text_of
from quintain.contracts.agents import AgentStep
from quintain.contracts.message import describe_validation_error

#: What a step has that is written in OpenTelemetry's names.
_OPERATION = "gen_ai.operation.name"


def read_steps(found: object) -> tuple[AgentStep, ...]:
    """Return the steps of a list. Raises `ValueError`, which names the item that is no step."""
    if not isinstance(found, list):
        raise ValueError("not a list of steps")  # noqa: TRY004 -- a wrong value
    tools: dict[str, dict[str, Any]] = {}
    steps: list[AgentStep] = []
    for index, item in enumerate(found):
        try:
            fields = list(_steps_of(item, tools))
            steps += [AgentStep.model_validate(each) for each in fields]
        except ValidationError as error:
            raise ValueError(f"item {index} is no step: {describe_validation_error(error)}") from None
        except ValueError as error:
            raise ValueError(f"item {index} is no step: {error}") from None
    return tuple(steps)


def _steps_of(item: object, tools: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the steps that one item is; ``tools`` are the calls that were asked for so far, by their id."""
    if not isinstance(item, dict):
        raise ValueError("not an object")  # noqa: TRY004 -- a wrong value
    role = item.get("role")
    if _OPERATION in item:
        yield item
    elif role == "assistant":
        asked = item.get("tool_calls") or []
        if not isinstance(asked, list):
            raise ValueError("its tool_calls are no list")
        calls = [tool_call_part(call) for call in asked]
        tools.update({call["id"]: call for call in calls})
        texts = [{"type": "text", "content": text}] if (text := text_of(item.get("content"))) else []
        yield {_OPERATION: "chat", "gen_ai.output.messages": [{"role": "assistant", "parts": [*texts, *calls]}]}
    elif role == "tool":
        call_id = str(item.get("tool_call_id") or "")
        call = tools.get(call_id, {})
        yield {
            _OPERATION: "execute_tool",
            "gen_ai.tool.name": call.get("name") or item.get("name"),
            "gen_ai.tool.call.id": call_id or None,
            "gen_ai.tool.call.arguments": call.get("arguments"),
            "gen_ai.tool.call.result": item.get("content"),
        }
    elif role not in ("user", "system", "developer"):
        raise ValueError(f"it has neither {_OPERATION} nor the role of a message")


def tool_call_part(call: object) -> dict[str, Any]:
    """Return the part of a model's message that a tool call of OpenAI's chat API is. Raises `ValueError`."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise ValueError("a tool call without function")  # noqa: TRY004 -- a wrong value
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError:
            # A model's text, which may be no JSON.
            arguments = str(arguments)
    return {"type": "tool_call", "id": str(call.get("id") or ""), "name": function.get("name"), "arguments": arguments}

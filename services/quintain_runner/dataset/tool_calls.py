"""Converts tool calls in messages between the formats of OpenAI, AgentV and Quintain. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import JsonValue

from quintain.contracts.invoke import ChatMessage, OutputMessage, ToolCall

_TOOL_CALL_FIELDS = ("tool_calls", "toolCalls", "tool_call_id", "toolCallId")


def read_message(row: object) -> object:
    """A message of a dataset's row: calls as OpenAI writes them, or as we do, are part of what is asked.

    Any others are not: AgentV's name no call that a later turn could answer, and no provider takes them.
    """
    if not isinstance(row, Mapping):
        return row
    message = {key: value for key, value in row.items() if key not in _TOOL_CALL_FIELDS}
    tool_fields = {key: row[key] for key in _TOOL_CALL_FIELDS if row.get(key) is not None}
    calls = _parse_tool_calls(tool_fields.get("tool_calls", tool_fields.get("toolCalls")))
    if calls:
        message["toolCalls"] = calls
        # OpenAI's turn that only calls says null.
        message["content"] = "" if message.get("content") is None else message["content"]
    call_id = tool_fields.get("tool_call_id", tool_fields.get("toolCallId"))
    return {**message, "toolCallId": call_id} if isinstance(call_id, str) else message


def _parse_tool_calls(raw: object) -> list[dict[str, str]] | None:
    """The calls, where every one of them can be read."""
    if not isinstance(raw, list):
        return None
    calls = [_parse_tool_call(one) for one in raw]
    return [call for call in calls if call is not None] if None not in calls else None


def _parse_tool_call(raw: object) -> dict[str, str] | None:
    if not isinstance(raw, Mapping):
        return None
    function = raw.get("function", raw)
    if not isinstance(function, Mapping):
        return None
    call = {"id": raw.get("id"), "name": function.get("name"), "arguments": function.get("arguments")}
    text_fields = {key: value for key, value in call.items() if isinstance(value, str)}
    return text_fields if text_fields.keys() == call.keys() else None


def write_message(message: ChatMessage | OutputMessage) -> dict[str, JsonValue]:
    """A message as a grader reads it: AgentV's words for calls, and nothing that is null."""
    written: dict[str, JsonValue] = {"role": message.role, "content": message.content}  # type: ignore[dict-item]
    if message.tool_calls:
        written["tool_calls"] = [
            {"tool": call.name, "input": _tool_input(call), "id": call.id} for call in message.tool_calls
        ]
    if isinstance(message, ChatMessage) and message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    return written


def _tool_input(call: ToolCall) -> JsonValue:
    """A call's arguments as the value they are, or as the model's text where it wrote no JSON."""
    try:
        value: JsonValue = json.loads(call.arguments)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return call.arguments
    return value

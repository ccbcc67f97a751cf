"""Converts tool calls in messages between the formats of OpenAI, AgentV and Quintain. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import JsonValue

from quintain.contracts.invoke import ChatMessage, OutputMessage, ToolCall

_TOOL_CALL_FIELDS = ("tool_calls", "toolCalls", "tool_call_id", "toolCallId")


def read_message(row: object) -> object:
    """Convert a message of a dataset row to Quintain's form, with tool calls in OpenAI's or Quintain's format.

    Tool calls in other formats are dropped: AgentV's have no call id that a later message could refer to, so no
    provider accepts them.
    """
    if not isinstance(row, Mapping):
        return row
    message = {key: value for key, value in row.items() if key not in _TOOL_CALL_FIELDS}
    tool_fields = {key: row[key] for key in _TOOL_CALL_FIELDS if row.get(key) is not None}
    calls = _parse_tool_calls(tool_fields.get("tool_calls", tool_fields.get("toolCalls")))
    if calls:
        message["toolCalls"] = calls
        # OpenAI's messages with tool calls only have null as their content.
        message["content"] = "" if message.get("content") is None else message["content"]
    call_id = tool_fields.get("tool_call_id", tool_fields.get("toolCallId"))
    return {**message, "toolCallId": call_id} if isinstance(call_id, str) else message


def _parse_tool_calls(raw: object) -> list[dict[str, str]] | None:
    """The tool calls of a message, or None if any of them cannot be converted."""
    if not isinstance(raw, list):
        return None
    calls = [_parse_tool_call(item) for item in raw]
    return [call for call in calls if call is not None] if None not in calls else None


def _parse_tool_call(raw: object) -> dict[str, str] | None:
    """The id, name and arguments of a tool call, or None if it has no text for each of them."""
    if not isinstance(raw, Mapping):
        return None
    function = raw.get("function", raw)
    if not isinstance(function, Mapping):
        return None
    call = {"id": raw.get("id"), "name": function.get("name"), "arguments": function.get("arguments")}
    text_fields = {key: value for key, value in call.items() if isinstance(value, str)}
    return text_fields if text_fields.keys() == call.keys() else None


def write_message(message: ChatMessage | OutputMessage) -> dict[str, JsonValue]:
    """A message in the form that graders read: tool calls in AgentV's format, and no null values."""
    written: dict[str, JsonValue] = {"role": message.role, "content": message.content}  # type: ignore[dict-item]
    if message.tool_calls:
        written["tool_calls"] = [
            {"tool": call.name, "input": _tool_input(call), "id": call.id} for call in message.tool_calls
        ]
    if isinstance(message, ChatMessage) and message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    return written


def _tool_input(call: ToolCall) -> JsonValue:
    """The arguments of a tool call, parsed as JSON; the text itself if it is not valid JSON."""
    try:
        value: JsonValue = json.loads(call.arguments)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return call.arguments
    return value

"""Converts between Anthropic's messages API and Quintain's messages. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, JsonObject, Result
from quintain.errors import Fault
from quintain_gateway.apis.anthropic.blocks import parse_blocks, parse_message, unknown_message_fields
from quintain_gateway.apis.anthropic.schemas import (
    CACHE_FIELDS,
    AnthropicMessageRequest,
    AnthropicTool,
    AnthropicToolChoice,
)
from quintain_gateway.apis.openai.wire import tool_calls_of, write_cost, write_ignored
from quintain_gateway.http.api_errors import CONTENT_FILTER, CONTEXT_LENGTH_EXCEEDED, api_error_of
from quintain_gateway.http.schemas import InvalidField, validate_as
from quintain_gateway.http.settings import parse_settings

JsonDict = dict[str, Any]

#: OpenAI's tool choices by Anthropic's.
TOOL_CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}

#: Anthropic's stop reasons by those of providers; clients accept only these. All others become ``end_turn``.
STOP_REASONS: Mapping[str, str] = {
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "stop_sequence": "stop_sequence",
    "content_filter": "refusal",
    "refusal": "refusal",
}

#: Anthropic's error types by HTTP status.
ERROR_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

#: Anthropic's sentences for errors that have no type of their own there, by OpenAI's code: its clients look for them.
ERROR_PHRASES: Mapping[str, str] = {
    CONTEXT_LENGTH_EXCEEDED: "prompt is too long",
    CONTENT_FILTER: "Output blocked by content filtering policy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMessageRequest:
    """A parsed messages request."""

    request: InvokeRequest
    stream: bool


def parse_message_request(value: object) -> ParsedMessageRequest:
    """Parse the JSON value of a messages request. Raises `BadRequest`, which names the field."""
    body = validate_as(AnthropicMessageRequest, value)
    messages = [
        message
        for index, body_message in enumerate(body.messages)
        for message in parse_message(f"messages.{index}", body_message)
    ]
    if body.system:
        messages.insert(0, ChatMessage(role="system", content=parse_blocks("system", body.system)))
    return ParsedMessageRequest(
        request=InvokeRequest(target=body.model, messages=messages, settings=_parse_settings(body)),
        stream=body.stream is True,
    )


def _parse_settings(body: AnthropicMessageRequest) -> InvokeSettings:
    choice, config = body.tool_choice, body.output_config
    values = {
        "stop": body.stop_sequences,
        "tools": [_parse_tool(tool) for tool in body.tools] if body.tools else None,
        "tool_choice": None if choice is None else _parse_tool_choice(choice),
        "parallel_tool_calls": False if choice is not None and choice.disable_parallel_tool_use else None,
        "response_format": _parse_response_format(body),
        "reasoning_effort": None if config is None else config.effort,
    }
    unknown = (
        {name for turn in body.messages for name in unknown_message_fields(turn)}
        | {name for tool in body.tools or [] for name in tool.unknown_fields("tools[].", known=CACHE_FIELDS)}
        | (set() if choice is None else choice.unknown_fields("tool_choice."))
        | (set() if config is None else config.unknown_fields("output_config."))
    )
    return parse_settings(body, values, unknown)


def _parse_response_format(body: AnthropicMessageRequest) -> JsonObject | None:
    output_format = None if body.output_config is None else body.output_config.format
    if output_format is None:
        return None
    # OpenAI's format requires a name for the schema; Anthropic's has none.
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": output_format.json_schema}}


def _parse_tool(tool: AnthropicTool) -> JsonObject:
    function: JsonObject = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _parse_tool_choice(choice: AnthropicToolChoice) -> str | JsonObject:
    if choice.type != "tool":
        return TOOL_CHOICES[choice.type]
    if choice.name is None:
        raise InvalidField("tool_choice.name", "Missing required field: tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def write_message(message_id: str, model: str, result: Result) -> JsonDict:
    """Return a result as a message in Anthropic's format. ``model`` is used if the result names no model."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": result.model or model,
        "content": [
            *thinking_blocks(result),
            *([{"type": "text", "text": result.raw_text}] if result.raw_text else []),
            *tool_use_blocks(result),
        ],
        "stop_reason": stop_reason_of(result),
        "stop_sequence": None,
        "usage": write_usage(result),
        **write_ignored([result]),
    }


def thinking_blocks(result: Result) -> list[JsonDict]:
    """Return the model's reasoning as thinking blocks; another vendor's reasoning has an empty signature."""
    return [
        {"type": "thinking", "thinking": piece.text, "signature": piece.signature or ""}
        if piece.redacted is None
        else {"type": "redacted_thinking", "data": piece.redacted}
        for message in result.output
        for piece in message.reasoning or []
    ]


def tool_use_blocks(result: Result) -> list[JsonDict]:
    """Return the tool calls of a result as content blocks.

    Arguments that are not a JSON object are passed on as text in the field ``arguments``.
    """
    return [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": parse_tool_input(call.arguments)}
        for call in tool_calls_of(result)
    ]


def parse_tool_input(arguments: str) -> object:
    """Return a tool call's arguments as an object; other text is in its field ``arguments``."""
    try:
        parsed = json.loads(arguments or "{}", parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def stop_reason_of(result: Result) -> str:
    """Return Anthropic's stop reason for a result."""
    return "tool_use" if tool_calls_of(result) else STOP_REASONS.get(result.finish_reason or "", "end_turn")


def write_usage(result: Result) -> JsonDict:
    """Return the token usage in Anthropic's format; zero if the target does not report it."""
    usage = result.token_usage
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    cached = usage.cached or 0
    return {
        "input_tokens": max(0, usage.input - cached),
        "output_tokens": usage.output,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        **write_cost([result]),
    }


def write_anthropic_models(targets: Sequence[str]) -> JsonDict:
    """Return Anthropic's list of models for these targets, as a single page."""
    first, last = (targets[0], targets[-1]) if targets else (None, None)
    return {
        "data": [write_anthropic_model(target) for target in targets],
        "has_more": False,
        "first_id": first,
        "last_id": last,
    }


def write_anthropic_model(target: str) -> JsonDict:
    """Return Anthropic's model object for one target."""
    return {"type": "model", "id": target, "display_name": target, "created_at": "1970-01-01T00:00:00Z"}


def write_error(fault: Fault) -> tuple[int, JsonDict, dict[str, str]]:
    """Return a fault in Anthropic's format: the status, the body, and headers that say whether a retry may help."""
    api_error = api_error_of(fault)
    status, message = api_error.status, api_error.message
    phrase = ERROR_PHRASES.get(api_error.code, "")
    error = {
        "type": ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error"),
        "message": message if phrase.lower() in message.lower() else f"{phrase}: {message}",
        "code": api_error.code,
        "charged": fault.charged is not False,
        **({"chargeUnknown": True} if fault.charged is None else {}),
    }
    return status, {"type": "error", "error": error}, api_error.headers

"""Converts between Anthropic's messages and contracts. No I/O.

Fields of a request that a call cannot carry are listed in `ParsedMessageRequest.ignored_fields`.
"""

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
    SILENTLY_IGNORED_FIELDS,
    AnthropicMessageRequest,
    AnthropicTool,
    AnthropicToolChoice,
)
from quintain_gateway.apis.openai.wire import tool_calls_of
from quintain_gateway.http.schemas import InvalidField, validate_as

JsonDict = dict[str, Any]

#: How Anthropic says which tool is to be called → how OpenAI does.
TOOL_CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}

#: Why an answer ended, in Anthropic's words, by what providers say; clients know these few alone.
STOP_REASONS: Mapping[str, str] = {
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "stop_sequence": "stop_sequence",
    "content_filter": "refusal",
    "refusal": "refusal",
}

#: Anthropic's kinds of error, by status.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMessageRequest:
    """One request: what to ask, and how to answer."""

    request: InvokeRequest
    stream: bool
    ignored_fields: frozenset[str]


def parse_message_request(value: object) -> ParsedMessageRequest:
    """A request for a message. Raises `BadRequest`, naming the field."""
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
        ignored_fields=frozenset(
            body.unknown_fields(known=SILENTLY_IGNORED_FIELDS)
            | {name for turn in body.messages for name in unknown_message_fields(turn)}
            | {name for tool in body.tools or [] for name in tool.unknown_fields("tools[].", known=CACHE_FIELDS)}
            | (set() if body.tool_choice is None else body.tool_choice.unknown_fields("tool_choice."))
            | (set() if body.output_config is None else body.output_config.unknown_fields("output_config."))
        ),
    )


def _parse_settings(body: AnthropicMessageRequest) -> InvokeSettings:
    return InvokeSettings(
        temperature=body.temperature,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        tools=[_parse_tool(tool) for tool in body.tools] if body.tools else None,
        tool_choice=None if body.tool_choice is None else _parse_tool_choice(body.tool_choice),
        response_format=_parse_response_format(body),
    )


def _parse_response_format(body: AnthropicMessageRequest) -> JsonObject | None:
    output_format = None if body.output_config is None else body.output_config.format
    if output_format is None:
        return None
    # OpenAI wants a name for it, and Anthropic has none.
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
    """The whole answer."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": result.model or model,
        "content": [
            *([{"type": "text", "text": result.raw_text}] if result.raw_text else []),
            *tool_use_blocks(result),
        ],
        "stop_reason": stop_reason_of(result),
        "stop_sequence": None,
        "usage": write_usage(result),
    }


def tool_use_blocks(result: Result) -> list[JsonDict]:
    """What the model wants called, as blocks. Arguments that are no JSON object are passed on under ``arguments``."""
    return [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _parse_tool_input(call.arguments)}
        for call in tool_calls_of(result)
    ]


def _parse_tool_input(arguments: str) -> object:
    try:
        parsed = json.loads(arguments or "{}", parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def stop_reason_of(result: Result) -> str:
    """Why the answer ended, in Anthropic's words."""
    return "tool_use" if tool_calls_of(result) else STOP_REASONS.get(result.finish_reason or "", "end_turn")


def write_usage(result: Result) -> JsonDict:
    """Tokens as Anthropic counts them; zero where the target does not tell."""
    usage = result.token_usage
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    cached = usage.cached or 0
    return {
        "input_tokens": max(0, usage.input - cached),
        "output_tokens": usage.output,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
    }


def write_anthropic_models(targets: Sequence[str]) -> JsonDict:
    """The list of models, on one page: the targets a session may call."""
    first, last = (targets[0], targets[-1]) if targets else (None, None)
    return {
        "data": [write_anthropic_model(target) for target in targets],
        "has_more": False,
        "first_id": first,
        "last_id": last,
    }


def write_anthropic_model(target: str) -> JsonDict:
    """One target as a model."""
    return {"type": "model", "id": target, "display_name": target, "created_at": "1970-01-01T00:00:00Z"}


def write_error(fault: Fault) -> tuple[int, JsonDict, dict[str, str]]:
    """A fault as Anthropic's clients read it: a status, the error object, and whether another try may help."""
    status = 402 if fault.code == "budget_exhausted" else fault.status
    error = {
        "type": ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error"),
        "message": fault.message,
        "code": fault.code,
        "charged": fault.charged,
    }
    return status, {"type": "error", "error": error}, {"x-should-retry": "true" if fault.retryable else "false"}

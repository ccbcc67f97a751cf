"""Anthropic's messages ⇄ contracts, pure. What a call cannot carry is named in `Asked.ignored`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, JsonObject, Result
from quintain.errors import Fault
from quintain_gateway.anthropic_blocks import read_blocks, read_turn, unread
from quintain_gateway.anthropic_body import CACHED, SILENT, MessagesBody, Tool, ToolChoice
from quintain_gateway.bodies import BadField, read_as
from quintain_gateway.openai_wire import tool_calls_of

Node = dict[str, Any]

#: How Anthropic says which tool is to be called → how OpenAI does.
CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}

#: Why an answer ended, in Anthropic's words, by what providers say; clients know these few alone.
STOPS: Mapping[str, str] = {
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
class Asked:
    """One request: what to ask, and how to answer."""

    request: InvokeRequest
    stream: bool
    ignored: frozenset[str]


def read_messages(value: object) -> Asked:
    """A request for a message. Raises `BadRequest`, naming the field."""
    body = read_as(MessagesBody, value)
    turns = [said for index, turn in enumerate(body.messages) for said in read_turn(f"messages.{index}", turn)]
    if body.system:
        turns.insert(0, ChatMessage(role="system", content=read_blocks("system", body.system)))
    return Asked(
        request=InvokeRequest(target=body.model, messages=turns, settings=_read_settings(body)),
        stream=body.stream is True,
        ignored=frozenset(
            body.unread(known=SILENT)
            | {name for turn in body.messages for name in unread(turn)}
            | {name for tool in body.tools or [] for name in tool.unread("tools[].", known=CACHED)}
            | (set() if body.tool_choice is None else body.tool_choice.unread("tool_choice."))
            | (set() if body.output_config is None else body.output_config.unread("output_config."))
        ),
    )


def _read_settings(body: MessagesBody) -> InvokeSettings:
    return InvokeSettings(
        temperature=body.temperature,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        tools=[_read_tool(tool) for tool in body.tools] if body.tools else None,
        tool_choice=None if body.tool_choice is None else _read_choice(body.tool_choice),
        response_format=_read_format(body),
    )


def _read_format(body: MessagesBody) -> JsonObject | None:
    wanted = None if body.output_config is None else body.output_config.format
    if wanted is None:
        return None
    # OpenAI wants a name for it, and Anthropic has none.
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted.json_schema}}


def _read_tool(tool: Tool) -> JsonObject:
    function: JsonObject = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _read_choice(choice: ToolChoice) -> str | JsonObject:
    if choice.type != "tool":
        return CHOICES[choice.type]
    if choice.name is None:
        raise BadField("tool_choice.name", "Missing required field: tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def write_message(message_id: str, model: str, result: Result) -> Node:
    """The whole answer."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": result.model or model,
        "content": [*([{"type": "text", "text": result.raw_text}] if result.raw_text else []), *tool_uses(result)],
        "stop_reason": stop_of(result),
        "stop_sequence": None,
        "usage": write_usage(result),
    }


def tool_uses(result: Result) -> list[Node]:
    """What the model wants called, as blocks. Arguments that are no JSON object are passed on under ``arguments``."""
    return [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}
        for call in tool_calls_of(result)
    ]


def _input(arguments: str) -> object:
    try:
        read = json.loads(arguments or "{}", parse_constant=_refused)
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, dict) else {"arguments": arguments}


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def stop_of(result: Result) -> str:
    """Why the answer ended, in Anthropic's words."""
    return "tool_use" if tool_calls_of(result) else STOPS.get(result.finish_reason or "", "end_turn")


def write_usage(result: Result) -> Node:
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


def write_anthropic_models(targets: Sequence[str]) -> Node:
    """The list of models, on one page: the targets a session may call."""
    first, last = (targets[0], targets[-1]) if targets else (None, None)
    return {
        "data": [write_anthropic_model(one) for one in targets],
        "has_more": False,
        "first_id": first,
        "last_id": last,
    }


def write_anthropic_model(target: str) -> Node:
    """One target as a model."""
    return {"type": "model", "id": target, "display_name": target, "created_at": "1970-01-01T00:00:00Z"}


def write_error(fault: Fault) -> tuple[int, Node, dict[str, str]]:
    """A fault as Anthropic's clients read it: a status, the error object, and whether another try may help."""
    status = 402 if fault.code == "budget_exhausted" else fault.status
    error = {
        "type": ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error"),
        "message": fault.message,
        "code": fault.code,
        "charged": fault.charged,
    }
    return status, {"type": "error", "error": error}, {"x-should-retry": "true" if fault.retryable else "false"}

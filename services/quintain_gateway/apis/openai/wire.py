"""Converts between OpenAI's chat completions and Quintain's messages. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, Result, TokenUsage, ToolCall
from quintain.errors import Fault
from quintain_gateway.apis.openai.schemas import ANSWER_FIELDS, ChatCompletionRequest, ChatRequestMessage
from quintain_gateway.http.api_errors import api_error_of
from quintain_gateway.http.schemas import InvalidField, validate_as
from quintain_gateway.http.settings import ignored_parameters, parse_settings

JsonDict = dict[str, Any]

#: OpenAI's finish reasons by those of providers; clients accept only these. All others become ``stop``.
FINISH_REASONS: Mapping[str, str] = {
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "refusal": "content_filter",
}

#: OpenAI's error types by HTTP status.
ERROR_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedChatRequest:
    """A parsed chat completion request; ``choice_count`` is the number of calls to make."""

    request: InvokeRequest
    choice_count: int
    stream: bool
    include_usage: bool


def parse_chat_request(value: object) -> ParsedChatRequest:
    """Parse the JSON value of a chat completion request. Raises `BadRequest`, which names the field as OpenAI does."""
    body = validate_as(ChatCompletionRequest, value)
    request = InvokeRequest(
        target=body.model,
        messages=[_parse_message(index, message) for index, message in enumerate(body.messages)],
        settings=_parse_settings(body),
    )
    return ParsedChatRequest(
        request=request,
        choice_count=body.n or 1,
        stream=body.stream is True,
        include_usage=body.stream_options is not None and body.stream_options.include_usage is True,
    )


def _parse_settings(body: ChatCompletionRequest) -> InvokeSettings | None:
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    unknown = set().union(*(turn.unknown_fields("messages[].", known=ANSWER_FIELDS) for turn in body.messages))
    settings = parse_settings(body, {} if limit is None else {"max_tokens": limit}, unknown)
    return None if settings == InvokeSettings() else settings


def _parse_message(index: int, message: ChatRequestMessage) -> ChatMessage:
    content = message.refusal if message.content is None else message.content
    if content is None and not message.tool_calls:
        field = f"messages.{index}.content"
        raise InvalidField(field, f"Missing required field: {field}")
    calls = [
        ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
        for call in message.tool_calls or []
    ]
    return ChatMessage(
        # OpenAI's newer models call the system role developer.
        role="system" if message.role == "developer" else message.role,
        content=content or "",
        tool_calls=calls or None,
        tool_call_id=message.tool_call_id,
    )


def write_models(targets: Sequence[str]) -> JsonDict:
    """Return OpenAI's list of models for these targets."""
    return {"object": "list", "data": [write_model(target) for target in targets]}


def write_model(target: str) -> JsonDict:
    """Return OpenAI's model object for one target."""
    return {"id": target, "object": "model", "created": 0, "owned_by": "quintain"}


def write_completion(completion_id: str, model: str, created: int, results: Sequence[Result]) -> JsonDict:
    """Return a chat completion with one choice per result. ``created`` is in seconds since the epoch."""
    body: JsonDict = {
        "id": completion_id,
        "object": "chat.completion",
        "created": created,
        "model": results[0].model or model,
        "choices": [
            {
                "index": index,
                "message": _write_message(result),
                "finish_reason": finish_reason_of(result),
                "logprobs": logprobs_of(result),
            }
            for index, result in enumerate(results)
        ],
        **write_ignored(results),
    }
    usage = write_usage(results)
    return body if usage is None else {**body, "usage": usage}


def write_ignored(results: Sequence[Result]) -> JsonDict:
    """Return the field that names the parameters that calls were made without, if there are any."""
    ignored = ignored_parameters(results)
    return {"ignored_parameters": ignored} if ignored else {}


def _write_message(result: Result) -> JsonDict:
    calls, refusal, reasoning = tool_calls_of(result), refusal_of(result), reasoning_text_of(result)
    text = "" if result.raw_text == refusal else result.raw_text
    message: JsonDict = {
        "role": "assistant",
        "content": text or (None if calls or refusal else ""),
        "refusal": refusal,
        **({"reasoning_content": reasoning} if reasoning else {}),
    }
    return {**message, "tool_calls": [write_tool_call(call) for call in calls]} if calls else message


def refusal_of(result: Result) -> str | None:
    """Return the text with which the model refused to answer, if it did."""
    return "".join(message.refusal or "" for message in result.output) or None


def reasoning_text_of(result: Result) -> str:
    """Return the text of the model's reasoning: ``reasoning_content``, as vLLM and DeepSeek call it."""
    return "".join(piece.text for message in result.output for piece in message.reasoning or [])


def logprobs_of(result: Result) -> JsonDict | None:
    """Return the log probabilities of a result's tokens, if the provider sent them."""
    tokens = [token for message in result.output for token in message.logprobs or []]
    return {"content": tokens, "refusal": None} if tokens else None


def write_tool_call(call: ToolCall) -> JsonDict:
    """Return a tool call in OpenAI's format."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def tool_calls_of(result: Result) -> list[ToolCall]:
    """Return the tool calls of a result."""
    return [call for message in result.output for call in message.tool_calls or []]


def finish_reason_of(result: Result) -> str:
    """Return OpenAI's finish reason for a result."""
    return "tool_calls" if tool_calls_of(result) else FINISH_REASONS.get(result.finish_reason or "", "stop")


def write_usage(results: Sequence[Result]) -> JsonDict | None:
    """Return the sum of the choices' token usage, or None if no target reports it."""
    usages = [result.token_usage for result in results if result.token_usage is not None]
    if not usages:
        return None
    total = sum(usages, TokenUsage())
    return {
        "prompt_tokens": total.input,
        "completion_tokens": total.output,
        "total_tokens": total.input + total.output,
        "prompt_tokens_details": {"cached_tokens": total.cached or 0},
        "completion_tokens_details": {"reasoning_tokens": total.reasoning or 0},
        **write_cost(results),
    }


def write_cost(results: Sequence[Result]) -> JsonDict:
    """Return the field of a usage with the cost in US dollars, as OpenRouter has it, if that of each call is known."""
    costs = [result.cost_usd for result in results if result.cost_usd is not None]
    return {"cost": math.fsum(costs)} if len(costs) == len(results) else {}


def write_error(fault: Fault) -> tuple[int, JsonDict, dict[str, str]]:
    """Return a fault in OpenAI's format: the status, the body, and headers that say whether a retry may help."""
    api_error = api_error_of(fault)
    status = api_error.status
    error = {
        "message": api_error.message,
        "type": ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error"),
        "param": api_error.parameter,
        "code": api_error.code,
        "charged": fault.charged is not False,
        **({"chargeUnknown": True} if fault.charged is None else {}),
    }
    return status, {"error": error}, api_error.headers

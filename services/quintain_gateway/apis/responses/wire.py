"""Converts between OpenAI's Responses API and Quintain's messages. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, JsonObject, Result, ToolCall
from quintain_gateway.apis.openai.wire import finish_reason_of, refusal_of, tool_calls_of, write_cost
from quintain_gateway.apis.responses.items import parse_items
from quintain_gateway.apis.responses.schemas import ResponseFunctionTool, ResponseRequest
from quintain_gateway.http.schemas import InvalidField, validate_as
from quintain_gateway.http.settings import parse_settings

JsonDict = dict[str, Any]

#: The values of ``include`` that are honoured; a provider's encrypted reasoning comes back in any case.
_INCLUDE_LOGPROBS, _INCLUDE_REASONING = "message.output_text.logprobs", "reasoning.encrypted_content"

#: Fields that name what OpenAI would have stored.
_STORED_FIELDS = ("previous_response_id", "conversation", "prompt")

#: Why an answer is incomplete, by the finish reason of the chat API.
_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedResponseRequest:
    """A parsed request of the Responses API; ``echoed`` are its fields that the response repeats."""

    request: InvokeRequest
    stream: bool
    echoed: JsonDict


def parse_response_request(value: object) -> ParsedResponseRequest:
    """Parse the JSON value of a request. Raises `BadRequest`, which names the field as OpenAI does."""
    body = validate_as(ResponseRequest, value)
    for name in _STORED_FIELDS:
        if getattr(body, name) is not None:
            raise InvalidField(name, f"{name}: nothing is stored here; send the whole conversation in input")
    if body.background:
        raise InvalidField("background", "background: nothing is stored here; leave it out and wait, or stream")
    messages = (
        [ChatMessage(role="user", content=body.input)] if isinstance(body.input, str) else parse_items(body.input)
    )
    if body.instructions is not None:
        messages.insert(0, ChatMessage(role="system", content=body.instructions))
    settings = _parse_settings(body)
    return ParsedResponseRequest(
        request=InvokeRequest(
            target=body.model, messages=messages, settings=None if settings == InvokeSettings() else settings
        ),
        stream=body.stream is True,
        echoed=_echoed_fields(body),
    )


def _parse_settings(body: ResponseRequest) -> InvokeSettings:
    text, reasoning, choice = body.text, body.reasoning, body.tool_choice
    include = set(body.include or ())
    values: JsonDict = {
        "max_tokens": body.max_output_tokens,
        "logprobs": True if _INCLUDE_LOGPROBS in include else None,
        "reasoning_effort": None if reasoning is None else reasoning.effort,
        "verbosity": None if text is None else text.verbosity,
        "response_format": None if text is None else _parse_format(text.format),
        "tools": [_parse_tool(tool) for tool in body.tools] if body.tools else None,
        "tool_choice": (
            choice
            if choice is None or isinstance(choice, str)
            else {"type": "function", "function": {"name": choice.name}}
        ),
    }
    unknown = (
        {f"include.{name}" for name in include - {_INCLUDE_LOGPROBS, _INCLUDE_REASONING}}
        | (set() if text is None else text.unknown_fields("text."))
        | (set() if reasoning is None else reasoning.unknown_fields("reasoning."))
        | {name for tool in body.tools or [] for name in tool.unknown_fields("tools[].")}
        | ({"truncation"} if body.truncation not in {None, "disabled"} else set())
    )
    return parse_settings(body, values, unknown)


def _parse_format(text_format: JsonObject | None) -> JsonObject | None:
    """Return the format of the text as the chat API writes it: a schema with its name in an object of its own."""
    if text_format is None or text_format.get("type") != "json_schema":
        return text_format
    schema = {name: value for name, value in text_format.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


def _parse_tool(tool: ResponseFunctionTool) -> JsonObject:
    function: JsonObject = {"name": tool.name}
    for name in ("description", "parameters", "strict"):
        value = getattr(tool, name)
        if value is not None:
            function[name] = value
    return {"type": "function", "function": function}


def _echoed_fields(body: ResponseRequest) -> JsonDict:
    sent = body.model_dump(mode="json", exclude_none=True, warnings=False)
    names = ("instructions", "max_output_tokens", "metadata", "reasoning", "temperature", "text", "top_p")
    return {
        **{name: sent.get(name) for name in names},
        "tools": sent.get("tools", []),
        "tool_choice": sent.get("tool_choice", "auto"),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "truncation": "disabled",
        "store": False,
    }


def incomplete_reason_of(result: Result) -> str | None:
    """Return why the answer is not complete, or None."""
    return _INCOMPLETE_REASONS.get(finish_reason_of(result))


def write_output(response_id: str, result: Result) -> list[JsonDict]:
    """Return the output items of a result: its reasoning, its message and its function calls."""
    calls = tool_calls_of(result)
    return [
        *write_reasoning_items(response_id, result),
        *([] if calls and not result.raw_text else [write_message_item(response_id, result)]),
        *(write_call_item(response_id, index, call) for index, call in enumerate(calls)),
    ]


def write_message_item(response_id: str, result: Result) -> JsonDict:
    """Return the item of an answer's message; a refusal has a part of its own."""
    refusal = refusal_of(result)
    if refusal is not None and refusal == result.raw_text:
        content: JsonDict = {"type": "refusal", "refusal": refusal}
    else:
        content = write_text_part(result.raw_text, logprobs_of(result))
    status = "completed" if incomplete_reason_of(result) is None else "incomplete"
    return {
        "type": "message",
        "id": f"msg_{response_id}",
        "role": "assistant",
        "status": status,
        "content": [content],
    }


def write_text_part(text: str, logprobs: Sequence[JsonObject] = ()) -> JsonDict:
    """Return the part of a message that holds its text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def write_call_item(response_id: str, index: int, call: ToolCall) -> JsonDict:
    """Return the item of a function call; ``index`` counts the calls of one response."""
    return {
        "type": "function_call",
        "id": f"fc_{response_id}_{index}",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def write_reasoning_items(response_id: str, result: Result) -> list[JsonDict]:
    """Return the items of the model's reasoning; what only the provider can read comes back as encrypted content."""
    pieces = [piece for message in result.output for piece in message.reasoning or []]
    return [
        {
            "type": "reasoning",
            "id": f"rs_{response_id}_{index}",
            "summary": [{"type": "summary_text", "text": piece.text}] if piece.text else [],
            "encrypted_content": piece.redacted or piece.signature,
        }
        for index, piece in enumerate(pieces)
    ]


def logprobs_of(result: Result) -> list[JsonObject]:
    """Return the log probabilities of the text's tokens, if the provider sent them."""
    return [token for message in result.output for token in message.logprobs or []]


def write_usage(result: Result) -> JsonDict | None:
    """Return the token usage, or None if the target reports none."""
    usage = result.token_usage
    if usage is None:
        return None
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached or 0, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": usage.input + usage.output,
        **write_cost([result]),
    }

"""The three wires that model providers speak, each with a provider for it and an answer in its words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from quintain.config.targets import AnthropicTarget, OpenAITarget
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import Provider, ProviderContext
from support.model_streams import (
    CHAT_USAGE,
    StreamedCall,
    anthropic_call_events,
    anthropic_events,
    chat_call_events,
    chat_events,
    event,
    responses_call_events,
    responses_events,
)

KEY = "sk-canary-0123456789abcdef"


@dataclass(frozen=True)
class Wire:
    """One wire: ``target`` makes a target at a URL, ``answer`` a body whose text is this, ``calls`` one that calls
    tools (id, name, arguments); ``events`` and ``call_events`` stream the same, and ``error`` is an error among them.
    """

    name: str
    target: Callable[..., OpenAITarget | AnthropicTarget]
    answer: Callable[[str], dict[str, object]]
    calls: Callable[[Sequence[tuple[str, str, str]]], dict[str, object]]
    events: Callable[[Sequence[str]], list[bytes]]
    call_events: Callable[[Sequence[StreamedCall]], list[bytes]]
    error: Callable[[str], bytes]

    def provider(self, url: str, **options: object) -> Provider:
        """A provider that reaches the server at this URL, with a key."""
        target = self.target(url, **{"api_key": SecretStr(KEY), "model": "some-open-model", **options})
        return build_provider("it", target, ProviderContext(Path.cwd(), {}))

    def before_end(self, events: Sequence[bytes]) -> int:
        """How many events come before the one that says why the answer ended."""
        ends = {"chat": b'"finish_reason": "stop"', "responses": b"response.completed", "anthropic": b"message_delta"}
        return next(index for index, each in enumerate(events) if ends[self.name] in each)


def chat_answer(text: str) -> dict[str, object]:
    """A chat completion."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "served-2026-01-01",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": CHAT_USAGE,
    }


def chat_calls(calls: Sequence[tuple[str, str, str]]) -> dict[str, object]:
    """A chat completion that calls tools."""
    tool_calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    message = {"role": "assistant", "content": None, "tool_calls": tool_calls}
    return chat_answer("") | {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}


def responses_answer(text: str) -> dict[str, object]:
    """An answer of the Responses API."""
    content = {"type": "output_text", "text": text, "annotations": []}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "served-2026-01-01",
        "status": "completed",
        "output": [
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [content]}
        ],
        "usage": {
            "input_tokens": 21,
            "output_tokens": 9,
            "total_tokens": 30,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens_details": {"reasoning_tokens": 3},
        },
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def responses_calls(calls: Sequence[tuple[str, str, str]]) -> dict[str, object]:
    """An answer of the Responses API that calls tools."""
    function_calls = [
        {"type": "function_call", "id": f"fc_{index}", "call_id": call_id, "name": name, "arguments": arguments}
        for index, (call_id, name, arguments) in enumerate(calls)
    ]
    return responses_answer("") | {"output": function_calls}


def anthropic_answer(text: str) -> dict[str, object]:
    """A message of Anthropic's. Its input is counted without what came from a cache."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "served-2026-01-01",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 17, "output_tokens": 9, "cache_read_input_tokens": 4},
    }


def anthropic_calls(calls: Sequence[tuple[str, str, str]]) -> dict[str, object]:
    """A message of Anthropic's that calls tools: arguments are objects there."""
    content = [
        {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)}
        for call_id, name, arguments in calls
    ]
    return anthropic_answer("") | {"content": content, "stop_reason": "tool_use"}


def _chat_error(message: str) -> bytes:
    return event({"error": {"message": message, "type": "server_error", "param": None, "code": None}})


def _responses_error(message: str) -> bytes:
    data = {"type": "error", "code": "server_error", "message": message, "param": None, "sequence_number": 9}
    return event(data, "error")


def _anthropic_error(message: str) -> bytes:
    return event({"type": "error", "error": {"type": "overloaded_error", "message": message}}, "error")


def _chat(url: str, **options: object) -> OpenAITarget:
    return OpenAITarget.model_validate({"provider": "openai", "base_url": f"{url}/v1", **options})


def _responses(url: str, **options: object) -> OpenAITarget:
    return _chat(url, api="responses", **options)


def _anthropic(url: str, **options: object) -> AnthropicTarget:
    return AnthropicTarget.model_validate({"provider": "anthropic", "base_url": url, **options})


CHAT = Wire("chat", _chat, chat_answer, chat_calls, chat_events, chat_call_events, _chat_error)
RESPONSES = Wire(
    "responses",
    _responses,
    responses_answer,
    responses_calls,
    responses_events,
    responses_call_events,
    _responses_error,
)
ANTHROPIC = Wire(
    "anthropic",
    _anthropic,
    anthropic_answer,
    anthropic_calls,
    anthropic_events,
    anthropic_call_events,
    _anthropic_error,
)
WIRES = (CHAT, RESPONSES, ANTHROPIC)

"""The three wires that model providers speak, each with a provider for it and an answer in its words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from quintain.config import AnthropicTarget, OpenAITarget
from quintain_worker.port import Provider
from quintain_worker.providers.build import Surroundings, build_provider

KEY = "sk-canary-0123456789abcdef"


@dataclass(frozen=True)
class Wire:
    """One wire: ``target`` makes a target at a URL, ``answer`` a body whose text is this."""

    name: str
    target: Callable[..., OpenAITarget | AnthropicTarget]
    answer: Callable[[str], dict[str, object]]

    def provider(self, url: str, **says: object) -> Provider:
        """A provider that reaches the server at this URL, with a key."""
        target = self.target(url, **{"api_key": SecretStr(KEY), "model": "some-open-model", **says})
        return build_provider("it", target, Surroundings(Path.cwd(), {}))


def chat_answer(text: str) -> dict[str, object]:
    """A chat completion."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "served-2026-01-01",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {
            "prompt_tokens": 21,
            "completion_tokens": 9,
            "total_tokens": 30,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
    }


def responses_answer(text: str) -> dict[str, object]:
    """An answer of the Responses API."""
    said = {"type": "output_text", "text": text, "annotations": []}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "served-2026-01-01",
        "status": "completed",
        "output": [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [said]}],
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


def _chat(url: str, **says: object) -> OpenAITarget:
    return OpenAITarget.model_validate({"provider": "openai", "base_url": f"{url}/v1", **says})


def _responses(url: str, **says: object) -> OpenAITarget:
    return _chat(url, api="responses", **says)


def _anthropic(url: str, **says: object) -> AnthropicTarget:
    return AnthropicTarget.model_validate({"provider": "anthropic", "base_url": url, **says})


CHAT = Wire("chat", _chat, chat_answer)
RESPONSES = Wire("responses", _responses, responses_answer)
ANTHROPIC = Wire("anthropic", _anthropic, anthropic_answer)
WIRES = (CHAT, RESPONSES, ANTHROPIC)

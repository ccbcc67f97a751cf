"""A chat completion as it is answered, pure: one body, or a stream of server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quintain.contracts.invoke import Result
from quintain.errors import Fault
from quintain_gateway.openai_wire import (
    finish_of,
    tool_calls_of,
    write_completion,
    write_error,
    write_tool_call,
    write_usage,
)

DONE = b"data: [DONE]\n\n"

#: A comment: it keeps the connection open, and no client reads it.
KEEP_ALIVE = b": keep-alive\n\n"


def event(data: object) -> bytes:
    """One event."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """One completion, whole or as events. ``model`` is the target's name: who serves it is known at the end only."""

    completion_id: str
    model: str
    include_usage: bool = False
    keep_alive: bytes = KEEP_ALIVE
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The answer as one body."""
        return write_completion(self.completion_id, self.model, self.created, results)

    def error(self, fault: Fault) -> dict[str, Any]:
        """A fault as a body."""
        return write_error(fault)[1]

    def opened(self, choices: int) -> bytes:
        """Every choice begins."""
        return b"".join(self._chunk(choice, {"role": "assistant", "content": ""}) for choice in range(choices))

    def said(self, choice: int, delta: str, *, first: bool) -> bytes:
        """A piece of a choice's text."""
        return self._chunk(choice, {"content": delta})

    def ended(self, choice: int, result: Result) -> bytes:
        """Its tool calls, where there are any, and why it ended."""
        calls = [{"index": index, **write_tool_call(call)} for index, call in enumerate(tool_calls_of(result))]
        before = self._chunk(choice, {"tool_calls": calls}) if calls else b""
        return before + self._chunk(choice, {}, finish_of(result))

    def closed(self, results: Sequence[Result]) -> bytes:
        """The usage, for a client that asked for it, and the last event."""
        usage = write_usage(results) if self.include_usage else None
        return DONE if usage is None else event({**self._head(), "choices": [], "usage": usage}) + DONE

    def failed(self, fault: Fault) -> bytes:
        """The end of a stream that has none."""
        return event(self.error(fault))

    def _chunk(self, choice: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
        one = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**self._head(), "choices": [one]})

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.completion_id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
        }

"""A message as it is answered, pure: one body, or Anthropic's stream of events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quintain.contracts.invoke import Result
from quintain.errors import Fault
from quintain_gateway.anthropic_wire import stop_of, tool_uses, write_error, write_message, write_usage


def event(kind: str, **fields: Any) -> bytes:
    """One event, under its own name."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


PING = event("ping")


@dataclass(frozen=True, slots=True)
class AnthropicMessage:
    """One message, whole or as events: a text, then what the model wants called. It has one choice."""

    message_id: str
    model: str
    keep_alive: bytes = PING

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The answer as one body."""
        return write_message(self.message_id, self.model, results[0])

    def error(self, fault: Fault) -> dict[str, Any]:
        """A fault as a body."""
        return write_error(fault)[1]

    def opened(self, _: int) -> bytes:
        """The message begins. Its input is counted at the end, where a target tells at all."""
        message: dict[str, Any] = {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return event("message_start", message=message)

    def said(self, _: int, delta: str, *, first: bool) -> bytes:
        """A piece of its text. A message without any has no block of text: its readers take no empty ones."""
        begun = event("content_block_start", index=0, content_block={"type": "text", "text": ""}) if first else b""
        return begun + event("content_block_delta", index=0, delta={"type": "text_delta", "text": delta})

    def ended(self, _: int, result: Result) -> bytes:
        """What is to be called, why it ended, and what it used."""
        text = event("content_block_stop", index=0) if result.raw_text else b""
        calls = b"".join(_call(index, call) for index, call in enumerate(tool_uses(result), start=1 if text else 0))
        delta = {"stop_reason": stop_of(result), "stop_sequence": None}
        return text + calls + event("message_delta", delta=delta, usage=write_usage(result))

    def closed(self, _: Sequence[Result]) -> bytes:
        """The last event."""
        return event("message_stop")

    def failed(self, fault: Fault) -> bytes:
        """The end of a message that has none."""
        return event("error", error=self.error(fault)["error"])


def _call(index: int, call: dict[str, Any]) -> bytes:
    arguments = {"type": "input_json_delta", "partial_json": json.dumps(call["input"])}
    return (
        event("content_block_start", index=index, content_block={**call, "input": {}})
        + event("content_block_delta", index=index, delta=arguments)
        + event("content_block_stop", index=index)
    )

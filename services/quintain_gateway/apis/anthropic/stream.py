"""Encodes a message as one JSON body or as Anthropic's stream of events. No I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quintain.contracts.invoke import Result
from quintain.errors import Fault
from quintain_gateway.apis.anthropic.wire import (
    stop_reason_of,
    tool_use_blocks,
    write_error,
    write_message,
    write_usage,
)


def encode_named_event(kind: str, **fields: Any) -> bytes:
    """One event, under its own name."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


PING_EVENT = encode_named_event("ping")


@dataclass(frozen=True, slots=True)
class AnthropicMessageEncoder:
    """One message, whole or as events: a text, then what the model wants called. It has one choice."""

    message_id: str
    model: str
    keep_alive_event: bytes = PING_EVENT

    def encode_response(self, results: Sequence[Result]) -> dict[str, Any]:
        """The answer as one body."""
        return write_message(self.message_id, self.model, results[0])

    def encode_error(self, fault: Fault) -> dict[str, Any]:
        """A fault as a body."""
        return write_error(fault)[1]

    def stream_start(self, _: int) -> bytes:
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
        return encode_named_event("message_start", message=message)

    def stream_delta(self, _: int, delta: str, *, is_first: bool) -> bytes:
        """A piece of its text. A message without any has no block of text: its readers take no empty ones."""
        block_start = (
            encode_named_event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            if is_first
            else b""
        )
        return block_start + encode_named_event(
            "content_block_delta", index=0, delta={"type": "text_delta", "text": delta}
        )

    def stream_choice_end(self, _: int, result: Result) -> bytes:
        """What is to be called, why it ended, and what it used."""
        text_block_stop = encode_named_event("content_block_stop", index=0) if result.raw_text else b""
        tool_use_events = b"".join(
            _tool_use_events(index, call)
            for index, call in enumerate(tool_use_blocks(result), start=1 if text_block_stop else 0)
        )
        delta = {"stop_reason": stop_reason_of(result), "stop_sequence": None}
        return (
            text_block_stop
            + tool_use_events
            + encode_named_event("message_delta", delta=delta, usage=write_usage(result))
        )

    def stream_end(self, _: Sequence[Result]) -> bytes:
        """The last event."""
        return encode_named_event("message_stop")

    def stream_error(self, fault: Fault) -> bytes:
        """The end of a message that has none."""
        return encode_named_event("error", error=self.encode_error(fault)["error"])


def _tool_use_events(index: int, block: dict[str, Any]) -> bytes:
    input_delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    return (
        encode_named_event("content_block_start", index=index, content_block={**block, "input": {}})
        + encode_named_event("content_block_delta", index=index, delta=input_delta)
        + encode_named_event("content_block_stop", index=index)
    )

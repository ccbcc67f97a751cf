"""Encodes a message as one JSON body or as Anthropic's server-sent events. No I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quintain.contracts.invoke import Result
from quintain.errors import Fault
from quintain_gateway.apis.anthropic.wire import (
    stop_reason_of,
    thinking_blocks,
    tool_use_blocks,
    write_error,
    write_message,
    write_usage,
)
from quintain_gateway.apis.openai.wire import write_ignored


def encode_named_event(kind: str, **fields: Any) -> bytes:
    """Return one named server-sent event; ``fields`` are the other fields of its JSON data."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


PING_EVENT = encode_named_event("ping")


@dataclass(frozen=True, slots=True)
class AnthropicMessageEncoder:
    """Encodes one message, whole or as server-sent events; see `ResponseEncoder`.

    A message has one choice: a text block, then the tool calls. ``model`` is the name of the target.
    """

    message_id: str
    model: str
    keep_alive_event: bytes = PING_EVENT
    separates_refusals: bool = False

    def encode_response(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return the message as one JSON body."""
        return write_message(self.message_id, self.model, results[0])

    def encode_error(self, fault: Fault) -> dict[str, Any]:
        """Return the JSON body of an error response."""
        return write_error(fault)[1]

    def stream_start(self, _: int) -> bytes:
        """Return the ``message_start`` event. Its usage is zero, because token counts are known only at the end."""
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
        """Return the event for the next piece of the text; the first piece opens the text block.

        A message without text has no text block, because clients do not accept empty ones.
        """
        block_start = (
            encode_named_event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            if is_first
            else b""
        )
        return block_start + encode_named_event(
            "content_block_delta", index=0, delta={"type": "text_delta", "text": delta}
        )

    def stream_choice_end(self, _: int, result: Result) -> bytes:
        """Return the events with the thinking blocks, the tool calls, the stop reason and the usage.

        The thinking blocks come after the text, because they are known only at the end.
        """
        text_block_stop = encode_named_event("content_block_stop", index=0) if result.raw_text else b""
        blocks = [*thinking_blocks(result), *tool_use_blocks(result)]
        block_events = b"".join(
            _block_events(index, block) for index, block in enumerate(blocks, start=1 if text_block_stop else 0)
        )
        ending = {"delta": {"stop_reason": stop_reason_of(result), "stop_sequence": None}, **write_ignored([result])}
        return text_block_stop + block_events + encode_named_event("message_delta", usage=write_usage(result), **ending)

    def stream_end(self, _: Sequence[Result]) -> bytes:
        """Return the ``message_stop`` event."""
        return encode_named_event("message_stop")

    def stream_error(self, fault: Fault) -> bytes:
        """Return the ``error`` event that ends a stream."""
        return encode_named_event("error", error=self.encode_error(fault)["error"])


def _block_events(index: int, block: dict[str, Any]) -> bytes:
    empty, deltas = _block_deltas(block)
    return b"".join(
        [
            encode_named_event("content_block_start", index=index, content_block=empty),
            *(encode_named_event("content_block_delta", index=index, delta=delta) for delta in deltas),
            encode_named_event("content_block_stop", index=index),
        ]
    )


def _block_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the block as it begins, and the deltas that complete it."""
    if block["type"] == "tool_use":
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    if block["type"] == "thinking":
        deltas = [{"type": f"{name}_delta", name: block[name]} for name in ("thinking", "signature")]
        return {**block, "thinking": "", "signature": ""}, deltas
    return block, []

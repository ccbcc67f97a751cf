"""Encodes a message as one JSON body or as Anthropic's server-sent events. No I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quintain.contracts.chunk import ReasoningChunk, ToolCallChunk
from quintain.contracts.invoke import Result
from quintain.errors import Fault, ProviderFailed
from quintain_gateway.apis.anthropic.wire import (
    parse_tool_input,
    stop_reason_of,
    write_error,
    write_message,
    write_usage,
)
from quintain_gateway.apis.openai.wire import write_ignored


def encode_named_event(kind: str, **fields: Any) -> bytes:
    """Return one named server-sent event; ``fields`` are the other fields of its JSON data."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


#: The text block, and the first of the thinking blocks, each of which is one less than the one before. Tool calls are 0
#: and above.
TEXT, FIRST_THINKING = -1, -2

PING_EVENT = encode_named_event("ping")


@dataclass(slots=True)
class AnthropicMessageEncoder:
    """Encodes one message, whole or as server-sent events; see `ResponseEncoder`.

    A message has one choice: thinking blocks, a text block, then the tool calls. ``model`` is the name of the target.
    One block is open at a time, and a closed one cannot be continued: a tool call's pieces that come late are an error,
    and late thinking has a block of its own.
    """

    message_id: str
    model: str
    keep_alive_event: bytes = PING_EVENT
    separates_refusals: bool = False
    #: The number of blocks so far, and the call whose block is open, or `TEXT`, or a thinking block.
    _block_count: int = 0
    _open: int | None = None
    #: Arguments that were not sent yet, because they do not begin as a JSON object.
    _held: dict[int, str] = field(default_factory=dict)
    _streamed: set[int] = field(default_factory=set)

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
        block_start = b"" if self._open == TEXT else self._open_block(TEXT, {"type": "text", "text": ""})
        return block_start + self._delta_event({"type": "text_delta", "text": delta})

    def stream_call(self, _: int, piece: ToolCallChunk) -> bytes:
        """Return the events for the next piece of a tool call. Raises `ProviderFailed` if its block is closed.

        Arguments that are no JSON object are held back: the block's input is then another one.
        """
        block_start = b""
        if piece.id is not None:
            block: dict[str, Any] = {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}}
            block_start = self._open_block(piece.index, block)
            self._held[piece.index] = ""
        if self._open != piece.index:
            raise ProviderFailed("The pieces of several tool calls came mixed up; repeat without stream", charged=True)
        arguments = self._held.pop(piece.index, "") + piece.arguments
        if not arguments.lstrip().startswith("{") and piece.index not in self._streamed:
            self._held[piece.index] = arguments
            return block_start
        self._streamed.add(piece.index)
        return block_start + self._delta_event({"type": "input_json_delta", "partial_json": arguments})

    def stream_reasoning(self, _: int, piece: ReasoningChunk) -> bytes:
        """Return the events for the next piece of a thinking block; the first one opens it."""
        if piece.redacted is not None:
            return self._open_block(FIRST_THINKING - piece.index, {"type": "redacted_thinking", "data": piece.redacted})
        key = FIRST_THINKING - piece.index
        empty: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
        events = [b"" if self._open == key else self._open_block(key, empty)]
        if piece.text:
            events.append(self._delta_event({"type": "thinking_delta", "thinking": piece.text}))
        if piece.signature is not None:
            events.append(self._delta_event({"type": "signature_delta", "signature": piece.signature}))
        return b"".join(events)

    def stream_choice_end(self, _: int, result: Result) -> bytes:
        """Return the events with the stop reason and the usage."""
        ending = {"delta": {"stop_reason": stop_reason_of(result), "stop_sequence": None}, **write_ignored([result])}
        return self._close_block() + encode_named_event("message_delta", usage=write_usage(result), **ending)

    def _open_block(self, key: int, block: dict[str, Any]) -> bytes:
        block_stop = self._close_block()
        self._open, self._block_count = key, self._block_count + 1
        return block_stop + encode_named_event("content_block_start", index=self._block_count - 1, content_block=block)

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        held = self._held.pop(self._open, None)
        delta = {"type": "input_json_delta", "partial_json": json.dumps(parse_tool_input(held or ""))}
        rest = b"" if held is None else self._delta_event(delta)
        self._open = None
        return rest + encode_named_event("content_block_stop", index=self._block_count - 1)

    def _delta_event(self, delta: dict[str, Any]) -> bytes:
        return encode_named_event("content_block_delta", index=self._block_count - 1, delta=delta)

    def stream_end(self, _: Sequence[Result]) -> bytes:
        """Return the ``message_stop`` event."""
        return encode_named_event("message_stop")

    def stream_error(self, fault: Fault) -> bytes:
        """Return the ``error`` event that ends a stream."""
        return encode_named_event("error", error=self.encode_error(fault)["error"])

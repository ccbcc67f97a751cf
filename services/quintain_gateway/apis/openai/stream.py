"""Encodes a chat completion as one JSON body or as server-sent events. No I/O."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from quintain.contracts.chunk import ReasoningChunk, ToolCallChunk
from quintain.contracts.invoke import Result
from quintain.errors import Fault
from quintain_gateway.apis.openai.wire import (
    finish_reason_of,
    logprobs_of,
    refusal_of,
    write_completion,
    write_error,
    write_ignored,
    write_usage,
)

DONE_EVENT = b"data: [DONE]\n\n"

#: A comment line of server-sent events, which clients ignore; it keeps the connection open.
KEEP_ALIVE_COMMENT = b": keep-alive\n\n"


def encode_data_event(data: object) -> bytes:
    """Return one server-sent event with this value as JSON."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


@dataclass(frozen=True, slots=True)
class ChatCompletionEncoder:
    """Encodes one chat completion, whole or as server-sent events; see `ResponseEncoder`.

    ``model`` is the name of the target, because the model that serves it is known only at the end. ``created`` is in
    seconds since the epoch.
    """

    completion_id: str
    model: str
    include_usage: bool = False
    keep_alive_event: bytes = KEEP_ALIVE_COMMENT
    separates_refusals: bool = True
    created: int = field(default_factory=lambda: int(time.time()))

    def encode_response(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return the completion as one JSON body."""
        return write_completion(self.completion_id, self.model, self.created, results)

    def encode_error(self, fault: Fault) -> dict[str, Any]:
        """Return the JSON body of an error response."""
        return write_error(fault)[1]

    def stream_start(self, choice_count: int) -> bytes:
        """Return the first event of each choice, with the role."""
        return b"".join(
            self._chunk_event(choice, {"role": "assistant", "content": ""}) for choice in range(choice_count)
        )

    def stream_delta(self, choice: int, delta: str, *, is_first: bool) -> bytes:
        """Return the event for the next piece of a choice's text."""
        return self._chunk_event(choice, {"content": delta})

    def stream_call(self, choice: int, piece: ToolCallChunk) -> bytes:
        """Return the event for the next piece of a tool call."""
        call: dict[str, Any] = {"index": piece.index, "function": {"arguments": piece.arguments}}
        if piece.id is not None:
            function = {"name": piece.name, "arguments": piece.arguments}
            call = {"index": piece.index, "id": piece.id, "type": "function", "function": function}
        return self._chunk_event(choice, {"tool_calls": [call]})

    def stream_reasoning(self, choice: int, piece: ReasoningChunk) -> bytes:
        """Return the event for the next text of the reasoning; signatures have no place here."""
        return self._chunk_event(choice, {"reasoning_content": piece.text}) if piece.text else b""

    def stream_choice_end(self, choice: int, result: Result) -> bytes:
        """Return the events with what is known only at the end of a choice, and its finish reason.

        These are the refusal and the log probabilities.
        """
        refusal = refusal_of(result)
        events = [self._chunk_event(choice, {"refusal": refusal})] if refusal else []
        ending = {"finish_reason": finish_reason_of(result), "logprobs": logprobs_of(result)}
        return b"".join([*events, self._chunk_event(choice, {}, ending, write_ignored([result]))])

    def stream_end(self, results: Sequence[Result]) -> bytes:
        """Return the event with the usage, if the client requested it, and the ``[DONE]`` event."""
        usage = write_usage(results) if self.include_usage else None
        return (
            DONE_EVENT
            if usage is None
            else encode_data_event({**self._common_fields(), "choices": [], "usage": usage}) + DONE_EVENT
        )

    def stream_error(self, fault: Fault) -> bytes:
        """Return the error event that ends a stream, without ``[DONE]``."""
        return encode_data_event(self.encode_error(fault))

    def _chunk_event(
        self,
        choice: int,
        delta: dict[str, Any],
        ending: Mapping[str, object] = MappingProxyType({}),
        more: Mapping[str, object] = MappingProxyType({}),
    ) -> bytes:
        choice_object = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None, **ending}
        return encode_data_event({**self._common_fields(), "choices": [choice_object], **more})

    def _common_fields(self) -> dict[str, Any]:
        return {
            "id": self.completion_id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
        }

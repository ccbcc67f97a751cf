"""Encodes a response of OpenAI's Responses API as one JSON body or as server-sent events. No I/O."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quintain.contracts.chunk import ReasoningChunk, ToolCallChunk
from quintain.contracts.invoke import Result, ToolCall
from quintain.errors import Fault
from quintain_gateway.apis.openai.stream import KEEP_ALIVE_COMMENT
from quintain_gateway.apis.openai.wire import refusal_of, tool_calls_of, write_error, write_ignored
from quintain_gateway.apis.responses.wire import (
    incomplete_reason_of,
    write_call_item,
    write_message_item,
    write_output,
    write_reasoning_items,
    write_text_part,
    write_usage,
)

JsonDict = dict[str, Any]


@dataclass(slots=True)
class ResponseEventEncoder:
    """Encodes one response, whole or as server-sent events; see `ResponseEncoder`.

    ``model`` is the name of the target, because the model that serves it is known only at the end. ``echoed`` are the
    fields of the request that a response repeats. The items of a stream are in the order in which they were sent.
    """

    key: str
    model: str
    echoed: JsonDict
    keep_alive_event: bytes = KEEP_ALIVE_COMMENT
    separates_refusals: bool = True
    created: int = field(default_factory=lambda: int(time.time()))
    _sequence_number: int = 0
    #: The place in the output of the text (None), of each call by its index, and of each piece of reasoning.
    _places: dict[int | str | None, int] = field(default_factory=dict)
    _items: dict[int, JsonDict] = field(default_factory=dict)
    _text: list[str] = field(default_factory=list)

    def encode_response(self, results: Sequence[Result]) -> JsonDict:
        """Return the response as one JSON body."""
        return self._finished_response(results[0], write_output(self.key, results[0]))

    def encode_error(self, fault: Fault) -> JsonDict:
        """Return the JSON body of an error response."""
        return write_error(fault)[1]

    def stream_start(self, _: int) -> bytes:
        """Return the events that begin a stream."""
        response = self._response("in_progress", [])
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def stream_delta(self, _: int, delta: str, *, is_first: bool) -> bytes:
        """Return the events for the next piece of the text; the first one begins the message."""
        self._text.append(delta)
        start = self._message_start(write_text_part("")) if is_first else b""
        return start + self._part_event("response.output_text.delta", delta=delta, logprobs=[])

    def stream_call(self, _: int, piece: ToolCallChunk) -> bytes:
        """Return the events for the next piece of a function call; the first one begins its item."""
        events = []
        if piece.id is not None:
            call = ToolCall(id=piece.id, name=piece.name or "", arguments="")
            item = {**write_call_item(self.key, piece.index, call), "status": "in_progress"}
            events.append(self._event("response.output_item.added", output_index=self._place(piece.index), item=item))
        if piece.arguments:
            place = {"item_id": f"fc_{self.key}_{piece.index}", "output_index": self._place(piece.index)}
            events.append(self._event("response.function_call_arguments.delta", **place, delta=piece.arguments))
        return b"".join(events)

    def stream_reasoning(self, _: int, piece: ReasoningChunk) -> bytes:
        """Return the events for the next text of a reasoning item; the first one begins it."""
        if not piece.text:
            return b""
        item_id, events = f"rs_{self.key}_{piece.index}", []
        if item_id not in self._places:
            item: JsonDict = {"type": "reasoning", "id": item_id, "summary": [], "encrypted_content": None}
            added = self._event("response.output_item.added", output_index=self._place(item_id), item=item)
            part = {"type": "summary_text", "text": ""}
            events = [added, self._summary_event("response.reasoning_summary_part.added", item_id, part=part)]
        events.append(self._summary_event("response.reasoning_summary_text.delta", item_id, delta=piece.text))
        return b"".join(events)

    def stream_choice_end(self, _: int, result: Result) -> bytes:
        """Return the events that end the message, the function calls and the reasoning."""
        events = [self._message_end(result)]
        for index, call in enumerate(tool_calls_of(result)):
            item, output_index = write_call_item(self.key, index, call), self._place(index)
            done = {"item_id": item["id"], "output_index": output_index, "name": call.name, "arguments": call.arguments}
            events += [
                self._event("response.function_call_arguments.done", **done),
                self._item_done(output_index, item),
            ]
        for item in write_reasoning_items(self.key, result):
            events += self._reasoning_end(item)
        return b"".join(events)

    def stream_end(self, results: Sequence[Result]) -> bytes:
        """Return the event with the complete response."""
        response = self._finished_response(results[0], [self._items[index] for index in sorted(self._items)])
        return self._event(f"response.{response['status']}", response=response)

    def stream_error(self, fault: Fault) -> bytes:
        """Return the error event that ends a stream: with OpenAI's fields, and the error as other APIs hold it."""
        error = self.encode_error(fault)["error"]
        return self._event("error", **{name: error[name] for name in ("code", "message", "param")}, error=error)

    def _message_start(self, part: JsonDict) -> bytes:
        item = {
            "type": "message",
            "id": f"msg_{self.key}",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        added = self._event("response.output_item.added", output_index=self._place(None), item=item)
        return added + self._part_event("response.content_part.added", part=part)

    def _message_end(self, result: Result) -> bytes:
        refusal = refusal_of(result)
        item = write_message_item(self.key, result)
        [part] = item["content"]
        if part["type"] == "refusal":
            events = [
                self._message_start({"type": "refusal", "refusal": ""}),
                self._part_event("response.refusal.delta", delta=refusal),
                self._part_event("response.refusal.done", refusal=refusal),
            ]
        elif self._text or not tool_calls_of(result):
            start = b"" if self._text else self._message_start(write_text_part(""))
            text = {"text": part["text"], "logprobs": part["logprobs"]}
            events = [start, self._part_event("response.output_text.done", **text)]
        else:
            return b""
        events += [self._part_event("response.content_part.done", part=part), self._item_done(self._place(None), item)]
        return b"".join(events)

    def _reasoning_end(self, item: JsonDict) -> list[bytes]:
        """Return the events that end a reasoning item; one without text begins here too."""
        item_id: str = item["id"]
        events = []
        if item_id not in self._places:
            events = [self._event("response.output_item.added", output_index=self._place(item_id), item=item)]
        for part in item["summary"]:
            events += [
                self._summary_event("response.reasoning_summary_text.done", item_id, text=part["text"]),
                self._summary_event("response.reasoning_summary_part.done", item_id, part=part),
            ]
        return [*events, self._item_done(self._place(item_id), item)]

    def _summary_event(self, kind: str, item_id: str, **fields: object) -> bytes:
        place = {"item_id": item_id, "output_index": self._place(item_id), "summary_index": 0}
        return self._event(kind, **place, **fields)

    def _place(self, key: int | str | None) -> int:
        return self._places.setdefault(key, len(self._places))

    def _item_done(self, output_index: int, item: JsonDict) -> bytes:
        self._items[output_index] = item
        return self._event("response.output_item.done", output_index=output_index, item=item)

    def _part_event(self, kind: str, **fields: object) -> bytes:
        place = {"item_id": f"msg_{self.key}", "output_index": self._place(None), "content_index": 0}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: object) -> bytes:
        data = {"type": kind, "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()

    def _finished_response(self, result: Result, output: list[JsonDict]) -> JsonDict:
        reason = incomplete_reason_of(result)
        response = self._response("completed" if reason is None else "incomplete", output)
        return {
            **response,
            "model": result.model or self.model,
            "incomplete_details": None if reason is None else {"reason": reason},
            "usage": write_usage(result),
            **write_ignored([result]),
        }

    def _response(self, status: str, output: list[JsonDict]) -> JsonDict:
        return {
            "id": f"resp_{self.key}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": output,
            **self.echoed,
            "usage": None,
        }

"""OpenAI's responses: their streams put together and continued, and translated to chat completions and back. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from quintain.apis.chat import ChunkWriter, DifferentAnswer, Piece, PieceReader, Text, joined, merge
from quintain.apis.translation import Json, objects, read_usage, written_usage

#: The events that hold a response.
_WHOLES = ("response.created", "response.in_progress", "response.completed", "response.incomplete")

#: The events that continue a text of an answer → that text's kind in `Piece`.
_DELTAS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.function_call_arguments.delta": "call",
    "response.reasoning_summary_text.delta": "thinking",
    "response.reasoning_text.delta": "thinking",
}

_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseStream:
    """The events of one response; the last of them holds it whole."""

    def __init__(self) -> None:
        self._response: Json = {}
        #: What an event adds to, by `_place` → its texts.
        self._sent: dict[object, Text] = {}
        self._items: dict[object, Json] = {}
        self.is_complete = False

    @property
    def has_begun(self) -> bool:
        """Whether there was any event."""
        return bool(self._sent)

    def feed(self, event: Json) -> None:
        """Add the next event."""
        kind, delta = event.get("type"), event.get("delta")
        self._sent.setdefault(_place(event), Text()).append(delta if isinstance(delta, str) else "")
        if kind == "response.output_item.added":
            self._items[event.get("output_index")] = event.get("item") or {}
        elif kind in _WHOLES:
            self._response = event.get("response") or {}
            self.is_complete = kind in _WHOLES[2:]

    def answer(self) -> Json:
        """Return the response."""
        return self._response

    def rest_of(self, whole: Json) -> Iterator[Json]:
        """Yield the events that this stream lacks of a whole response. Raises `DifferentAnswer`."""
        output = dict[object, Json](enumerate(objects(whole.get("output"))))
        for place, item in self._items.items():
            if any(item.get(name) not in (None, output.get(place, {}).get(name)) for name in ("type", "call_id")):
                raise DifferentAnswer
        for event in () if self.is_complete else _events_of(whole):
            sent, delta = self._sent.get(_place(event)), event.get("delta")
            if sent is not None and isinstance(delta, str):
                if not delta.startswith(text := "".join(sent)):
                    raise DifferentAnswer
                event["delta"] = delta[len(text) :]
            if sent is None or event.get("delta"):
                yield event


def _place(event: Json) -> object:
    names = ("type", "output_index", "content_index", "summary_index")
    return tuple(value if isinstance(value := event.get(name), str | int) else None for name in names)


def _events_of(response: Json) -> Iterator[Json]:
    """Yield the events of a stream with this whole response."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield from ({"type": kind, "response": begun} for kind in _WHOLES[:2])
    for place, item in enumerate(objects(response.get("output"))):
        yield from _item_events(place, item)
    yield {"type": _WHOLES[2 + (response.get("status") == "incomplete")], "response": response}


def _item_events(place: int, item: Json) -> Iterator[Json]:
    """Yield the events of one whole item of a response."""
    kind, at = item.get("type"), {"item_id": item.get("id"), "output_index": place}
    empty: Json = {"message": {"content": [], "status": "in_progress"}, "function_call": {"arguments": ""},
                   "reasoning": {"summary": []}}  # fmt: skip
    start = {**item, **empty.get(str(kind), {})}
    yield {"type": "response.output_item.added", "output_index": place, "item": start}
    if kind == "message":
        for index, part in enumerate(objects(item.get("content"))):
            here, field = {**at, "content_index": index}, "refusal" if part.get("type") == "refusal" else "text"
            name = "response.refusal" if field == "refusal" else "response.output_text"
            more = {} if field == "refusal" else {"logprobs": part.get("logprobs") or []}
            yield {"type": "response.content_part.added", **here, "part": {**part, field: ""}}
            yield {"type": f"{name}.delta", **here, "delta": part.get(field) or "", **more}
            yield {"type": f"{name}.done", **here, field: part.get(field) or "", **more}
            yield {"type": "response.content_part.done", **here, "part": part}
    elif kind == "function_call":
        arguments = item.get("arguments") or ""
        yield {"type": "response.function_call_arguments.delta", **at, "delta": arguments}
        yield {"type": "response.function_call_arguments.done", **at, "name": item.get("name"), "arguments": arguments}
    elif kind == "reasoning":
        for index, part in enumerate(objects(item.get("summary"))):
            here, text = {**at, "summary_index": index}, part.get("text") or ""
            yield {"type": "response.reasoning_summary_part.added", **here, "part": {**part, "text": ""}}
            yield {"type": "response.reasoning_summary_text.delta", **here, "delta": text}
            yield {"type": "response.reasoning_summary_text.done", **here, "text": text}
            yield {"type": "response.reasoning_summary_part.done", **here, "part": part}
        for index, part in enumerate(objects(item.get("content"))):
            here, text = {**at, "content_index": index}, part.get("text") or ""
            yield {"type": "response.reasoning_text.delta", **here, "delta": text}
            yield {"type": "response.reasoning_text.done", **here, "text": text}
    yield {"type": "response.output_item.done", "output_index": place, "item": item}


class ResponseReader:
    """Translates the events of a response to the chunks of a chat completion."""

    def __init__(self) -> None:
        self._stream, self._out = ResponseStream(), ChunkWriter()
        #: The place of an item in the output → the first block of thinking in it.
        self._thoughts: dict[object, object] = {}

    def feed(self, event: Json) -> Iterator[Json]:
        """Yield the chunks that say the same as the next event."""
        kind, place, response = str(event.get("type")), event.get("output_index"), event.get("response") or {}
        if kind in _WHOLES[2:]:
            # What the events before did not say.
            for missing in list(self._stream.rest_of(response))[:-1]:
                yield from self.feed(missing)
        self._stream.feed(event)
        if kind == "response.created":
            yield self._out.begin(response, {"id": "id", "created_at": "created", "model": "model"})
        elif kind in _DELTAS:
            yield from self._piece(_DELTAS[kind], event, str(event.get("delta") or ""))
        elif kind.startswith("response.output_item."):
            yield from self._item(place, event.get("item") or {}, is_done=kind.endswith("done"))
        elif kind in _WHOLES[2:]:
            reason = (response.get("incomplete_details") or {}).get("reason")
            ended = "length" if response.get("status") == "incomplete" else "stop"
            known = {"max_output_tokens": "length", None: "tool_calls" if self._out.has_calls else ended}
            yield from self._out.end(known.get(reason, reason), read_usage("responses", response.get("usage")))

    def _piece(self, kind: str, event: Json, text: str) -> Iterator[Json]:
        place = event.get("output_index")
        if kind == "call" and self._out.has_call(place):
            yield self._out.arguments(place, text)
        elif kind == "thinking":
            block = _place(event)
            self._thoughts.setdefault(place, block)
            yield self._out.thinking(block, {"thinking": text})
        elif kind == "text":
            yield self._out.text(text, event.get("logprobs"))
        elif kind == "refusal":
            yield self._out.refusal(text)

    def _item(self, place: object, item: Json, *, is_done: bool) -> Iterator[Json]:
        kind, encrypted = item.get("type"), item.get("encrypted_content")
        if kind == "function_call" and not is_done:
            yield self._out.call(place, item, item.get("call_id"))
        elif kind == "reasoning" and is_done and encrypted is not None:
            block = self._thoughts.get(place)
            fields = {"data": encrypted} if block is None else {"signature": encrypted}
            yield self._out.thinking(place if block is None else block, fields)


class ResponseEventWriter:
    """Translates the chunks of a chat completion to the events of a response."""

    def __init__(self) -> None:
        self._pieces = PieceReader()
        self._response: Json = {}
        self._key = ""
        #: The first piece of the item that is open, its texts, and what chunks said besides.
        self._open: Piece | None = None
        self._texts, self._fields = Text(), Json()

    def feed(self, chunk: Json) -> Iterator[Json]:
        """Yield the events that say the same as the next chunk."""
        if not self._response:
            self._key = str(chunk.get("id") or "").removeprefix("chatcmpl-")
            begun = {"id": f"resp_{self._key}", "object": "response", "created_at": chunk.get("created") or 0}
            begun |= {"status": "in_progress", "incomplete_details": None, "error": None, "model": chunk.get("model")}
            self._response = {**begun, "output": [], "usage": None}
            yield from ({"type": kind, "response": {**self._response, "output": []}} for kind in _WHOLES[:2])
        for piece in self._pieces.feed(chunk):
            yield from self._piece(piece)

    def end(self) -> Iterator[Json]:
        """Yield the events that end the response."""
        for piece in self._pieces.end():
            yield from self._piece(piece)
        yield from self._stop()
        if all(item["type"] == "reasoning" for item in self._response["output"]):
            yield from self._piece(Piece("text", 0, "", {}))
            yield from self._stop()
        reason = _INCOMPLETE_REASONS.get(self._pieces.reason)
        ending = (
            {"status": "incomplete", "incomplete_details": {"reason": reason}} if reason else {"status": "completed"}
        )
        usage = read_usage("chat", self._pieces.usage)
        whole = {**self._response, **ending, "usage": None if usage is None else written_usage("responses", usage)}
        yield {"type": _WHOLES[2 + bool(reason)], "response": whole}

    def _piece(self, piece: Piece) -> Iterator[Json]:
        if piece.kind == "thinking" and not (piece.text or piece.fields.get("data") or piece.fields.get("signature")):
            return
        is_next = self._open is None or (self._open.kind, self._open.at) != (piece.kind, piece.at)
        if is_next:
            yield from self._stop()
            self._open, self._texts, self._fields = piece, Text(), {}
        before, delta, _ = _parts_of(len(self._response["output"]), self._item(piece, piece.text, piece.fields))
        yield from before if is_next else ()
        self._texts.append(piece.text)
        merge(self._fields, {name: value for name, value in piece.fields.items() if value is not None})
        if delta is not None and (delta["delta"] or delta.get("logprobs")):
            yield delta

    def _stop(self) -> Iterator[Json]:
        if self._open is not None:
            item = self._item(self._open, "".join(self._texts), joined(self._fields))
            _, _, after = _parts_of(len(self._response["output"]), item)
            self._response["output"].append(item)
            self._open = None
            yield from after

    def _item(self, piece: Piece, text: str, fields: Json) -> Json:
        name = f"{self._key}_{len(self._response['output'])}"
        if piece.kind == "thinking":
            summary = [{"type": "summary_text", "text": text}] if text else []
            encrypted = fields.get("data") or fields.get("signature") or None
            return {"type": "reasoning", "id": f"rs_{name}", "summary": summary, "encrypted_content": encrypted}
        if piece.kind == "call":
            call = {
                "type": "function_call",
                "id": f"fc_{name}",
                "call_id": fields.get("id"),
                "name": fields.get("name"),
            }
            return {**call, "arguments": text, "status": "completed"}
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": fields.get("logprobs") or []}
        content = [part if piece.kind == "text" else {"type": "refusal", "refusal": text}]
        return {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed", "content": content}


def _parts_of(place: int, item: Json) -> tuple[list[Json], Json | None, list[Json]]:
    """Return the events of an item that begin it, the one that holds its text, and those that end it."""
    events = list(_item_events(place, item))
    at = next(at for at, event in enumerate(events) if event["type"].endswith((".delta", "item.done")))
    delta = events[at] if "delta" in events[at] else None
    return events[:at], delta, events[at + (delta is not None) :]

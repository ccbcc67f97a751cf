"""Anthropic's messages: their streams put together and continued, and translated to chat completions and back. No I/O.

In chat JSON, what only Anthropic has stands where other servers keep it: ``reasoning_content`` and ``thinking_blocks``
of an assistant's message, ``cache_control`` of a part or a tool, ``is_error`` of a tool's message, and
``cache_write_tokens`` of the usage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from quintain.apis.answer_json import parse_object
from quintain.apis.chat import ChunkWriter, DifferentAnswer, Piece, PieceReader, Text, joined, lacking, merge
from quintain.apis.translation import Json, objects, read_usage, written_usage
from quintain.contracts.invoke import NO_TOKENS

#: Anthropic's stop reasons → OpenAI's finish reasons.
_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}

#: The texts of blocks → the types of the events that continue them.
_DELTAS = {"text": "text_delta", "thinking": "thinking_delta", "signature": "signature_delta"}


class MessageStream:
    """The events of one message, put together."""

    def __init__(self) -> None:
        self._message: Json = {}
        self._blocks: list[Json] = []
        self._inputs: dict[int, Text] = {}
        self._stopped: set[int] = set()
        self._has_ending = self._has_stopped = False

    @property
    def is_complete(self) -> bool:
        """Whether the events said that the answer has ended."""
        return self._has_stopped and self.has_begun

    @property
    def has_begun(self) -> bool:
        """Whether there was any event of the message."""
        return bool(self._message)

    def feed(self, event: Json) -> None:
        """Add the next event. Raises `ValueError` for one that belongs to no block."""
        kind, index = event.get("type"), event.get("index")
        if kind == "message_start":
            self._message, self._blocks = dict(event.get("message") or {}), []
        elif kind == "content_block_start":
            if not self._message:
                raise ValueError("a block before the message")
            self._blocks.append({})
            merge(self._blocks[-1], event.get("content_block") or {})
            if "input" in self._blocks[-1]:
                self._inputs[len(self._blocks) - 1] = Text()
        elif kind == "content_block_delta":
            if not isinstance(index, int) or not 0 <= index < len(self._blocks):
                raise ValueError("a piece of no block")
            self._add(index, event.get("delta") or {})
        elif kind == "content_block_stop" and isinstance(index, int):
            self._stopped.add(index)
        elif kind == "message_delta":
            self._has_ending = True
            self._message |= event.get("delta") or {}
            counts = {name: count for name, count in (event.get("usage") or {}).items() if count is not None}
            self._message["usage"] = {**(self._message.get("usage") or {}), **counts}
            others = event.keys() - {"type", "delta", "usage"}
            self._message |= {name: event[name] for name in others if event[name] is not None}
        self._has_stopped = self._has_stopped or kind == "message_stop"

    def _add(self, index: int, delta: Json) -> None:
        if delta.get("type") == "input_json_delta":
            self._inputs.setdefault(index, Text()).append(str(delta.get("partial_json") or ""))
        elif delta.get("type") == "citations_delta":
            merge(self._blocks[index], {"citations": [delta.get("citation")]})
        else:
            merge(self._blocks[index], {name: value for name, value in delta.items() if name != "type"})

    def answer(self) -> Json:
        """Return the message so far. The input of a tool that is no JSON object is kept as its text."""
        blocks = joined(self._blocks)
        for index, pieces in self._inputs.items():
            if text := "".join(pieces):
                blocks[index]["input"] = _input_of(text)
        return {**self._message, "content": blocks} if self._message else {}

    def rest_of(self, whole: Json) -> Iterator[Json]:
        """Yield the events that this stream lacks of a whole message. Raises `DifferentAnswer`."""
        if not self._message:
            begun: Json = {"content": [], "stop_reason": None, "stop_sequence": None}
            yield {"type": "message_start", "message": {**whole, **begun}}
        blocks = objects(whole.get("content"))
        if len(self._blocks) > len(blocks):
            raise DifferentAnswer
        for index, block in enumerate(blocks):
            empty = {name: type(block[name])() for name in (*_DELTAS, "citations", "input") if block.get(name)}
            if index >= len(self._blocks):
                yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
            for delta in self._deltas(index, block, empty):
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            if index not in self._stopped:
                yield {"type": "content_block_stop", "index": index}
        if not self._has_ending:
            ending = {name: whole.get(name) for name in ("stop_reason", "stop_sequence")}
            yield {"type": "message_delta", "delta": ending, "usage": whole.get("usage") or {"output_tokens": 0}}
        if not self._has_stopped:
            yield {"type": "message_stop"}

    def _deltas(self, index: int, block: Json, empty: Json) -> Iterator[Json]:
        sent = joined(self._blocks[index]) if index < len(self._blocks) else {**block, **empty}
        more = lacking({**block, "input": None}, {**sent, "input": None})
        for name, kind in _DELTAS.items():
            if name in more:
                yield {"type": kind, name: more[name]}
        yield from ({"type": "citations_delta", "citation": citation} for citation in more.get("citations") or ())
        text = "".join(self._inputs.get(index, ()))
        if "input" in block and (_input_of(text) if text else sent.get("input")) != block["input"]:
            if index in self._stopped:
                raise DifferentAnswer
            yield {"type": "input_json_delta", "partial_json": _written_as(block["input"], text)[len(text) :]}


def _input_of(text: str) -> Json:
    parsed = parse_object(text)
    return {"arguments": text} if parsed is None else parsed


def _written_as(value: Any, sent: str) -> str:
    """Return the JSON of a tool's input so that it begins with what was sent of it: it may be written in several ways.

    Raises `DifferentAnswer` where none of them does.
    """
    ways = [(comma, ascii_only) for comma in ((",", ":"), (", ", ": ")) for ascii_only in (False, True)]
    texts = [json.dumps(value, separators=comma, ensure_ascii=ascii_only) for comma, ascii_only in ways]
    for text in [*texts, str(value.get("arguments") or "")] if isinstance(value, dict) and sent else texts:
        if text.startswith(sent):
            return text
    raise DifferentAnswer


class MessageReader:
    """Translates the events of a message to the chunks of a chat completion."""

    def __init__(self) -> None:
        self._out, self._usage = ChunkWriter(), Json()
        self._without_input: set[object] = set()

    def feed(self, event: Json) -> Iterator[Json]:
        """Yield the chunks that say the same as the next event."""
        kind, index, delta = event.get("type"), event.get("index"), event.get("delta") or {}
        message = event.get("message") or {}
        usage = event.get("usage") or message.get("usage") or {}
        self._usage |= {name: count for name, count in usage.items() if count is not None}
        if kind == "message_start":
            yield self._out.begin(message, {"id": "id", "model": "model"})
        elif kind == "content_block_start":
            yield from self._start(index, event.get("content_block") or {})
        elif kind == "content_block_delta":
            yield from self._piece(index, delta)
        elif kind == "content_block_stop" and index in self._without_input:
            yield self._out.arguments(index, "{}")
        elif kind == "message_delta":
            reason = delta.get("stop_reason")
            yield from self._out.end(_FINISH_REASONS.get(str(reason), reason), read_usage("messages", self._usage))

    def _start(self, index: object, block: Json) -> Iterator[Json]:
        kind = block.get("type")
        if kind == "tool_use":
            yield self._out.call(index, block, block.get("id"))
            if block.get("input"):
                yield self._out.arguments(index, _written_as(block["input"], ""))
            else:
                self._without_input.add(index)
        elif kind in {"thinking", "redacted_thinking"}:
            yield self._out.thinking(index, block)
        elif kind == "text":
            yield from self._piece(index, block)

    def _piece(self, index: object, piece: Json) -> Iterator[Json]:
        if self._out.has_thinking(index):
            yield self._out.thinking(index, piece)
        elif piece.get("text"):
            yield self._out.text(str(piece["text"]))
        elif piece.get("partial_json") and self._out.has_call(index):
            self._without_input.discard(index)
            yield self._out.arguments(index, str(piece["partial_json"]))


class MessageEventWriter:
    """Translates the chunks of a chat completion to the events of a message."""

    def __init__(self) -> None:
        self._pieces = PieceReader()
        self._kinds: set[str] = set()
        self._open: tuple[str, int] | None = None
        self._index, self._has_begun = -1, False

    def feed(self, chunk: Json) -> Iterator[Json]:
        """Yield the events that say the same as the next chunk."""
        if not self._has_begun:
            self._has_begun = True
            head = {"id": chunk.get("id"), "type": "message", "role": "assistant", "model": chunk.get("model")}
            begun: Json = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(None)}
            yield {"type": "message_start", "message": {**head, **begun}}
        for piece in self._pieces.feed(chunk):
            yield from self._piece(piece)

    def end(self) -> Iterator[Json]:
        """Yield the events that end the message."""
        for piece in self._pieces.end():
            yield from self._piece(piece)
        yield from self._stop()
        reason = self._pieces.reason
        if "call" in self._kinds and reason in {"", "stop", "function_call"}:
            # Some servers do not say that the answer ended for its calls; a call that was cut off is no such end.
            reason = "tool_calls"
        stop = "refusal" if "refusal" in self._kinds else _STOP_REASONS.get(reason, "end_turn")
        ending = {"stop_reason": stop, "stop_sequence": None}
        yield {"type": "message_delta", "delta": ending, "usage": _usage(self._pieces.usage)}
        yield {"type": "message_stop"}

    def _piece(self, piece: Piece) -> Iterator[Json]:
        kind, fields = ("text" if piece.kind == "refusal" else piece.kind), piece.fields
        block: Json = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": piece.text}] if piece.text else []
        if kind == "call":
            block = {"type": "tool_use", "id": fields["id"], "name": fields["name"], "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": piece.text}] if piece.text else []
        elif kind == "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
            pieces = {"thinking": piece.text, "signature": fields.get("signature")}
            deltas = [{"type": _DELTAS[name], name: text} for name, text in pieces.items() if text]
            if (data := fields.get("data")) is not None:
                block, deltas = {"type": "redacted_thinking", "data": data}, []
        elif not deltas:
            return
        self._kinds.add(piece.kind)
        if self._open != (kind, piece.at):
            yield from self._stop()
            self._open, self._index = (kind, piece.at), self._index + 1
            yield {"type": "content_block_start", "index": self._index, "content_block": block}
        yield from ({"type": "content_block_delta", "index": self._index, "delta": delta} for delta in deltas)

    def _stop(self) -> Iterator[Json]:
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._index}


def _usage(chat: object) -> Json:
    """Return the usage of a chat completion as a message's, which always has one."""
    return written_usage("messages", read_usage("chat", chat) or NO_TOKENS)


def reasoning_text(blocks: list[Json]) -> str:
    """Return the text of thinking blocks."""
    return "".join(str(block.get("thinking") or "") for block in blocks)

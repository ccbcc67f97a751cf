"""Streams of chat completions: put together to the whole, continued, and read piece by piece. No I/O.

Every answer is translated as a stream, because a whole answer is its events put together (`streams.py`). Chunks of
chat completions are the neutral form between the APIs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from quintain.apis.translation import Json, calls_of, objects, text_of, thinking_of, written_usage
from quintain.contracts.invoke import TokenUsage

#: Texts of a chunk that name something: they are sent whole, by some servers again in every chunk.
_NAMES = frozenset({"id", "type", "role", "object", "model", "index", "finish_reason", "call_id"})

#: The lists of a message whose items have an index in chunks, and none in a whole message.
_INDEXED = ("tool_calls", "thinking_blocks")


class DifferentAnswer(ValueError):
    """The whole answer does not begin with what was sent."""


class Text(list[str]):
    """The pieces of a text that still comes."""


def joined(value: Any) -> Any:
    """Return JSON that was put together by `merge`, with its texts as texts."""
    if isinstance(value, Text):
        return "".join(value)
    if isinstance(value, dict):
        return {name: joined(item) for name, item in value.items()}
    return [joined(item) for item in value] if isinstance(value, list) else value


def merge(whole: Json, delta: Json) -> None:
    """Add the next piece of an object: texts and lists are continued, items with an index by that index."""
    for name, value in delta.items():
        present = whole.get(name)
        if value is None:
            whole.setdefault(name)
        elif isinstance(value, str) and name not in _NAMES:
            whole[name] = present if isinstance(present, Text) else Text()
            whole[name].append(value)
        elif isinstance(value, dict):
            whole[name] = present if isinstance(present, dict) else {}
            merge(whole[name], value)
        elif isinstance(value, list):
            whole[name] = present if isinstance(present, list) else []
            _merge_items(whole[name], value)
        elif present is None or value != "":
            whole[name] = value


def _merge_items(whole: list[object], items: list[object]) -> None:
    for item in items:
        index = item.get("index") if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(index, int):
            whole.append(item)
            continue
        own = next((known for known in objects(whole) if known.get("index") == index), None)
        if own is None:
            whole.append(own := {})
        merge(own, item)


def lacking(whole: Json, sent: Json) -> Json:
    """Return the piece that continues an object of which this was sent, so that `merge` makes the whole of both.

    Raises `DifferentAnswer` where the whole does not begin with it.
    """
    if any(isinstance(sent[name], str | list | dict) and sent[name] and not whole.get(name) for name in sent):
        raise DifferentAnswer
    rest: Json = {}
    for name, value in whole.items():
        known = sent.get(name)
        more = value if known is None else _lacking_value(name, value, known)
        if more not in (None, "", [], {}) or (known is None and (value is not None or not sent)):
            rest[name] = more
    return rest


def _lacking_value(name: str, value: Any, known: Any) -> Any:
    if isinstance(value, dict) and isinstance(known, dict):
        return lacking(value, known)
    if isinstance(value, list) and isinstance(known, list):
        return _lacking_items(value, known)
    if isinstance(value, str) and isinstance(known, str) and name not in _NAMES and value.startswith(known):
        return value[len(known) :]
    if isinstance(value, str | list | dict) and value and value != known:
        raise DifferentAnswer
    return None if value == known else value


def _lacking_items(whole: list[Any], sent: list[Any]) -> list[Any]:
    if any(isinstance(item, dict) and "index" in item for item in whole):
        known = {item.get("index"): item for item in objects(sent)}
        if known.keys() - {item["index"] for item in objects(whole)}:
            raise DifferentAnswer
        found = [(item, lacking(item, known.get(item["index"], {}))) for item in objects(whole)]
        return [{"index": item["index"], **more} for item, more in found if more]
    if whole[: len(sent)] != sent:
        raise DifferentAnswer
    return whole[len(sent) :]


def _with_indexes(message: Json, sent: Json) -> Json:
    """Return a message whose calls and blocks of thinking have the indexes that were sent of them, in their order."""
    indexed: Json = {}
    for name in _INDEXED:
        if items := objects(message.get(name)):
            indexes = [item.get("index", at) for at, item in enumerate(objects(sent.get(name)))]
            while len(indexes) < len(items):
                indexes.append(max(indexes, default=-1) + 1)
            indexed[name] = [{**item, "index": index} for item, index in zip(items, indexes, strict=False)]
    return {**message, **indexed}


def _without_indexes(message: Json) -> Json:
    return message | {
        name: [{key: value for key, value in item.items() if key != "index"} for item in objects(message[name])]
        for name in _INDEXED
        if message.get(name)
    }


class ChatStream:
    """The chunks of a chat completion, or of a completion, put together. Fields that it does not know are kept too."""

    def __init__(self) -> None:
        self._head: Json = {}
        self._choices: dict[int, Json] = {}

    @property
    def is_complete(self) -> bool:
        """Whether every choice has the reason for which it ended."""
        choices = self._choices.values()
        return bool(choices) and all(choice.get("finish_reason") for choice in choices)

    @property
    def has_begun(self) -> bool:
        """Whether there was any chunk."""
        return bool(self._head or self._choices)

    def feed(self, chunk: Json) -> None:
        """Add the next chunk."""
        self._head |= {name: value for name, value in chunk.items() if value is not None}
        for choice in objects(chunk.get("choices")):
            merge(self._choices.setdefault(choice.get("index") or 0, {}), choice)

    def answer(self) -> Json:
        """Return the whole completion."""
        choices = []
        for index in sorted(self._choices):
            choice = {"index": index, **joined(self._choices[index])}
            if isinstance(delta := choice.pop("delta", None), dict):
                message = {"role": "assistant", "content": None, **delta}
                choice = {"message": _without_indexes(message), **choice}
            choices.append(choice)
        kind = str(self._head.get("object") or "").removesuffix(".chunk")
        return {**self._head, **({"object": kind} if kind else {}), "choices": choices}

    def rest_of(self, whole: Json) -> Iterator[Json]:
        """Yield the chunks that this stream lacks of a whole completion. Raises `DifferentAnswer`."""
        head = {name: value for name, value in whole.items() if name not in {"choices", "usage"}}
        kind = str(whole.get("object") or "chat.completion")
        head["object"] = f"{kind}.chunk" if kind == "chat.completion" else kind
        for choice in objects(whole.get("choices")):
            index, reason = choice.get("index") or 0, choice.get("finish_reason")
            sent = joined(self._choices.get(index, {}))
            given = {name: value for name, value in choice.items() if name not in {"message", "finish_reason"}}
            if isinstance(message := choice.get("message"), dict):
                delta = sent.get("delta") or {}
                given["delta"], sent["delta"] = _with_indexes(message, delta), _with_indexes(delta, delta)
            empty: Json = {"delta": {}} if "delta" in given else {"text": ""}
            if sent.pop("finish_reason", reason) not in {None, reason}:
                raise DifferentAnswer
            if more := lacking({"index": index, **given}, sent) if index in self._choices else given:
                yield {**head, "choices": [{**empty, **more, "index": index, "finish_reason": None}]}
            if reason is not None and self._choices.get(index, {}).get("finish_reason") is None:
                yield {**head, "choices": [{"index": index, **empty, "finish_reason": reason}]}
        if whole.get("usage") is not None and self._head.get("usage") is None:
            yield {**head, "choices": [], "usage": whole["usage"]}


class Piece(NamedTuple):
    """The next text of one part of an answer: of its ``text``, a ``refusal``, ``thinking`` or a ``call``.

    ``at`` is the index of the call, or of the block of thinking. ``fields`` are what the chunk says besides: the call's
    id and name, the signature or the data of thinking, the log probabilities of a text.
    """

    kind: str
    at: int
    text: str
    fields: Json


class PieceReader:
    """Reads the pieces of a completion's first choice, part by part: each part ends before the next one begins.

    A server may send its calls in turns: the pieces of other calls wait until the end, and the begin of a call for its
    arguments, because its name may come in pieces. ``reason`` and ``usage`` are those of the chunks so far.
    """

    def __init__(self) -> None:
        self.reason, self.usage = "", None
        self._chunk: Json = {}
        self._call: int | None = None
        self._named: set[int] = set()
        self._begun: Piece | None = None
        self._waiting: dict[int, list[Piece]] = {}

    def feed(self, chunk: Json) -> Iterator[Piece]:
        """Yield the pieces of the next chunk."""
        self._chunk = chunk
        self.reason = _first_choice(chunk).get("finish_reason") or self.reason
        self.usage = chunk.get("usage") or self.usage
        for piece in pieces_of(chunk):
            begun, self._begun = self._begun, None
            if begun is not None and (piece.kind, piece.at) == ("call", begun.at):
                piece.fields["id"] = begun.fields["id"] or piece.fields["id"]
                piece.fields["name"] = "".join(filter(None, (begun.fields["name"], piece.fields["name"])))
            elif begun is not None:
                yield from self._in_order(begun)
            if piece.kind == "call" and piece.at not in self._named and not piece.text:
                self._begun = piece
            else:
                yield from self._in_order(piece)

    def end(self) -> Iterator[Piece]:
        """Yield the pieces that waited."""
        if self._begun is not None:
            yield from self._in_order(self._begun)
        for pieces in self._waiting.values():
            yield from pieces

    def _in_order(self, piece: Piece) -> Iterator[Piece]:
        if piece.kind == "call" and piece.at not in self._named:
            self._named.add(piece.at)
            piece.fields["id"] = call_id(piece.fields["id"], self._chunk, piece.at)
        if piece.kind == "call" and self._call is None:
            self._call = piece.at
        if piece.kind == "call" and piece.at != self._call:
            self._waiting.setdefault(piece.at, []).append(piece)
        else:
            yield piece


def pieces_of(chunk: Json) -> Iterator[Piece]:
    """Yield the pieces of a completion's first choice in a chunk."""
    choice = _first_choice(chunk)
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return
    blocks = objects(delta.get("thinking_blocks"))
    if not blocks and (text := thinking_of(delta)):
        blocks = [{"thinking": text}]
    for block in blocks:
        yield Piece("thinking", block.get("index") or 0, _text(block.get("thinking")), block)
    logprobs = choice.get("logprobs")
    tokens = objects(logprobs.get("content")) if isinstance(logprobs, dict) else []
    if (text := text_of(delta.get("content"))) or tokens:
        yield Piece("text", 0, text, {"logprobs": tokens})
    if refusal := _text(delta.get("refusal")):
        yield Piece("refusal", 0, refusal, {})
    for call in calls_of(delta):
        if (call.get("type") or "function") != "function" or "custom" in call:
            continue
        fields = next(iter(objects([call.get("function")])), {})
        named = {"id": call.get("id"), "name": fields.get("name")}
        yield Piece("call", call.get("index") or 0, arguments_of(fields), named)


def call_id(given: object, answer: Json, index: int) -> str:
    """Return the id of a call: what answers it names it. A server that gives none has one made of its answer's."""
    return given if isinstance(given, str) and given else f"call_{answer.get('id') or ''}_{index}"


#: The fields of a choice that adds nothing but a text.
_TEXT_FIELDS = frozenset({"index", "delta", "finish_reason", "logprobs"})


def join_texts(chunks: Iterable[Json]) -> list[Json]:
    """Return the chunks of a chat completion, neighbours that only add to one text as one chunk: most are such."""
    joined: list[Json] = []
    last: Json | None = None
    for chunk in chunks:
        choice = text_choice(chunk)
        if choice is not None and last is not None and choice.get("index") == last.get("index"):
            choice["delta"]["content"] = last["delta"]["content"] + choice["delta"]["content"]
            joined[-1] |= {name: value for name, value in chunk.items() if value is not None}
        else:
            joined.append(chunk)
        last = choice
    return joined


def text_choice(chunk: Json) -> Json | None:
    """Return the only choice of a chunk that adds nothing but a text."""
    try:
        (choice,) = chunk["choices"]
        ((name, text),) = choice["delta"].items()
        is_text = name == "content" and isinstance(text, str) and choice.keys() <= _TEXT_FIELDS
        is_only_text = is_text and choice.get("finish_reason") is None and choice.get("logprobs") is None
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    return choice if is_only_text else None


def _first_choice(chunk: Json) -> Json:
    return next((choice for choice in objects(chunk.get("choices")) if not choice.get("index")), {})


def arguments_of(function: Json) -> str:
    """Return the arguments of a call as text; some servers write them as an object."""
    arguments = function.get("arguments")
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return json.dumps(arguments, ensure_ascii=False)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def chunk_of(head: Json, delta: Json, **choice: object) -> Json:
    """Return a chunk with this piece of its first choice's message."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None, **choice}]
    return {**head, "object": "chat.completion.chunk", "choices": choices}


class ChunkWriter:
    """Writes the chunks of a completion; calls and blocks of thinking are numbered in the order of their first piece.

    ``key`` is what a call, or a block, has in the API that is translated.
    """

    def __init__(self) -> None:
        self._head: Json = {}
        self._numbers: dict[str, dict[object, int]] = {"call": {}, "thinking": {}}
        self._has_text = False

    @property
    def has_calls(self) -> bool:
        """Whether there was any call."""
        return bool(self._numbers["call"])

    def begin(self, answer: Json, names: Mapping[str, str]) -> Json:
        """Return the first chunk; ``names`` are the fields of the answer → those of every chunk."""
        self._head = {own: answer.get(name) for name, own in names.items()}
        return chunk_of(self._head, {"role": "assistant"})

    def text(self, text: str, logprobs: object = None) -> Json:
        """Return the next piece of the text."""
        self._has_text = True
        more = {"logprobs": {"content": logprobs, "refusal": None}} if logprobs else {}
        return chunk_of(self._head, {"content": text}, **more)

    def refusal(self, text: str) -> Json:
        """Return the next piece of a refusal."""
        return chunk_of(self._head, {"refusal": text})

    def call(self, key: object, item: Json, call_id: object) -> Json:
        """Return the begin of a call, whose name the item has."""
        call = {"index": self._number("call", key), "id": call_id, "type": "function"}
        return chunk_of(self._head, {"tool_calls": [{**call, "function": {"name": item.get("name"), "arguments": ""}}]})

    def arguments(self, key: object, text: str) -> Json:
        """Return the next piece of a call's arguments."""
        call = {"index": self._number("call", key), "function": {"arguments": text}}
        return chunk_of(self._head, {"tool_calls": [call]})

    def thinking(self, key: object, block: Json) -> Json:
        """Return the next piece of a block of thinking, or of one whose text is kept from its readers."""
        kind, text = "redacted_thinking" if "data" in block else "thinking", str(block.get("thinking") or "")
        blocks = [{**block, "index": self._number("thinking", key), "type": kind}]
        return chunk_of(self._head, {"reasoning_content": text, "thinking_blocks": blocks})

    def has_thinking(self, key: object) -> bool:
        """Whether there was a piece of this block."""
        return key in self._numbers["thinking"]

    def has_call(self, key: object) -> bool:
        """Whether this call was begun."""
        return key in self._numbers["call"]

    def end(self, reason: object, usage: TokenUsage | None) -> Iterator[Json]:
        """Yield the last chunks."""
        is_empty = not (self._has_text or self.has_calls)
        yield chunk_of(self._head, {"content": ""} if is_empty else {}, finish_reason=reason)
        if usage is not None:
            yield {**chunk_of(self._head, {}), "choices": [], "usage": written_usage("chat", usage)}

    def _number(self, kind: str, key: object) -> int:
        return self._numbers[kind].setdefault(key, len(self._numbers[kind]))

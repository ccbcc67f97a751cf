"""Answers of each API: their server-sent events, and their translation, event by event and whole alike. No I/O.

A stream is kept as what its events say so far (`AnswerStream`). A whole answer is a stream of which nothing was sent
yet, so that reading, continuing and translating are written once for both, and each event is worked on once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from quintain.apis.answer_json import CharacterJoiner, UnreadableAnswer, parse_json, says_something
from quintain.apis.chat import ChatStream
from quintain.apis.messages import MessageEventWriter, MessageReader, MessageStream
from quintain.apis.responses import ResponseEventWriter, ResponseReader, ResponseStream
from quintain.apis.translation import Json, objects
from quintain.contracts.api_request import ApiName
from quintain.errors import ReplyTooLarge

#: The event that ends a stream of OpenAI's, besides the API's own last event.
DONE = "[DONE]"

#: The media type of a stream of events.
EVENT_STREAM = "text/event-stream"

#: The longest event of a stream, in bytes.
MAX_EVENT_BYTES = 16 * 1024 * 1024


#: The names of events, and the data, in quotes or without, of those that say nothing: they keep a connection open.
_KEEP_ALIVE: Final = frozenset({"ping", "pong", "heartbeat", "keepalive", "keep-alive"})
_NOTHING: Final = frozenset({"", "null", "[]", "{}", *_KEEP_ALIVE})


class EventReader:
    """Splits the bytes of a stream into its events, and reads their JSON. `DONE` stands for itself.

    An event that is named an error becomes an object with its data as ``error``. Raises `UnreadableAnswer` for what is
    no JSON, and `ReplyTooLarge` for an event that does not end.
    """

    def __init__(self) -> None:
        self._rest, self._after_cr = b"", False
        self._joiner = CharacterJoiner()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield each event that these bytes complete; what says nothing is skipped."""
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ReplyTooLarge(f"An event of the answer has more than {MAX_EVENT_BYTES} bytes")
        for block in blocks:
            name, text = _fields_of(block)
            if text.strip() == DONE:
                yield from self._joiner.end()
                yield DONE
            elif "error" in name:
                yield from self._joiner.end()
                yield _named_error(text)
            elif text.strip().strip('"') not in _NOTHING and (name not in _KEEP_ALIVE or text.lstrip().startswith("{")):
                yield from self._joiner.parse(text)

    def end(self) -> Iterator[Any]:
        """Yield what is left where the stream ends, also without an empty line."""
        yield from self.feed(b"\n\n")
        yield from self._joiner.end()


def _fields_of(block: bytes) -> tuple[str, str]:
    """Return the name of an event and its data; both are empty for a comment."""
    try:
        if block.startswith(b"data: ") and b"\n" not in block:
            return "", block[6:].decode()
        # A stream may begin with a byte order mark.
        lines = [line.partition(":")[::2] for line in block.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError:
        raise UnreadableAnswer("an event is no UTF-8") from None
    values = {
        name: [value.removeprefix(" ") for field, value in lines if field == name]
        for name in ("event", "data", "error")
    }
    if values["error"]:
        # The field in which llama.cpp's server tells an error, before the event that ends the stream.
        return "error", "\n".join(values["error"])
    return (values["event"] or [""])[-1], "\n".join(values["data"])


def _named_error(text: str) -> Json:
    """Return the event that says what one named ``error`` does, whatever its data is."""
    try:
        return {"type": "error", "error": parse_json(text)}
    except UnreadableAnswer:
        return {"type": "error", "error": text}


#: The ends and states of an answer whose server failed, besides those that name an error, in the words of DeepSeek,
#: SGLang, Cohere and OpenAI's responses. What a filter leaves is an answer.
_FAILED: Final = frozenset({"insufficient_system_resource", "abort", "timeout", "failed", "cancelled"})
_FAILED_KINDS: Final = frozenset({"error", "response.failed", "response.error"})

#: Where an answer, or a part of one, says what failed; FastChat and Baidu write a code.
_ERRORS: Final = ("error", "errors", "error_code")


def error_in(answer: Json) -> object | None:
    """Return the error that an answer of status 200, or an event, holds; None where it holds none.

    One that is empty, or null in all its parts, is none.
    """
    failed: object = answer if answer.get("type") in _FAILED_KINDS or answer.get("object") == "error" else None
    choices = objects(answer.get("choices"))
    inner = [answer.get(name) for name in ("response", "delta")]
    inner += [choice.get(name) for choice in choices for name in ("message", "delta")]
    for part in (answer, *choices, *objects(inner)):
        for name in _ERRORS:
            if says_something(error := part.get(name)):
                return error if isinstance(error, str | dict | list) else part
        end = part.get("finish_reason") or part.get("stop_reason") or part.get("status")
        if isinstance(end, str) and (end.lower() in _FAILED or "error" in end.lower()):
            failed = failed or {"code": end}
    base = answer.get("base_resp")
    # MiniMax's way
    return base if isinstance(base, dict) and base.get("status_code") else failed


class AnswerStream(Protocol):
    """The events of one answer, put together."""

    @property
    def has_begun(self) -> bool:
        """Whether there was any event."""

    @property
    def is_complete(self) -> bool:
        """Whether the events say that the answer has ended, so that more of them are not needed."""

    def feed(self, event: Json) -> None:
        """Add the next event."""

    def answer(self) -> Json:
        """Return the answer so far."""

    def rest_of(self, whole: Json) -> Iterator[Json]:
        """Yield the events that this stream lacks of a whole answer. Raises `DifferentAnswer`."""


class _Reader(Protocol):
    def feed(self, event: Json) -> Iterator[Json]: ...


class _Writer(_Reader, Protocol):
    def end(self) -> Iterator[Json]: ...


STREAMS: Final[Mapping[ApiName, Callable[[], AnswerStream]]] = {
    "chat": ChatStream,
    "completions": ChatStream,
    "responses": ResponseStream,
    "messages": MessageStream,
}
_READERS: Final[Mapping[ApiName, Callable[[], _Reader]]] = {"responses": ResponseReader, "messages": MessageReader}
_WRITERS: Final[Mapping[ApiName, Callable[[], _Writer]]] = {
    "responses": ResponseEventWriter,
    "messages": MessageEventWriter,
}


class StreamTranslation:
    """Translates the events of an answer in one API to those of another; chunks of chat completions are between."""

    def __init__(self, source: ApiName, target: ApiName) -> None:
        self._reader = _READERS[source]() if source in _READERS else None
        self._writer = _WRITERS[target]() if target in _WRITERS else None
        self._stream = STREAMS[target]()

    def feed(self, event: Json) -> Iterator[Json]:
        """Yield the events that say the same as the next event."""
        for chunk in [event] if self._reader is None else self._reader.feed(event):
            yield from self._noted([chunk] if self._writer is None else self._writer.feed(chunk))

    def end(self) -> Iterator[Json]:
        """Yield the events that end the answer."""
        if self._writer is not None:
            yield from self._noted(self._writer.end())

    def answer(self) -> Json:
        """Return the translated answer, which is its events put together."""
        return self._stream.answer()

    def _noted(self, events: Iterable[Json]) -> Iterator[Json]:
        for event in events:
            self._stream.feed(event)
            yield event


def translate_answer(source: ApiName, target: ApiName, whole: Json) -> Json:
    """Return a whole answer of one API in the words of another."""
    translation = StreamTranslation(source, target)
    for event in STREAMS[source]().rest_of(whole):
        list(translation.feed(event))
    list(translation.end())
    return translation.answer()

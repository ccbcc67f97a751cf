"""Answers of each API, streamed and whole: one that is translated is translated event by event, in one way. No I/O.

A stream is kept as what its events say so far (`AnswerStream`). A whole answer is a stream of which nothing was sent
yet, so that reading, continuing and translating are written once for both, and each event is worked on once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from quintain.apis.chat import ChatStream
from quintain.apis.messages import MessageEventWriter, MessageReader, MessageStream
from quintain.apis.responses import ResponseEventWriter, ResponseReader, ResponseStream
from quintain.apis.translation import Json
from quintain.contracts.api_request import ApiName


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

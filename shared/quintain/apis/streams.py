"""Answers of each API: their server-sent events, and their translation, event by event and whole alike. No I/O.

A stream is kept as what its events say so far (`AnswerStream`). A whole answer is a stream of which nothing was sent
yet, so that reading, continuing and translating are written once for both, and each event is worked on once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NoReturn, Protocol

from pydantic_core import from_json

from quintain.apis.chat import ChatStream
from quintain.apis.messages import MessageEventWriter, MessageReader, MessageStream
from quintain.apis.responses import ResponseEventWriter, ResponseReader, ResponseStream
from quintain.apis.translation import Json
from quintain.contracts.api_request import ApiName
from quintain.errors import ReplyTooLarge

#: The event that ends a stream of OpenAI's, besides the API's own last event.
DONE = "[DONE]"

#: The longest event of a stream, in bytes.
MAX_EVENT_BYTES = 16 * 1024 * 1024


class EventReader:
    """Splits the bytes of a stream into the data of its events. Raises `ReplyTooLarge` for one that does not end."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield the data of each event that these bytes complete; comments and events without data are skipped."""
        self._rest = (self._rest + data).replace(b"\r\n", b"\n")
        *blocks, self._rest = self._rest.split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ReplyTooLarge(f"An event of the answer has more than {MAX_EVENT_BYTES} bytes")
        for block in blocks:
            if (text := _data_of(block)) is not None:
                yield text

    def end(self) -> Iterator[str]:
        """Yield the data of the last event, where the stream ends without an empty line."""
        return self.feed(b"\n\n")


def _data_of(block: bytes) -> str | None:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:].decode()
    # A stream may begin with a byte order mark.
    lines = [line for line in block.decode("utf-8-sig").split("\n") if line[:5] == "data:"]
    return "\n".join(line[5:].removeprefix(" ") for line in lines) if lines else None


def parse_json(text: str | bytes) -> object:
    """Parse the JSON of a provider.

    Raises `ValueError`, also for numbers that JSON does not have, and for deeper nesting than a reply may have.
    """
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise
        return _parse_slowly(text)


def _parse_slowly(text: str | bytes) -> object:
    """Parse what only Python reads: half of a surrogate pair, other encodings."""
    try:
        return _DECODER.decode(
            text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


#: One for all texts: `json.loads` makes a decoder for each where it has options.
_DECODER = json.JSONDecoder(parse_constant=_reject)


def parse_event(text: str) -> Json:
    """Parse the data of one event. Raises `ValueError` for what is no JSON object."""
    event = parse_json(text)
    if not isinstance(event, dict):
        raise ValueError("an event is a JSON object")  # noqa: TRY004 -- a wrong value
    return event


def error_in(answer: Json) -> object | None:
    """Return the error that an answer of status 200, or an event, holds; None where it holds none."""
    if answer.get("type") in {"error", "response.failed"}:
        response = answer.get("response")
        return (response.get("error") if isinstance(response, dict) else answer.get("error")) or answer
    error = answer.get("error")
    is_failed = answer.get("status") == "failed" or not {"choices", "output", "content", "data"} & answer.keys()
    return error if error and is_failed else None


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

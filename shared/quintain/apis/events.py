"""Server-sent events of OpenAI's and Anthropic's APIs, read from the bytes of a stream. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NoReturn

from pydantic_core import from_json

from quintain.apis.translation import Json
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
    """Parse the JSON of a provider. Raises `ValueError`, also for numbers that JSON does not have."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return _parse_slowly(text)


def _parse_slowly(text: str | bytes) -> object:
    """Parse what only Python reads: half of a surrogate pair, other encodings, deep nesting."""
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

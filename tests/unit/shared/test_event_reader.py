"""Server-sent events, however a server writes them and wherever its pieces end."""

from __future__ import annotations

import pytest

from quintain.apis.streams import EventReader

TEXTS = ['{"a": 1}', "é🏇", "[DONE]"]

#: The same three events, as servers write them.
WRITTEN = {
    "plainly": "data: {}\n\ndata: {}\n\ndata: {}\n\n",
    "without a space": "data:{}\n\ndata:{}\n\ndata:{}\n\n",
    "with CRLF": "data: {}\r\n\r\ndata: {}\r\n\r\ndata: {}\r\n\r\n",
    "after a byte order mark": "\ufeffdata: {}\n\ndata: {}\n\ndata: {}\n\n",
    "with names and ids": "event: a\ndata: {}\nid: 1\n\nevent: b\ndata: {}\n\ndata: {}\nretry: 5\n\n",
    "between comments": ": hello\n\ndata: {}\n\n: ping\n\n\n\ndata: {}\n\nevent: nothing\n\ndata: {}\n\n: bye\n\n",
    "without the last empty line": "data: {}\n\ndata: {}\n\ndata: {}\n",
}


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("way", WRITTEN)
def test_events_are_read_however_they_are_written(way: str, size: int) -> None:
    parts = WRITTEN[way].split("{}")
    written = "".join(part + text for part, text in zip(parts, [*TEXTS, ""], strict=True)).encode()
    reader = EventReader()
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    assert [*(text for piece in pieces for text in reader.feed(piece)), *reader.end()] == TEXTS

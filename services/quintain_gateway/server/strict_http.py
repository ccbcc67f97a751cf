"""One connection of h11, which refuses ambiguous request heads and sends a head together with its body.

Other programs on the way may read such heads differently: the ways of request smuggling. h11 accepts three forms that
RFC 9112 lets a server refuse: lines that end with a bare LF, header lines that are folded, and a request with both
Content-Length and Transfer-Encoding. A target in absolute form, as clients write it to proxies, is read as RFC
9112 §3.2.2 says: its path is the request's, and its host takes the place of the header's.
"""

from __future__ import annotations

import re

from h11 import IDLE, NEED_DATA, PAUSED, SERVER, Connection, Event, RemoteProtocolError, Request, Response

_ABSOLUTE_FORM = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE)

#: The line break before a folded line, or a line break without its CR.
_AMBIGUOUS_LINES = re.compile(rb"\n[ \t]|(?<!\r)\n")

_LENGTH_HEADERS = {b"content-length", b"transfer-encoding"}


class StrictConnection(Connection):
    """The server's side of a connection; ``max_head_bytes`` is the size up to which it waits for the end of a head."""

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(SERVER, max_head_bytes)
        self._unsent_head = b""

    def next_event(self) -> Event | type[NEED_DATA] | type[PAUSED]:
        """Return the next event of what was received. Raises `RemoteProtocolError` for an ambiguous head."""
        received = self.trailing_data[0] if self.their_state is IDLE else b""
        event = super().next_event()
        if not isinstance(event, Request):
            return event
        _check_head(received[: len(received) - len(self.trailing_data[0])], event)
        absolute = _ABSOLUTE_FORM.fullmatch(event.target)
        return event if absolute is None else _to_origin_form(event, *absolute.groups())

    def send(self, event: Event) -> bytes | None:  # type: ignore[override]
        """Return the bytes of an event; those of a head with a Content-Length come with what follows it.

        uvicorn writes the bytes of each event at once. A body of known length follows its head immediately, so both
        leave in one system call and mostly one packet.
        """
        sent = super().send(event)
        if sent is None:
            return None
        if isinstance(event, Response) and any(name == b"content-length" for name, _ in event.headers):
            self._unsent_head = sent
            return b""
        head, self._unsent_head = self._unsent_head, b""
        return head + sent


def _to_origin_form(request: Request, host: bytes, path: bytes) -> Request:
    return Request(
        method=request.method,
        target=path if path.startswith(b"/") else b"/" + path,
        headers=[(name, host if name == b"host" else value) for name, value in request.headers],
        http_version=request.http_version,
    )


def _check_head(head: bytes, request: Request) -> None:
    if _AMBIGUOUS_LINES.search(head):
        raise RemoteProtocolError("a line of the head ends with a bare LF, or is folded")
    if _LENGTH_HEADERS.issubset(name for name, _ in request.headers):
        raise RemoteProtocolError("the request has both Content-Length and Transfer-Encoding")

"""One connection of h11, which refuses ambiguous request heads and sends a head together with its body.

Other programs on the way may read such heads differently: the ways of request smuggling. h11 accepts three forms that
RFC 9112 lets a server refuse: lines that end with a bare LF, header lines that are folded, and a request with both
Content-Length and Transfer-Encoding.
"""

from __future__ import annotations

from h11 import SERVER, Connection, Event, RemoteProtocolError, Response
from h11._receivebuffer import ReceiveBuffer

_LENGTH_HEADERS = (b"content-length", b"transfer-encoding")


class StrictConnection(Connection):
    """The server's side of a connection; ``max_head_bytes`` is the size up to which it waits for the end of a head."""

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(SERVER, max_head_bytes)
        self._receive_buffer = StrictReceiveBuffer()  # h11 has no setting for it
        self._unsent_head = b""

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


class StrictReceiveBuffer(ReceiveBuffer):
    """h11's buffer of received bytes, which refuses such heads before h11 parses them."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a complete head, or None. Raises `RemoteProtocolError` for an ambiguous one."""
        if not self:
            return None  # h11 asks again after each response
        received = bytes(self)
        lines: list[bytearray] | None = super().maybe_extract_lines()
        if lines is not None:
            _check_head(received[: len(received) - len(self)], lines)
        return lines


def _check_head(head: bytes, lines: list[bytearray]) -> None:
    if head.count(b"\n") != head.count(b"\r\n"):
        raise RemoteProtocolError("a line of the head ends with a bare LF")
    if any(line.startswith((b" ", b"\t")) for line in lines):
        raise RemoteProtocolError("a header line is folded")
    names = {bytes(line.partition(b":")[0]).lower() for line in lines[1:]}
    if names.issuperset(_LENGTH_HEADERS):
        raise RemoteProtocolError("the request has both Content-Length and Transfer-Encoding")

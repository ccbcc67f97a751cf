"""Refuses request heads that other programs on the way may read differently: the ways of request smuggling.

h11 accepts three forms that RFC 9112 lets a server refuse: lines that end with a bare LF, header lines that are
folded, and a request with both Content-Length and Transfer-Encoding.
"""

from __future__ import annotations

from h11 import RemoteProtocolError
from h11._receivebuffer import ReceiveBuffer

_LENGTH_HEADERS = (b"content-length", b"transfer-encoding")


class StrictReceiveBuffer(ReceiveBuffer):
    """h11's buffer of received bytes, which refuses such heads before h11 parses them."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a complete head, or None. Raises `RemoteProtocolError` for an ambiguous one."""
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

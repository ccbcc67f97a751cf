"""Reads the version of a RabbitMQ from the first two frames of AMQP 0-9-1, over a plain socket, without a login."""

from __future__ import annotations

import re
import socket
import ssl
from urllib.parse import urlsplit

_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
#: Connection.Start on channel 0: frame type 1, then class 10 and method 10 behind the length.
_START = re.compile(rb"\x01\x00\x00.{4}\x00\x0a\x00\x0a", re.DOTALL)
#: A short string among the server's properties: its name, `S`, four bytes of length.
_VERSION = re.compile(rb"\x07versionS\x00\x00\x00(.)", re.DOTALL)
_ENOUGH_BYTES = 2048


def read_version(url: str, *, timeout_seconds: float = 5.0) -> str:
    """Return the version of the broker at this AMQP URL. Raises `OSError` where none answers within the time."""
    parts = urlsplit(url)
    host, tls = parts.hostname or "localhost", parts.scheme == "amqps"
    with socket.create_connection((host, parts.port or (5671 if tls else 5672)), timeout=timeout_seconds) as plain:
        if not tls:
            return _handshake(plain)
        with ssl.create_default_context().wrap_socket(plain, server_hostname=host) as secured:
            return _handshake(secured)


def _handshake(connection: socket.socket) -> str:
    connection.sendall(_PROTOCOL_HEADER)
    received = b""
    while len(received) < _ENOUGH_BYTES and not _VERSION.search(received):
        more = connection.recv(_ENOUGH_BYTES)
        if not more:
            break
        received += more
    if not _START.match(received):
        raise ConnectionError("what listens there does not speak AMQP 0-9-1")
    found = _VERSION.search(received)
    return received[found.end() : found.end() + found[1][0]].decode("ascii", "replace") if found else "unknown"

"""Whether a RabbitMQ answers, and which: the first two frames of AMQP 0-9-1, over a plain socket.

No client library: a listening port may belong to anybody, and nothing here needs a login.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from quintain.errors import BrokerUnavailable

_GREETING = b"AMQP\x00\x00\x09\x01"
#: Connection.Start on channel 0: frame type 1, then the class and method 10.10 behind the length.
_START = re.compile(rb"\x01\x00\x00.{4}\x00\x0a\x00\x0a", re.DOTALL)
#: A short string among the server's properties: its name, `S`, four bytes of length.
_VERSION = re.compile(rb"\x07versionS\x00\x00\x00(.)", re.DOTALL)
_ENOUGH_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens. Prints without the login that its URL holds."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def address_of(url: str) -> Address:
    """The address in an AMQP URL. Raises `ValueError` where it is none."""
    parts = urlsplit(url)
    if parts.scheme not in {"amqp", "amqps"}:
        raise ValueError("a broker's URL starts with amqp:// or amqps://")
    tls = parts.scheme == "amqps"
    try:
        port = parts.port
    except ValueError:
        # Its own message shows a piece of the URL, and that may be of the password.
        raise ValueError("the port behind the broker's host is not a number") from None
    return Address(parts.hostname or "localhost", port or (5671 if tls else 5672), tls)


def read_version(address: Address, *, timeout_seconds: float = 5.0) -> str:
    """The version of the broker that answers there. Raises `OSError` where none does in this time."""
    with socket.create_connection((address.host, address.port), timeout=timeout_seconds) as plain:
        if not address.tls:
            return _greet(plain)
        with ssl.create_default_context().wrap_socket(plain, server_hostname=address.host) as secured:
            return _greet(secured)


def wait_for_version(address: Address, *, timeout_seconds: float, alive: Callable[[], bool] = lambda: True) -> str:
    """The broker's version as soon as it answers. Raises `BrokerUnavailable` when it ended or the time is up."""
    until = time.monotonic() + timeout_seconds
    while True:
        try:
            return read_version(address)
        except OSError as error:
            if not alive():
                raise BrokerUnavailable(f"the broker ended before it answered at {address}") from error
            if time.monotonic() > until:
                raise BrokerUnavailable(f"no broker answered at {address} for {timeout_seconds:g} s") from error
        time.sleep(0.1)


def _greet(connection: socket.socket) -> str:
    connection.sendall(_GREETING)
    said = b""
    while len(said) < _ENOUGH_BYTES and not _VERSION.search(said):
        more = connection.recv(_ENOUGH_BYTES)
        if not more:
            break
        said += more
    if not _START.match(said):
        raise ConnectionError("what listens there does not speak AMQP 0-9-1")
    found = _VERSION.search(said)
    return said[found.end() : found.end() + found[1][0]].decode("ascii", "replace") if found else "unknown"

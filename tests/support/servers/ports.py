"""Free ports on the loopback."""

from __future__ import annotations

import contextlib
import secrets
import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return a port that nothing listens on, below the range of ports for outgoing connections."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port

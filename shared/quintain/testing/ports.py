"""Ports on the loopback for servers that tests start."""

from __future__ import annotations

import contextlib
import secrets
import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port that nothing listens on, below those that the kernel lends to outgoing connections."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port

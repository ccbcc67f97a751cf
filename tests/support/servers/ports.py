"""Free ports on the loopback."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections import deque

from quintain.settings import environment

LOOPBACK = "127.0.0.1"

#: The ports from which each process of pytest-xdist takes its own: two that took the same one, before a server of the
#: first listens on it, would fail.
FIRST_PORT, PORTS_OF_A_PROCESS, PROCESSES = 20_000, 1_250, 8

#: What this process was given last, and may not listen on yet.
_given: deque[int] = deque(maxlen=PORTS_OF_A_PROCESS // 4)


def free_port() -> int:
    """Return a port that nothing listens on, below the range of ports for outgoing connections."""
    process = int(environment().get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
    while True:
        port = FIRST_PORT + process * PORTS_OF_A_PROCESS + secrets.randbelow(PORTS_OF_A_PROCESS)
        if port in _given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            _given.append(port)
            return port


def is_open(port: int) -> bool:
    """Return whether something listens on this port."""
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0

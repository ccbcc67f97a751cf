"""Stops and starts a PostgreSQL that belongs to the test run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from support.servers.kind import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresAdmin:
    """Stops and starts one server. Every call blocks, for seconds at times.

    ``crash`` ends the server as a power failure would: it closes every connection, finishes nothing, and recovers at
    its next start. ``stop`` closes every connection too, and leaves the data in order. ``kill`` is SIGKILL for its
    first process. ``start`` starts it at the same address and returns when it answers.
    """

    crash: Callable[[], object]
    stop: Callable[[], object]
    kill: Callable[[], object]
    start: Callable[[], object]


#: ``url`` opens a database that exists, as a user that may create others.
PostgresUnderTest = Server[PostgresAdmin]

"""Limits of one gateway: sizes of requests, timeouts and the number of connections."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """The limits of a gateway. With these, one process holds about 1 GiB of bodies at the very worst."""

    #: Of one request; workers take no larger one (``protocol.md`` §2).
    max_body_bytes: int = 1024 * 1024
    #: Of one request's line and headers together.
    max_header_bytes: int = 16 * 1024
    #: Open at the same time; one more is answered 503 and closed.
    max_connections: int = 1000
    #: From the first byte (for a new connection: from its opening) to the end of the headers.
    header_timeout_seconds: float = 10.0
    #: From the headers to the end of the body.
    body_timeout_seconds: float = 30.0
    #: A client that waits for a target hears something this often: proxies cut what is silent for a minute.
    keep_alive_seconds: float = 15.0
    #: A connection that asks nothing is kept this long.
    idle_timeout_seconds: int = 30
    #: Asked to stop, it answers what runs for so long.
    grace_seconds: float = 5.0

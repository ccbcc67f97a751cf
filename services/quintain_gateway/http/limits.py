"""Limits of one gateway: sizes of requests, timeouts and the number of connections."""

from __future__ import annotations

from dataclasses import dataclass

from quintain.contracts.message import DEFAULT_REQUEST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """The limits of a gateway. With the defaults, one process holds at most about 1.5 GiB of request bodies."""

    #: Maximum size of a request body, in bytes, unless its session was opened with a larger one.
    max_body_bytes: int = DEFAULT_REQUEST_BYTES
    #: Maximum size of all larger bodies together, in bytes; a request for which no room is left is answered with 503.
    max_large_bodies_bytes: int = 512 * 1024 * 1024
    #: Maximum size of the request line and headers together, in bytes.
    max_header_bytes: int = 16 * 1024
    #: Maximum number of open connections; a further one is answered with 503 and closed.
    max_connections: int = 1000
    #: Maximum number of requests that one session makes at once; a further one is answered with 503.
    max_session_requests: int = 500
    #: Timeout from the first byte of a request (or from the connection's opening) to the end of the headers.
    header_timeout_seconds: float = 10.0
    #: Timeout from the headers to the end of the body.
    body_timeout_seconds: float = 30.0
    #: How long a stream waits for its first text before status 200 is sent, and the interval of keep-alive bytes after
    #: that; proxies often close connections that idle for a minute.
    keep_alive_seconds: float = 15.0
    #: How long a whole answer holds the status line; then it is 504. Node's fetch gives up at 300 s.
    answer_seconds: float = 280.0
    #: Send status 200 after ``keep_alive_seconds`` for whole answers too, and newlines until the body.
    early_status: bool = False
    #: How long a call goes on after a client that retries has disconnected; their retries come within 8 s.
    retry_window_seconds: float = 10.0
    #: Timeout for a connection without a request.
    idle_timeout_seconds: int = 30
    #: How long running requests may take after the gateway was told to stop.
    grace_seconds: float = 5.0

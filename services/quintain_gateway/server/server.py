"""Serves the gateway's application with uvicorn, inside a process that owns its own signal handlers."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import ASGIApp

from quintain.runtime.http_server import serve_uvicorn
from quintain_gateway.http.limits import GatewayLimits
from quintain_gateway.metrics import GatewayMetrics
from quintain_gateway.server.bind import BindAddress
from quintain_gateway.server.connection_limits import LimitedH11Protocol, SharedConnectionState


@contextlib.asynccontextmanager
async def serve_app(
    app: ASGIApp, address: BindAddress, limits: GatewayLimits, metrics: GatewayMetrics
) -> AsyncIterator[str]:
    """Serve the application; yields its base URL, without a trailing slash.

    On exit, no connection is accepted any more, and running requests may take up to ``limits.grace_seconds``. Raises
    `ConfigError` if the address must not or cannot be opened.
    """
    tls = address.ssl_context()
    protocol: Any = functools.partial(LimitedH11Protocol, SharedConnectionState(limits, metrics))
    listener = address.open_socket()
    async with serve_uvicorn(
        listener,
        app,
        "gateway",
        http=protocol,
        h11_max_incomplete_event_size=limits.max_header_bytes,
        timeout_keep_alive=limits.idle_timeout_seconds,
        timeout_graceful_shutdown=math.ceil(limits.grace_seconds),
        ssl_context_factory=None if tls is None else lambda *_: tls,
    ):
        yield address.url(listener)

"""Serving the gateway at an address, inside a process that has more to do."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from quintain.operations.listening import BACKLOG
from quintain.operations.serving import serving_on
from quintain_gateway.address import Address
from quintain_gateway.guard import Guard, GuardedProtocol
from quintain_gateway.limits import Limits
from quintain_gateway.metrics import GatewayMetrics


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, address: Address, limits: Limits, metrics: GatewayMetrics) -> AsyncIterator[str]:
    """Serve the app; yields its base URL, without a slash at its end. Afterwards nothing new is taken, and what runs
    is answered within the grace.

    Raises `ConfigError` where the address may not or cannot be opened.
    """
    tls = address.tls()
    protocol: Any = functools.partial(GuardedProtocol, Guard(limits, metrics))
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        # Neither who we are nor whom a proxy speaks for is anybody's business here.
        server_header=False,
        proxy_headers=False,
        workers=1,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=limits.most_head_bytes,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=math.ceil(limits.grace_seconds),
        ssl_context_factory=None if tls is None else lambda *_: tls,
    )
    listener = address.listen()
    async with serving_on(listener, config, "gateway"):
        yield address.url(listener)

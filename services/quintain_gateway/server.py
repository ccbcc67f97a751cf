"""Serving the gateway at an address, inside a process that has more to do."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from quintain_gateway.address import BACKLOG, Address
from quintain_gateway.guard import Guard, GuardedProtocol
from quintain_gateway.limits import Limits
from quintain_gateway.meter import Meter

#: What was cut off when the grace was over gets so long for its last word.
LAST_WORD_SECONDS = 2.0


class _Server(uvicorn.Server):
    """uvicorn without its hands on the process's signals: who composes the process owns them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, address: Address, limits: Limits, meter: Meter) -> AsyncIterator[str]:
    """Serve the app; yields its base URL, without a slash at its end. Afterwards nothing new is taken, and what runs
    is answered within the grace.

    Raises `ConfigError` where the address may not or cannot be opened.
    """
    tls = address.tls()
    protocol: Any = functools.partial(GuardedProtocol, Guard(limits, meter))
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
    server = _Server(config)
    listener = address.listen()
    url = address.url(listener)
    running = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]), name="gateway")
    try:
        yield url
    finally:
        server.should_exit = True
        await asyncio.wait([running])
        if server.server_state.tasks:
            await asyncio.wait(server.server_state.tasks, timeout=LAST_WORD_SECONDS)
        listener.close()

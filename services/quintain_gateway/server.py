"""Serving the gateway on a port, inside a process that has more to do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.applications import Starlette

from quintain.errors import ConfigError

LOOPBACK = "127.0.0.1"


class _Server(uvicorn.Server):
    """uvicorn without its hands on the process's signals: who composes the process owns them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: Starlette, *, host: str = LOOPBACK, port: int = 0) -> AsyncIterator[str]:
    """Serve the app; yields its base URL, without a slash at its end. Port 0 takes a free one.

    Raises `ConfigError` where the port is taken.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Port {port} of {host} cannot be opened ({error.strerror}): choose another with --port"
        ) from None
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=5)
    server = _Server(config)
    running = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait([running])
        listener.close()

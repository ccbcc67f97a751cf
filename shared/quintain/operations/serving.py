"""uvicorn inside a process that has more to do: begun on a socket, ended within its grace."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn

#: What was cut off when the grace was over gets so long for its last word.
LAST_WORD_SECONDS = 2.0


class _Server(uvicorn.Server):
    """uvicorn without its hands on the process's signals: who composes the process owns them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving_on(listener: socket.socket, config: uvicorn.Config, name: str) -> AsyncIterator[None]:
    """Serve while inside. Afterwards nothing new is taken, and what runs is answered within the configured grace."""
    server = _Server(config)
    running = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]), name=name)
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait([running])
        if server.server_state.tasks:
            await asyncio.wait(server.server_state.tasks, timeout=LAST_WORD_SECONDS)
        listener.close()

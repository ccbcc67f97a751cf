"""SIGTERM and SIGINT: a running service drains; one that is still starting just stops."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator


class Stop:
    """The wish to stop."""

    def __init__(self) -> None:
        self._wished = asyncio.Event()
        self._waiting = False

    async def wait(self) -> None:
        """Wait for the wish; from here on a signal is one."""
        self._waiting = True
        await self._wished.wait()

    def wish(self) -> bool:
        """Whether somebody waits for it."""
        self._wished.set()
        return self._waiting


@contextlib.asynccontextmanager
async def stopping() -> AsyncIterator[Stop]:
    """Hear signals while inside."""
    loop, task, stop = asyncio.get_running_loop(), asyncio.current_task(), Stop()
    assert task is not None

    def heard() -> None:
        if not stop.wish():
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heard)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

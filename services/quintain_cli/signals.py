"""SIGTERM and SIGINT: a running service drains, a starting one stops at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator


class StopSignal:
    """The wish to stop."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._is_awaited = False

    async def wait(self) -> None:
        """Wait for the wish; from here on a signal is one."""
        self._is_awaited = True
        await self._requested.wait()

    def request(self) -> bool:
        """Whether somebody waits for it."""
        self._requested.set()
        return self._is_awaited


@contextlib.asynccontextmanager
async def handle_stop_signals() -> AsyncIterator[StopSignal]:
    """Hear signals while inside."""
    loop, task, stop = asyncio.get_running_loop(), asyncio.current_task(), StopSignal()
    assert task is not None

    def on_signal() -> None:
        if not stop.request():
            task.cancel()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, on_signal)
    try:
        yield stop
    finally:
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signal_number)

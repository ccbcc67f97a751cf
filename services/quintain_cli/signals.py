"""SIGTERM and SIGINT: a running service drains, a starting one stops at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator


class StopSignal:
    """An event that is set when the process is asked to stop."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._is_awaited = False

    async def wait(self) -> None:
        """Wait until a stop is requested."""
        self._is_awaited = True
        await self._requested.wait()

    def request(self) -> bool:
        """Request the stop. Returns False if nothing waits for it yet."""
        self._requested.set()
        return self._is_awaited


@contextlib.asynccontextmanager
async def handle_stop_signals() -> AsyncIterator[StopSignal]:
    """Handle SIGTERM and SIGINT inside the context; yields the `StopSignal` that they set.

    While nothing waits for it, a signal cancels the current task instead.
    """
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

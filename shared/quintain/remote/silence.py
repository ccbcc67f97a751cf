"""Measures for how long the other side of a lease was silent."""

from __future__ import annotations

import asyncio


class SilenceMeter:
    """Measures a silence in intervals, without the time in which this process itself did not run.

    A process that was stopped, or whose interpreter's lock was held, has messages waiting that it has not read yet.
    """

    def __init__(self, interval_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._interval_seconds = interval_seconds
        self._heard_at = self._loop.time()

    def record(self) -> None:
        """Record that a message of the other side has just arrived."""
        self._heard_at = self._loop.time()

    async def wait_interval(self, event: asyncio.Event | None = None) -> float:
        """Wait for one interval, or for the event; return the silence since the last message, in seconds."""
        slept_at = self._loop.time()
        try:
            async with asyncio.timeout(self._interval_seconds):
                await (asyncio.Event() if event is None else event).wait()
        except TimeoutError:
            stalled_seconds = self._loop.time() - slept_at - self._interval_seconds
            if stalled_seconds > self._interval_seconds:
                self._heard_at += stalled_seconds
        return max(0.0, self._loop.time() - self._heard_at)

"""Time limits for many waits that share one timer of the event loop."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from types import TracebackType

#: Limits that have ended are removed from the heap when there are so many of them, and they are half of it.
MIN_REMOVED = 100


class Timeouts:
    """Limits waits as `asyncio.timeout` does, which makes a timer of the event loop for each of them.

    Most waits end long before their limit; then a limit costs two method calls and an entry in a heap. An instance
    belongs to one event loop.

    Example::

        with timeouts.limit(30.0):
            await reply
    """

    def __init__(self) -> None:
        self._limits: list[tuple[float, int, _Limit]] = []
        self._numbers = itertools.count()
        self._ended_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def limit(self, seconds: float) -> _Limit:
        """Return a context manager whose body is cancelled after ``seconds``; it then raises `TimeoutError`."""
        return _Limit(self, seconds)

    def start(self, limit: _Limit, ends_at: float) -> None:
        """Start a limit that ends at this time of the event loop."""
        heapq.heappush(self._limits, (ends_at, next(self._numbers), limit))
        if ends_at < self._timer_at:
            self._set_timer(ends_at)

    def note_ended(self) -> None:
        """Note that a started limit has ended."""
        self._ended_count += 1
        if self._ended_count > MIN_REMOVED and self._ended_count * 2 > len(self._limits):
            self._limits = [entry for entry in self._limits if entry[2].is_active]
            heapq.heapify(self._limits)
            self._ended_count = 0

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._expire)
        self._timer_at = at

    def _expire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = asyncio.get_running_loop().time()
        while self._limits and (self._limits[0][0] <= now or not self._limits[0][2].is_active):
            # Those that have ended were counted; one that expires is counted when its body ends.
            self._ended_count -= 1
            heapq.heappop(self._limits)[2].expire()
        if self._limits:
            self._set_timer(self._limits[0][0])


class _Limit:
    """The limit of one wait."""

    __slots__ = ("_cancelling_before", "_is_expired", "_seconds", "_task", "_timeouts")

    def __init__(self, timeouts: Timeouts, seconds: float) -> None:
        self._timeouts, self._seconds = timeouts, seconds
        self._task: asyncio.Task[object] | None = None
        self._cancelling_before = 0
        self._is_expired = False

    @property
    def is_active(self) -> bool:
        """Whether its body runs."""
        return self._task is not None

    def expire(self) -> None:
        """Cancel the body, if it still runs."""
        if self._task is not None:
            self._is_expired = True
            self._task.cancel()

    def __enter__(self) -> None:
        self._task = task = asyncio.current_task()
        assert task is not None, "a limited wait is part of a task"
        self._cancelling_before = task.cancelling()
        self._timeouts.start(self, asyncio.get_running_loop().time() + self._seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self._timeouts.note_ended()
        if not self._is_expired or task is None:
            return
        if task.uncancel() <= self._cancelling_before and kind is asyncio.CancelledError:
            raise TimeoutError from error

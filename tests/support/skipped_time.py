"""A loop's clock that skips what nothing happens in: how long something took is exact, however busy the machine is."""

from __future__ import annotations

import asyncio
from typing import Any


def skip_waits() -> None:
    """From now on, where the running loop would wait for its next timer, its clock is set forward to that.

    Only for tests without threads and processes, and with sockets only between tasks of this loop.
    """
    loop: Any = asyncio.get_running_loop()
    select, now = loop._selector.select, loop.time()

    def select_or_skip(timeout: float | None) -> list[Any]:
        nonlocal now
        # What was written to a socket of this loop is there at once, or in a moment.
        events: list[Any] = select(timeout and min(timeout, 0.001))
        if not events and timeout:
            now += timeout
        return events

    loop.time, loop._selector.select = lambda: now, select_or_skip

"""The time limits of a driver of hosted targets, and the meter of the other side's silence."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTimeouts:
    """How long a driver waits, in seconds; None waits without a limit. Raises `ValueError` for a value of 0 or less.

    - ``slot_seconds``: for a free slot, until a host begins to create the instance.
    - ``boot_seconds``: for the instance, while its host is heard.
    - ``run_seconds``: for the end of a run; then it is cancelled, and `TimeoutError` is raised.
    - ``event_seconds``: for the controller's response to one event; then `TimeoutError` is raised in the target.
    - ``request_seconds``: for a `set_config`, `query`, reset, teardown or description; then `TimeoutError` is raised,
      and the instance can only be torn down.

    Example::

        remote_factory("sandbox", timeouts=TargetTimeouts(boot_seconds=1800, run_seconds=3600))
    """

    slot_seconds: float = 60.0
    boot_seconds: float = 600.0
    run_seconds: float | None = 6 * 3600.0
    event_seconds: float | None = 3600.0
    request_seconds: float | None = 600.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            seconds = getattr(self, field.name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{field.name} must be more than 0")


#: The defaults.
DEFAULT_TIMEOUTS = TargetTimeouts()


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

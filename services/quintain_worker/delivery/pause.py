"""Tracks until when a target is paused: by its provider for this worker, and by the ledger for the whole fleet.

A pause is measured on this process's monotonic clock. Each answer of the ledger sets it to the remaining time on the
ledger's clock, so differences between machines' clocks do not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from quintain.timings import DEFAULT_TIMINGS, Timings


class Notification:
    """Wakes all tasks that wait for a change; each of them then checks the state itself."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify_all(self) -> None:
        """Wake all tasks that wait now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Return at the next notification, or after ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


class PauseState:
    """The pause of one target, as this worker knows it.

    ``report`` is called with the seconds of each pause that the target's provider asks for. A pause of up to
    `Timings.shared_pause_seconds` is not reported and delays only the throttled call: other workers would learn of it
    with their next heartbeat, after its end.
    """

    def __init__(self, report: Callable[[float], None] = lambda _: None, timings: Timings = DEFAULT_TIMINGS) -> None:
        self._report, self._timings = report, timings
        self._provider_until = self._ledger_until = -math.inf
        self.changed = Notification()
        self.stopping = False

    @property
    def remaining_seconds(self) -> float:
        """Seconds until the target may be called; 0 where it is not paused."""
        until = max(self._provider_until, self._ledger_until)
        return 0.0 if until == -math.inf else max(0.0, until - asyncio.get_running_loop().time())

    @property
    def exceeds_hold_limit(self) -> bool:
        """Whether the pause is so long that calls must return to their queue instead of waiting here."""
        return self.holds_no_longer(self.remaining_seconds)

    def holds_no_longer(self, seconds: float) -> bool:
        """Whether a wait of this many seconds is too long for holding a call in this worker."""
        return seconds > self._timings.held_call_seconds

    def pause_for(self, seconds: float) -> None:
        """Pause the target because its provider answered with a retry-after of this many seconds."""
        until = asyncio.get_running_loop().time() + seconds
        if seconds <= self._timings.shared_pause_seconds or until <= self._provider_until:
            return
        self._provider_until = until
        self._report(seconds)
        self.changed.notify_all()

    def apply_ledger_pause(self, seconds: float | None, *, is_reported: bool = False) -> None:
        """Set the fleet-wide pause to this many remaining seconds, or end it with None.

        ``is_reported`` means that the ledger knows every pause this worker's provider asked for; its answer then
        replaces the provider's pause too, so that an administrator's resume ends both.
        """
        if is_reported:
            self._provider_until = -math.inf
        if seconds is None:
            self._ledger_until = -math.inf
        else:
            self._ledger_until = asyncio.get_running_loop().time() + seconds
        self.changed.notify_all()

    def stop(self) -> None:
        """Stop holding calls for the end of a pause: the worker stops."""
        self.stopping = True
        self.changed.notify_all()

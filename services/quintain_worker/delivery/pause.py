"""Until when a target is paused: by its provider's answer to this worker, and by the ledger for the whole fleet.

A pause is measured on this process's monotonic clock. Each answer of the ledger sets it to the remaining time on
the ledger's clock, so differences between machines' clocks do not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from quintain.timings import DEFAULT_TIMINGS, Timings


class Notification:
    """Wakes everybody who waits for news; each looks for itself what it is."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify_all(self) -> None:
        """Wake who waits now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Return at the next ring, or after this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


class PauseState:
    """One target's pause, as this worker knows it. ``report`` passes on what its provider asked for, in seconds.

    A wait of up to `Timings.shared_pause_seconds` is the throttled call's own: the others hear of a pause with their
    next heartbeat, when it would be over already.
    """

    def __init__(self, report: Callable[[float], None] = lambda _: None, timings: Timings = DEFAULT_TIMINGS) -> None:
        self._report, self._timings = report, timings
        self._provider_until = self._ledger_until = -math.inf
        self.changed = Notification()
        self.stopping = False

    @property
    def remaining_seconds(self) -> float:
        """Seconds for which nobody may call the target; 0 where it may be called."""
        return max(0.0, max(self._provider_until, self._ledger_until) - asyncio.get_running_loop().time())

    @property
    def exceeds_hold_limit(self) -> bool:
        """Whether what waits for the target is to be given back rather than held."""
        return self.holds_no_longer(self.remaining_seconds)

    def holds_no_longer(self, seconds: float) -> bool:
        """Whether a call that must wait for this long is to be given back."""
        return seconds > self._timings.held_call_seconds

    def pause_for(self, seconds: float) -> None:
        """The provider asked this worker to come again after this long."""
        until = asyncio.get_running_loop().time() + seconds
        if seconds <= self._timings.shared_pause_seconds or until <= self._provider_until:
            return
        self._provider_until = until
        self._report(seconds)
        self.changed.notify_all()

    def apply_ledger_pause(self, seconds: float | None, *, is_reported: bool = False) -> None:
        """The ledger's word: the fleet's pause lasts this much longer, or there is none. ``is_reported``: it knows
        what this worker's own provider asked for, so that its word is the only one, and an administrator's word ends
        both."""
        if is_reported:
            self._provider_until = -math.inf
        if seconds is None:
            self._ledger_until = -math.inf
        else:
            self._ledger_until = asyncio.get_running_loop().time() + seconds
        self.changed.notify_all()

    def stop(self) -> None:
        """The worker stops: nothing is held for the end of a pause any more."""
        self.stopping = True
        self.changed.notify_all()

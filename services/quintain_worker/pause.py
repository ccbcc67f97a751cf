"""When a target may be called again: what its provider asked for here, and what the ledger says of the whole fleet.

A pause is kept in this process's own running time, and is set anew by every answer of the ledger as what is left of
it by the ledger's clock: no machine's clock, and no leap of one, makes it longer or shorter.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from quintain.timings import DEFAULT_TIMINGS, Timings


class Bell:
    """Wakes everybody who waits for news; each looks for itself what it is."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake who waits now."""
        self._rung.set()
        self._rung = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Return at the next ring, or after this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()


class Pause:
    """One target's pause, as this worker knows it. ``tell`` passes on what its provider asked for, in seconds.

    A wait of up to `Timings.shared_pause_seconds` is the throttled call's own: the others hear of a pause with their
    next heartbeat, when it would be over already.
    """

    def __init__(self, tell: Callable[[float], None] = lambda _: None, timings: Timings = DEFAULT_TIMINGS) -> None:
        self._tell, self._timings = tell, timings
        self._asked_until = self._heard_until = -math.inf
        self.news = Bell()
        self.stopping = False

    @property
    def left(self) -> float:
        """Seconds for which nobody may call the target; 0 where it may be called."""
        return max(0.0, max(self._asked_until, self._heard_until) - asyncio.get_running_loop().time())

    @property
    def too_long(self) -> bool:
        """Whether what waits for the target is to be given back rather than held."""
        return self.holds_no_longer(self.left)

    def holds_no_longer(self, seconds: float) -> bool:
        """Whether a call that must wait for this long is to be given back."""
        return seconds > self._timings.held_call_seconds

    def ask(self, seconds: float) -> None:
        """The provider asked this worker to come again after this long."""
        until = asyncio.get_running_loop().time() + seconds
        if seconds <= self._timings.shared_pause_seconds or until <= self._asked_until:
            return
        self._asked_until = until
        self._tell(seconds)
        self.news.ring()

    def hear(self, seconds: float | None, *, told: bool = False) -> None:
        """The ledger's word: the fleet's pause lasts this much longer, or there is none. ``told``: it knows what this
        worker's own provider asked for, so that its word is the only one, and an administrator's word ends both."""
        if told:
            self._asked_until = -math.inf
        if seconds is None:
            self._heard_until = -math.inf
        else:
            self._heard_until = asyncio.get_running_loop().time() + seconds
        self.news.ring()

    def stop(self) -> None:
        """The worker stops: nothing is held for the end of a pause any more."""
        self.stopping = True
        self.news.ring()

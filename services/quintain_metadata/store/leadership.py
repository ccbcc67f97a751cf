"""Which of the metadata services on a ledger leads: it alone serves, and the others stand by.

A row of the ledger has the leader's epoch, and until when its lease lasts on the ledger's clock. Each transaction that
writes locks that row, and a leader's one is refused where another epoch is in it: so what a former leader decided is
never committed. A leader counts its lease on its own clock from before it asked for it, and publishes nothing past it:
so it is silent before another one may lead, whenever it was stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from typing import Protocol

from quintain.errors import BudgetUnavailable

#: How long a lease lasts without a renewal, how often it is renewed, and how often those that stand by look, in
#: seconds.
LEASE_SECONDS, RENEW_SECONDS, LOOK_SECONDS = 3.0, 1.0, 0.5

#: For how long after the end of its lease a leader goes on that cannot renew it, in seconds: it keeps what it has in
#: memory, and messages that it cannot answer.
LAPSED_SECONDS = 6.0


def boot_seconds() -> float:
    """Return the seconds since this machine started, those in which it slept included."""
    # Where there is no CLOCK_BOOTTIME (macOS), CLOCK_MONOTONIC counts a machine's sleep too.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaderRow(Protocol):
    """The row of the leader in a ledger. Its methods raise `BudgetUnavailable` where the ledger is out of reach."""

    async def take(self) -> int | None:
        """Begin a new epoch and return it, if no lease holds; else None."""

    async def renew(self, epoch: int) -> bool:
        """Let the lease of this epoch begin anew; returns False where there is a later epoch."""

    async def release(self, epoch: int) -> None:
        """End the lease of this epoch."""


class Leadership:
    """Whether this process leads a ledger. ``clock`` is in seconds, and goes on while the machine sleeps."""

    def __init__(self, row: LeaderRow, clock: Callable[[], float] = boot_seconds) -> None:
        self._row, self._clock = row, clock
        self._lease_until = -math.inf
        #: The epoch in which this process leads; None while it stands by.
        self.epoch: int | None = None

    def may_publish(self) -> bool:
        """Whether what this process says is the word of the leader; one that stands by answers nobody."""
        return self.epoch is None or self._clock() < self._lease_until

    async def take(self) -> bool:
        """Lead, if nobody does; returns whether this process leads now."""
        asked_at = self._clock()
        epoch = await self._row.take()
        if epoch is not None:
            self.epoch, self._lease_until = epoch, asked_at + LEASE_SECONDS
        return epoch is not None

    async def renew(self) -> bool:
        """Renew the lease, also one that has lapsed; returns False where another process leads by now."""
        assert self.epoch is not None, "only a leader has a lease"
        asked_at = self._clock()
        if not await self._row.renew(self.epoch):
            self._lease_until = -math.inf
            return False
        self._lease_until = asked_at + LEASE_SECONDS
        return True

    async def keep(self) -> None:
        """Renew the lease again and again, until another process leads, or may do so for long."""
        while self._clock() < self._lease_until + LAPSED_SECONDS:
            with contextlib.suppress(BudgetUnavailable, TimeoutError):
                async with asyncio.timeout(LEASE_SECONDS):
                    if not await self.renew():
                        return
            await asyncio.sleep(RENEW_SECONDS)

    async def leave(self) -> None:
        """Stand by from now on, and let another process lead at once; called when nothing is published any more."""
        epoch, self.epoch = self.epoch, None
        if epoch is not None:
            with contextlib.suppress(BudgetUnavailable):  # it lapses
                await self._row.release(epoch)

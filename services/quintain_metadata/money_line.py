"""Lets the admits that wait for money go on: first come, first served, and take-overs before new calls.

Money that becomes free is asked for in memory first: the ledger decides those that fit, and those that never will, and
not all that wait. One that does not fit keeps the money of its session from those behind it, so that a call that may
cost much is not overtaken for ever by calls that may cost little; calls that only other sessions pay for go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from quintain.contracts.ledger import Admission
from quintain_metadata.ledger.decisions import Deferred
from quintain_metadata.ledger.money import MoneyAsk, read_payable
from quintain_metadata.store.base import Operation
from quintain_metadata.waiting import WaitingAdmit, WaitingAdmits

#: Runs an operation; None while the ledger is out of reach.
Read = Callable[[Operation[list[str]]], Awaitable[list[str] | None]]

#: Decides admits again; None is no decision.
Retry = Callable[[Sequence[WaitingAdmit]], Awaitable[list[Admission | Deferred | None]]]


class MoneyLine:
    """Has those of the waiting admits decided again that need not wait for money any longer."""

    def __init__(self, waiting: WaitingAdmits, read: Read, retry: Retry) -> None:
        self._waiting, self._read, self._retry = waiting, read, retry
        self._lock, self._is_to_fill = asyncio.Lock(), False

    async def fill(self) -> None:
        """Decide those that can be paid by now, and those that never will."""
        self._is_to_fill = True
        async with self._lock:
            # Another task that had the lock may have done it already.
            while self._is_to_fill:
                self._is_to_fill = False
                if await self._fill_once():
                    self._is_to_fill = True

    async def _fill_once(self) -> bool:
        """Return whether money may be left that was meant for one of these."""
        waiting = [
            MoneyAsk(each.admit.attempt_id, each.deferred.session_id, each.admit.max_cost, each.deferred.is_takeover)
            for each in self._waiting.for_money()
            if each.admit.max_cost is not None
        ]
        attempt_ids = await self._read(partial(read_payable, waiting=waiting)) if waiting else None
        chosen = [self._waiting.get(attempt_id) for attempt_id in attempt_ids or ()]
        decisions = await self._retry([each for each in chosen if each is not None])
        return any(_is_spared(decision) for decision in decisions)


def _is_spared(decision: Admission | Deferred | None) -> bool:
    """Whether it leaves the money that was found for it: refused, or waiting for something else."""
    if isinstance(decision, Deferred):
        return decision.payer is None
    return decision is not None and not decision.is_grant

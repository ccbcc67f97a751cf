"""Brings the line up to date with the ledger each second, and saves what its quotas learned for the next service.

What changes without a message is found so: leases that lapsed or came back, registrations, what an administrator set,
money that was freed, sessions that were closed, and calls that ended where nobody told the line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from quintain.contracts.fleet import QuotaState
from quintain.contracts.quota import QuotaTerms
from quintain_metadata.ledger import targets
from quintain_metadata.ledger.call_rows import CallKey, read_ended
from quintain_metadata.ledger.calls import LOST_SETTLE_MS
from quintain_metadata.ledger.decisions import DeferReason
from quintain_metadata.ledger.leases import live_workers
from quintain_metadata.ledger.money import read_funds
from quintain_metadata.ledger.ready import Ready, WaitedFor, read_ready
from quintain_metadata.ledger.session_rows import Funds
from quintain_metadata.line import CallLine
from quintain_metadata.places import RunningAttempt
from quintain_metadata.quotas.quota_rows import QuotaRegistration, SavedQuota, read_quotas, read_saved, save_quotas
from quintain_metadata.store.base import Ledger, Moment, SqlProgram

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    """What the ledger says of all that calls wait for. Times are milliseconds since the epoch on its clock."""

    now: int
    targets: Mapping[str, tuple[int, int]]
    quotas: Mapping[str, QuotaRegistration]
    without_quota: Collection[str]
    saved: Mapping[str, SavedQuota]
    running: Collection[tuple[str, str, str, str, str, int]]
    live: Collection[str]
    ended: Collection[CallKey]
    funds: Collection[Funds]
    ready: Ready


@dataclass(frozen=True, slots=True)
class _Known:
    """What the line tells the ledger, and asks it: what quotas learned, which of them it has, attempts that may have
    ended, for whose money calls wait, and what for else."""

    states: Mapping[str, str]
    quotas: Collection[str]
    doubtful: Sequence[tuple[str, str, str]]
    payers: Collection[str]
    waited_for: WaitedFor
    has_running: bool


def _exchange(moment: Moment, known: _Known) -> SqlProgram[_Found]:
    yield from save_quotas(moment, known.states)
    quotas, without = yield from read_quotas(moment)
    return _Found(
        moment.now,
        (yield from targets.target_limits()),
        quotas,
        without,
        (yield from read_saved(moment, quotas.keys() - known.quotas)),
        () if known.has_running else (yield from targets.running_calls()),
        (yield from live_workers(moment.lease_cutoff)),
        (yield from read_ended(known.doubtful)),
        (yield from read_funds(known.payers)),
        (yield from read_ready(moment, known.waited_for)),
    )


class LineLedger:
    """The line of one metadata service, and what the ledger has of it. ``clock`` is that of the line."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger, self.clock = ledger, clock
        self.line = CallLine()
        self._quotas: dict[str, QuotaRegistration] = {}
        #: The terms of each quota, and the workers that registered it.
        self._terms: dict[str, tuple[QuotaTerms, set[str]]] = {}
        self._lock, self._is_loaded = asyncio.Lock(), False
        #: The ledger's time less that of the line, in seconds.
        self._offset = 0.0

    def seconds_of(self, milliseconds: float) -> float:
        """Return a time of the ledger on the line's clock."""
        return milliseconds / 1000 - self._offset

    async def refresh(self, redelivered: Collection[str] = ()) -> None:
        """Take over what the ledger says. ``redelivered`` are the waiting attempts whose messages came again."""
        async with self._lock:
            await self._refresh(redelivered)

    async def _refresh(self, redelivered: Collection[str]) -> None:
        line, joined, redelivered_calls = self.line, dict[CallKey, None](), dict[CallKey, None]()
        for waiting in line.waiting.values():
            if waiting.reason is DeferReason.CALL and waiting.attempt_id not in redelivered:
                joined[waiting.call] = None
            elif waiting.reason is DeferReason.CALL or line.places.is_held(waiting.call):
                redelivered_calls[waiting.call] = None
        new = {each.call: None for each in line.waiting.values() if each.reason is not DeferReason.CALL}
        sessions = {each.call[0]: None for each in line.waiting.values()}
        waited_for = WaitedFor([*joined], [*redelivered_calls], [*new], [*sessions])
        now, places = self.clock(), line.places
        unsaved, places.unsaved = places.unsaved, set()
        # Read here: the operation may run in the ledger's thread.
        known = _Known(
            {name: json.dumps(places.quota(name).save(now)) for name in unsaved},
            {*self._terms},
            [
                (*each.call, each.attempt_id)
                for each in places.running.values()
                if each.is_lost or each.deadline < now - LOST_SETTLE_MS / 1000
            ],
            [*line.payers],
            waited_for,
            self._is_loaded,
        )
        try:
            found = await self._ledger.transact(partial(_exchange, known=known))
        except BaseException:
            line.places.unsaved |= unsaved
            raise
        self._offset = found.now / 1000 - self.clock()
        self._configure(found)
        now = self.clock()
        for session_id, request_id, attempt_id, target, incarnation, deadline in found.running:
            if attempt_id not in line.places.running:
                call = session_id, request_id
                running = RunningAttempt(attempt_id, target, call, incarnation, self.seconds_of(deadline))
                line.places.start(now, running, is_resumed=True)
        self._is_loaded = True
        for call in {*found.ended, *found.ready.ended}:
            line.call_ended(now, call)
        line.set_live(now, found.live)
        for funds in found.funds:
            line.money(*funds)
        self._wake(found.ready)

    def _wake(self, ready: Ready) -> None:
        self.line.wake(
            lambda waiting: (
                waiting.call in ready.lost
                or waiting.call in ready.answered
                or waiting.call[0] in ready.closed_sessions
                or (
                    waiting.call[0] in ready.paused_sessions
                    and waiting.reason is not DeferReason.CALL
                    and not waiting.is_takeover
                )
            )
        )

    def _configure(self, found: _Found) -> None:
        now, places = self.clock(), self.line.places
        self._quotas.update(found.quotas)
        for quota_id, quota in found.quotas.items():
            before = self._terms.get(quota_id)
            self._terms[quota_id] = quota.terms, quota.incarnations
            # The key of a new worker may be another one than was refused.
            if before is None or before[0] != quota.terms or quota.incarnations - before[1]:
                places.configure_quota(now, quota_id, quota.terms)
            for target in quota.targets:
                places.assign(target, quota_id)
        for target in found.without_quota:
            places.assign(target, None)
        for target, (limit, paused_until) in found.targets.items():
            places.configure_target(now, target, limit, self.seconds_of(paused_until))
        for quota_id, saved in found.saved.items():
            try:
                places.quota(quota_id).restore(now, now - saved.seconds, json.loads(saved.state))
            except (LookupError, TypeError, ValueError):
                log.warning("What was learned of quota %r is of another release", self._quotas[quota_id].name)
                places.forget_learned(now, quota_id, self._quotas[quota_id].terms)

    def states(self) -> list[QuotaState]:
        """Return what each quota does at present, sorted by name."""
        now, targets_of = self.clock(), self.line.places.targets_of_quotas()
        states = (
            self._quotas[figures.quota_id].state(now, targets_of[figures.quota_id], figures)
            for figures in self.line.places.describe(now)
            if figures.quota_id in targets_of
        )
        return sorted(states, key=lambda state: (state.name, state.id))

"""Asks the governor before the ledger whether a call may start, where its target has a quota.

The rules between the two:

- A call is offered to the governor first. Where the governor has no place for it, the ledger decides it nevertheless,
  so that what it would refuse or replay is refused or replayed at once; else the call waits in the governor's queue,
  wherever the ledger would have let it wait for its target.
- A place whose call the ledger does not grant is given back: nothing was sent. A call that the ledger grants without
  a place, because its first grant was lost on the way, is counted as running.
- A granted call keeps its place until its settle, whose report the governor learns from, or until a sweep finds that no
  live worker runs it. A report of a call that has no place here is learned from too.
- An attempt whose call has a former one with a place waits for the end of that one, whose report may ask to wait: the
  ledger has the settle before the governor.
- A target's own limit bounds its calls within the quota: they are counted here. Where the ledger finds a target full or
  paused all the same, nothing of it starts until it has capacity.

All of it is in memory, of the metadata service that leads. The next one goes on with what was learned, which each sweep
saves in the ledger, and counts the calls that run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from quintain.contracts.credentials import public_id
from quintain.contracts.fleet import QuotaState
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit, AttemptEnded
from quintain.contracts.quota import QuotaTerms, TryOutcome, TryReport
from quintain.errors import Expired, Throttled
from quintain_metadata.ledger.call_rows import CallKey
from quintain_metadata.ledger.decisions import DeferReason, Deferred
from quintain_metadata.quotas.fair_queue import Waiting
from quintain_metadata.quotas.governor import Governor
from quintain_metadata.quotas.quota_rows import (
    QuotaRegistration,
    SavedQuota,
    read_lost,
    read_quotas,
    read_saved,
    save_quotas,
)
from quintain_metadata.store.base import Ledger, Moment, SqlProgram

log = logging.getLogger(__name__)

_NOT_SENT = TryReport(outcome=TryOutcome.NOT_SENT)


class QuotaAdmission:
    """The places of calls whose targets have a quota."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger, self._clock, self._governor = ledger, clock, Governor()
        self._refresh_lock = asyncio.Lock()
        self._quotas: dict[str, QuotaRegistration] = {}
        #: The terms of each quota, and the workers that registered it.
        self._terms: dict[str, tuple[QuotaTerms, set[str]]] = {}
        #: The quotas of which something was learned that is not saved.
        self._unsaved: set[str] = set()
        #: The quota of each target that has one. Only this class changes it.
        self.quota_of: dict[str, str] = {}
        #: The target of each attempt that has a place, and its call once the ledger has granted it.
        self.places: dict[str, str] = {}
        self._calls: dict[str, tuple[str, str, str]] = {}
        #: The attempt that has a place, by its call, and those of the same call that wait for its end.
        self._attempt_of: dict[CallKey, str] = {}
        self._behind: dict[str, dict[str, Waiting]] = {}
        self._running: Counter[str] = Counter()
        #: How many more calls of each target may run.
        self._free_slots: dict[str, int] = {}
        #: The targets that the ledger found full or paused.
        self._blocked: set[str] = set()
        #: The targets that have no quota any more since the last sweep.
        self._without_quota: set[str] = set()
        #: Set when a waiting call may be able to start.
        self.changed = asyncio.Event()

    @property
    def blocked(self) -> Collection[str]:
        """The targets of which nothing starts until the ledger says that they have capacity."""
        return self._blocked

    def offer(self, admit: Admit) -> bool:
        """Return whether the attempt has a place now, which it takes; one without a quota needs none."""
        attempt_id, target = admit.attempt_id, admit.target
        quota_id = self.quota_of.get(target)
        if quota_id is None:
            return True
        if self._former(admit) is not None:
            return False
        is_granted = self._governor.offer(self._clock(), attempt_id, quota_id, target, self._bounds())
        if is_granted:
            self._add(attempt_id, target)
        return is_granted

    def decided(self, admit: Admit, decision: Admission | Deferred | None) -> Admission | Deferred | None:
        """Take note of what the ledger decided on an attempt that was offered; returns the decision as it is answered.

        None is no decision: the ledger is out of reach.
        """
        attempt_id, quota_id = admit.attempt_id, self.quota_of.get(admit.target)
        if quota_id is None:
            return decision
        if isinstance(decision, Admission) and decision.is_grant:
            return self._granted(admit, quota_id, decision)
        had_place = self.give_back(attempt_id)
        if isinstance(decision, Deferred) and decision.reason in {DeferReason.TARGET, DeferReason.QUOTA}:
            if decision.reason is DeferReason.TARGET and had_place:
                self._blocked.add(admit.target)
            waiting = Waiting(attempt_id, quota_id, admit.target, *decision.share, is_takeover=decision.is_takeover)
            if (former := self._former(admit)) is None:
                self._governor.wait(waiting)
            else:
                self._behind.setdefault(former, {})[attempt_id] = waiting
            self.changed.set()
            return dataclasses.replace(decision, reason=DeferReason.QUOTA)
        if isinstance(decision, Admission):
            decision = self._with_reason(decision)
        if decision is not None:
            self.forget(attempt_id)
        return decision

    def _with_reason(self, refusal: Admission) -> Admission:
        """Return the refusal of a call that waited for limits of its provider until its deadline as throttled."""
        fault = refusal.fault
        if fault is None or fault.code != Expired.code or fault.charged is not False:
            return refusal
        seconds = self._governor.throttled_seconds(self._clock(), refusal.attempt_id)
        if seconds is None:
            return refusal
        throttled = Throttled(retry_after_ms=round(seconds * 1000) or None)
        return refusal.with_fields(fault=FaultReply.from_fault(throttled))

    def wait_again(self, waiting: Waiting) -> None:
        """Let a call wait on that was taken from the queue and is not decided."""
        self._governor.wait(waiting)

    def forget(self, attempt_id: str) -> None:
        """End an attempt that waits no more, and one of which nothing is known."""
        self._remove(attempt_id)
        for behind in self._behind.values():
            behind.pop(attempt_id, None)
        self._governor.forget(self._clock(), attempt_id)

    def ended(self, ended: AttemptEnded) -> None:
        """Take note of how an attempt ended."""
        has_place, now, target = self._remove(ended.attempt_id), self._clock(), ended.target
        if not has_place and ended.was_holder and target in self.quota_of:
            # Its worker's lease had lapsed, or it was granted before the target had the quota.
            self._governor.resume(now, ended.attempt_id, self.quota_of[target], target)
            has_place = True
        if has_place:
            self._governor.end(now, ended.attempt_id, ended.report)
            if quota_id := self.quota_of.get(target or ""):
                self._unsaved.add(quota_id)
            self.changed.set()
        elif ended.gave_up and self.quota_of:
            self.forget(ended.attempt_id)

    def take(self, capacities: Mapping[str, int]) -> list[Waiting]:
        """Give places to the waiting calls that may start now, and return them.

        ``capacities`` are how many more calls the blocked targets may run, as the ledger says.
        """
        self._blocked = {target for target in self._blocked if capacities.get(target, 1) <= 0}
        free_slots = dict(self._bounds())
        for target, capacity in capacities.items():
            free_slots[target] = min(capacity, free_slots.get(target, capacity))
        granted = self._governor.grant(self._clock(), free_slots)
        for waiting in granted:
            self._add(waiting.attempt_id, waiting.target)
        return granted

    def seconds_until_due(self) -> float | None:
        """Return in how many seconds a waiting call may start by time alone; None where by none."""
        now = self._clock()
        due = self._governor.due_at(now, self._bounds()) - now
        return None if due == float("inf") else max(0.0, due)

    async def refresh(self) -> None:
        """Read what is registered and set of quotas, and save what was learned."""
        async with self._refresh_lock:
            unsaved, self._unsaved = self._unsaved, set()
            try:
                found, without, saved = await self._ledger.transact(partial(self._exchange, unsaved=unsaved))
            except BaseException:
                self._unsaved |= unsaved
                raise
            self._quotas.update(found)
            for quota_id, quota in found.items():
                for target, limit in quota.targets.items():
                    self.quota_of[target] = quota_id
                    self._free_slots[target] = limit - self._running[target]
            self._without_quota |= {target for target in without if self.quota_of.pop(target, None) is not None}
            for quota_id, quota in found.items():
                self._configure(quota_id, quota)
            for quota_id, one in saved.items():
                self._resume(quota_id, one)

    def _exchange(
        self, moment: Moment, unsaved: Iterable[str]
    ) -> SqlProgram[tuple[dict[str, QuotaRegistration], set[str], dict[str, SavedQuota]]]:
        """Save what was learned, and return the quotas, the targets without one, and what is new here of which."""
        now = self._clock()
        states = {each: json.dumps(self._governor.save(now, each)) for each in unsaved}
        yield from save_quotas(moment, states)
        found, without = yield from read_quotas(moment)
        new = {quota_id: quota.targets for quota_id, quota in found.items() if quota_id not in self._terms}
        return found, without, (yield from read_saved(moment, new))

    def _configure(self, quota_id: str, quota: QuotaRegistration) -> None:
        """Take over a quota's terms, and the key of a new worker, which may be another one than was refused."""
        before = self._terms.get(quota_id)
        self._terms[quota_id] = quota.terms, quota.incarnations
        if before is None or before[0] != quota.terms or quota.incarnations - before[1]:
            self._governor.configure(self._clock(), quota_id, [quota.terms])
            self.changed.set()

    def _resume(self, quota_id: str, saved: SavedQuota) -> None:
        """Go on with what was learned of a quota that is new here, and count its calls that run."""
        now = self._clock()
        if saved.state is not None:
            try:
                self._governor.restore(now, now - saved.seconds, quota_id, json.loads(saved.state))
            except (LookupError, TypeError, ValueError):
                log.warning("What was learned of quota %r is of another release", self._quotas[quota_id].name)
                self._governor.drop(quota_id)
                self._governor.configure(now, quota_id, [self._quotas[quota_id].terms])
        for call in saved.running:
            if self.quota_of.get(call.target) == quota_id and call.attempt_id not in self.places:
                self._governor.resume(self._clock(), call.attempt_id, quota_id, call.target)
                self._add(call.attempt_id, call.target)
                self._note_call(call.session_id, call.request_id, call.attempt_id)

    async def forget_lost(self) -> None:
        """Give back the places of attempts that no live worker runs."""
        if self._calls:
            for attempt_id in await self._ledger.transact(partial(read_lost, attempts=list(self._calls.values()))):
                self.forget(attempt_id)
            self.changed.set()

    async def sweep(self) -> set[str]:
        """Give back the places of attempts that no live worker runs; returns the targets that have no quota now."""
        await self.forget_lost()
        self.changed.set()
        await self.refresh()
        without, self._without_quota = self._without_quota, set()
        return without

    def states(self) -> list[QuotaState]:
        """Return what each quota does at present, sorted by name."""
        now, targets = self._clock(), dict[str, list[str]]()
        for target, quota_id in sorted(self.quota_of.items()):
            targets.setdefault(quota_id, []).append(target)
        states = (
            self._quotas[figures.quota_id].state(now, targets[figures.quota_id], figures)
            for figures in self._governor.describe(now)
            if figures.quota_id in targets
        )
        return sorted(states, key=lambda state: (state.name, state.id))

    def _granted(self, admit: Admit, quota_id: str, admission: Admission) -> Admission:
        attempt_id = admit.attempt_id
        if attempt_id not in self.places:
            self._governor.resume(self._clock(), attempt_id, quota_id, admit.target)
            self._add(attempt_id, admit.target)
        self._note_call(*_call_key(admit), attempt_id)
        return admission.with_fields(is_probe=True) if self._governor.is_probe(attempt_id) else admission

    def give_back(self, attempt_id: str) -> bool:
        """Give back the attempt's place, if it has one, of which nothing was sent; returns whether it had."""
        if not self._remove(attempt_id):
            return False
        self._governor.end(self._clock(), attempt_id, _NOT_SENT)
        self.changed.set()
        return True

    def _former(self, admit: Admit) -> str | None:
        """Return the other attempt of the same call that has a place, if one has."""
        former = self._attempt_of.get(_call_key(admit))
        return None if former == admit.attempt_id else former

    def _note_call(self, session_id: str, request_id: str, attempt_id: str) -> None:
        self._calls[attempt_id] = session_id, request_id, attempt_id
        self._attempt_of[session_id, request_id] = attempt_id

    def _add(self, attempt_id: str, target: str) -> None:
        if attempt_id not in self.places:
            self.places[attempt_id] = target
            self._unsaved.add(self.quota_of[target])
            self._running[target] += 1
            self._free_slots[target] -= 1

    def _remove(self, attempt_id: str) -> bool:
        target = self.places.pop(attempt_id, None)
        if target is None:
            return False
        self._running[target] -= 1
        self._free_slots[target] += 1
        call = self._calls.pop(attempt_id, None)
        if call is not None and self._attempt_of.get(call[:2]) == attempt_id:
            del self._attempt_of[call[:2]]
        for waiting in self._behind.pop(attempt_id, {}).values():
            self.wait_again(waiting)
        return True

    def _bounds(self) -> Mapping[str, int]:
        return {**self._free_slots, **dict.fromkeys(self._blocked, 0)} if self._blocked else self._free_slots


def _call_key(admit: Admit) -> CallKey:
    return admit.session_id or public_id(admit.token) or "", admit.request_id

"""Asks the governor before the ledger whether a call may start, where its target has a quota.

The rules between the two:

- A call is offered to the governor first. Where the governor has no place for it, the ledger decides it nevertheless,
  so that what it would refuse or replay is refused or replayed at once; else the call waits in the governor's queue,
  wherever the ledger would have let it wait for its target.
- A place whose call the ledger does not grant is given back: nothing was sent. A call that the ledger grants without
  a place, because its first grant was lost on the way, is counted as running.
- A granted call keeps its place until its settle, whose report the governor learns from, or until a sweep finds that no
  live worker runs it. A report of a call that has no place here is learned from too.
- A target's own limit bounds its calls within the quota: they are counted here. Where the ledger finds a target full or
  paused all the same, nothing of it starts until it has capacity.

All of it is in memory, of one metadata service: at its start it counts the calls that run. Several services on one
ledger do not share it: each finds limits for the calls that it admits, so that those of a key are not exact together.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial

from quintain.contracts.credentials import public_id
from quintain.contracts.fleet import QuotaCut, QuotaState
from quintain.contracts.ledger import Admission, Admit, AttemptOutcome, Settle
from quintain.contracts.quota import QuotaTerms, TryOutcome, TryReport
from quintain_metadata.ledger.call_rows import CallRow
from quintain_metadata.ledger.decisions import DeferReason, Deferred
from quintain_metadata.ledger.lifecycle import CallState
from quintain_metadata.quotas.fair_queue import Waiting
from quintain_metadata.quotas.governor import Governor, QuotaFigures
from quintain_metadata.quotas.quota_rows import QuotaRegistration, read_lost, read_quotas, read_running
from quintain_metadata.store.base import Ledger

#: How a provider took an attempt whose settle says nothing of it.
_DEFAULT_OUTCOMES = {
    AttemptOutcome.RESULT: TryOutcome.ANSWERED,
    AttemptOutcome.CHARGED: TryOutcome.ANSWERED,
    AttemptOutcome.THROTTLED: TryOutcome.THROTTLED,
    AttemptOutcome.NEVER_SENT: TryOutcome.NOT_SENT,
}

_NOT_SENT = TryReport(outcome=TryOutcome.NOT_SENT)


class QuotaAdmission:
    """The places of calls whose targets have a quota."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger, self._clock, self._governor = ledger, clock, Governor()
        self._quotas: dict[str, QuotaRegistration] = {}
        self._terms: dict[str, QuotaTerms] = {}
        #: The quota of each target that has one.
        self._quota_of: dict[str, str] = {}
        #: The target of each granted attempt, and its call once the ledger has granted it.
        self._target_of: dict[str, str] = {}
        self._calls: dict[str, tuple[str, str, str]] = {}
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

    def has_quota(self, target: str) -> bool:
        """Whether the target has a quota."""
        return target in self._quota_of

    def offer(self, attempt_id: str, target: str) -> bool:
        """Return whether the attempt has a place now, which it takes; one without a quota needs none."""
        quota_id = self._quota_of.get(target)
        if quota_id is None:
            return True
        is_granted = self._governor.offer(self._clock(), attempt_id, quota_id, target, self._bounds())
        if is_granted:
            self._add(attempt_id, target)
        return is_granted

    def decided(self, admit: Admit, decision: Admission | Deferred | None) -> Admission | Deferred | None:
        """Take note of what the ledger decided on an attempt that was offered; returns the decision as it is answered.

        None is no decision: the ledger is out of reach.
        """
        attempt_id, quota_id = admit.attempt_id, self._quota_of.get(admit.target)
        if quota_id is None:
            return decision
        if isinstance(decision, Admission) and decision.is_grant:
            return self._granted(admit, quota_id, decision)
        had_place = self.give_back(attempt_id)
        if isinstance(decision, Deferred) and decision.reason in {DeferReason.TARGET, DeferReason.QUOTA}:
            if decision.reason is DeferReason.TARGET and had_place:
                self._blocked.add(admit.target)
            self._governor.wait(
                Waiting(attempt_id, quota_id, admit.target, *decision.share, is_takeover=decision.is_takeover)
            )
            self.changed.set()
            return dataclasses.replace(decision, reason=DeferReason.QUOTA)
        if decision is not None:
            self.forget(attempt_id)
        return decision

    def wait_again(self, waiting: Waiting) -> None:
        """Let a call wait on that was taken from the queue and is not decided."""
        self._governor.wait(waiting)

    def forget(self, attempt_id: str) -> None:
        """End an attempt that waits no more, and one of which nothing is known."""
        self._remove(attempt_id)
        self._governor.forget(self._clock(), attempt_id)

    def settled(self, item: Settle, call: CallRow | None) -> None:
        """Take note of how an attempt ended, and of its call as it was before; None is an unknown one."""
        has_place, now = self._remove(item.attempt_id), self._clock()
        is_holder = call is not None and call.state is CallState.RUNNING and call.attempt_id == item.attempt_id
        if not has_place and is_holder and call is not None and call.target in self._quota_of:
            # Another service admitted it, or its worker's lease had lapsed.
            self._governor.resume(now, item.attempt_id, self._quota_of[call.target], call.target)
            has_place = True
        if has_place:
            self._governor.end(now, item.attempt_id, _report_of(item))
            self.changed.set()
        elif item.outcome is AttemptOutcome.NEVER_SENT and self._quota_of:
            self._governor.forget(now, item.attempt_id)

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

    async def start(self) -> None:
        """Read the quotas, and count the calls that run; called before anything is admitted."""
        await self.refresh()
        for call in await self._ledger.transact(read_running) if self._quota_of else ():
            quota_id = self._quota_of.get(call.target)
            if quota_id is not None:
                self._governor.resume(self._clock(), call.attempt_id, quota_id, call.target)
                self._add(call.attempt_id, call.target)
                self._calls[call.attempt_id] = (call.session_id, call.request_id, call.attempt_id)

    async def refresh(self, *, is_registered: bool = False) -> None:
        """Read what is registered and set of quotas.

        ``is_registered``: a worker registered, so that a refused key may be another one.
        """
        found, without = await self._ledger.transact(read_quotas)
        for quota_id, quota in found.items():
            terms = quota.terms
            if is_registered or self._terms.get(quota_id) != terms:
                self._terms[quota_id] = terms
                self._governor.configure(self._clock(), quota_id, [terms])
                self.changed.set()
            for target, limit in quota.targets.items():
                self._quota_of[target] = quota_id
                self._free_slots[target] = limit - self._running[target]
        self._quotas.update(found)
        self._without_quota |= {target for target in without if self._quota_of.pop(target, None) is not None}

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
        for target, quota_id in sorted(self._quota_of.items()):
            targets.setdefault(quota_id, []).append(target)
        states = [
            _state(now, self._quotas[figures.quota_id].name, targets[figures.quota_id], figures)
            for figures in self._governor.describe(now)
            if figures.quota_id in targets
        ]
        return sorted(states, key=lambda state: (state.name, state.id))

    def _granted(self, admit: Admit, quota_id: str, admission: Admission) -> Admission:
        attempt_id = admit.attempt_id
        if attempt_id not in self._target_of:
            self._governor.resume(self._clock(), attempt_id, quota_id, admit.target)
            self._add(attempt_id, admit.target)
        session_id = admit.session_id or public_id(admit.token) or ""
        self._calls[attempt_id] = (session_id, admit.request_id, attempt_id)
        return admission.with_fields(is_probe=True) if self._governor.is_probe(attempt_id) else admission

    def give_back(self, attempt_id: str) -> bool:
        """Give back the attempt's place, if it has one, of which nothing was sent; returns whether it had."""
        if not self._remove(attempt_id):
            return False
        self._governor.end(self._clock(), attempt_id, _NOT_SENT)
        self.changed.set()
        return True

    def _add(self, attempt_id: str, target: str) -> None:
        if attempt_id not in self._target_of:
            self._target_of[attempt_id] = target
            self._running[target] += 1
            self._free_slots[target] -= 1

    def _remove(self, attempt_id: str) -> bool:
        target = self._target_of.pop(attempt_id, None)
        if target is None:
            return False
        self._running[target] -= 1
        self._free_slots[target] += 1
        self._calls.pop(attempt_id, None)
        return True

    def _bounds(self) -> Mapping[str, int]:
        return {**self._free_slots, **dict.fromkeys(self._blocked, 0)} if self._blocked else self._free_slots


def _report_of(item: Settle) -> TryReport:
    report = item.report or TryReport(outcome=_DEFAULT_OUTCOMES.get(item.outcome, TryOutcome.UNKNOWN))
    usage = item.token_usage
    if usage is None or report.tokens is not None:
        return report
    return report.with_fields(tokens=float(max(0, usage.input) + max(0, usage.output)))


def _state(now: float, name: str, targets: list[str], figures: QuotaFigures) -> QuotaState:
    def milliseconds(until: float | None) -> int | None:
        return None if until is None else max(0, int((until - now) * 1000))

    rate, cut = figures.requests_per_minute, figures.last_cut
    is_out = figures.out_since is not None
    return QuotaState(
        id=figures.quota_id,
        name=name,
        targets=targets,
        limit=figures.limit,
        in_flight=figures.in_flight,
        waiting=figures.waiting,
        throttled=figures.throttled,
        requests_per_minute=rate,
        tokens_per_minute=figures.tokens_per_minute,
        paused_ms=milliseconds(figures.paused_until),
        last_cut=None if cut is None else QuotaCut(ago_ms=int((now - cut[0]) * 1000), cause=cut[1].value),
        out_ms=int((now - figures.out_since) * 1000) if is_out and figures.out_since is not None else None,
        out_targets={target: milliseconds(at) or 0 for target, at in figures.out_targets.items()} or None,
        refused=figures.is_refused or None,
        estimated_seconds=figures.waiting / rate * 60 if rate and figures.waiting else None,
    )

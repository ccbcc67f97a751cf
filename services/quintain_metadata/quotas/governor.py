"""Decides which calls may start, for each provider key: its quota. No I/O, no clock.

A call asks with `Governor.offer` or waits with `Governor.wait`; `Governor.grant` names the waiting calls that start
now. Each granted call ends with `Governor.end`, or with `Governor.forget` where nothing is known of it. In flight are
the granted calls, so that the limit is exact. Times are seconds; whoever calls looks again at `Governor.due_at`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from quintain.contracts.quota import QuotaTerms, TryFailure, TryOutcome, TryReport
from quintain_metadata.quotas.fair_queue import FairQueue, Waiting
from quintain_metadata.quotas.limits import CutCause, Grant, Limits
from quintain_metadata.quotas.outages import Outages

_NO_BOUNDS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class QuotaFigures:
    """What a quota does at present: the limits in force, and why its calls wait."""

    quota_id: str
    limit: int
    in_flight: int
    waiting: int
    throttled: int
    requests_per_minute: float | None
    tokens_per_minute: float | None
    paused_until: float | None
    last_cut: tuple[float, CutCause] | None
    #: The targets that are out, each with the time at which it is tried next, and since when all of them are.
    out_targets: Mapping[str, float]
    out_since: float | None
    is_refused: bool
    failures: Mapping[str, TryFailure]


@dataclass(slots=True, eq=False)
class _Quota:
    """The state of one quota.

    ``refused`` are the targets at which the provider refuses the key. Nothing waits for that: each caller is told.
    ``answered_at`` is when a call to each target was answered last: a refusal of a call that was granted before is that
    of its content or its model. ``started`` are the targets that were ever tried, ``failures`` why those
    had no answer that were tried in vain last.
    """

    limits: Limits
    outages: Outages = field(default_factory=Outages)
    queue: FairQueue = field(default_factory=FairQueue)
    refused: set[str] = field(default_factory=set)
    answered_at: dict[str, float] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    failures: dict[str, TryFailure] = field(default_factory=dict)

    @property
    def is_refused(self) -> bool:
        """Whether the key is refused at every target that was tried, or waits to be."""
        return bool(self.refused) and self.started.union(self.queue.by_target) <= self.refused

    def wait_seconds(self, now: float, target: str) -> float:
        """How long until a call to this target may start; infinite where another one must end first."""
        return max(self.outages.wait_seconds(now, target), self.limits.wait_seconds(now, target))

    def ready_targets(self, now: float, free_slots: Mapping[str, int]) -> set[str]:
        """The targets of which a waiting call may start now."""
        return {
            target
            for target in self.queue.by_target
            if free_slots.get(target, 1) > 0 and self.wait_seconds(now, target) <= 0
        }

    def start(self, now: float, target: str) -> Grant:
        """Start a call."""
        self.started.add(target)
        self.outages.started(now, target)
        return self.limits.start(now, target)

    def resume(self, now: float, target: str) -> Grant:
        """Count a call that runs already."""
        self.started.add(target)
        self.outages.started(now, target)
        return self.limits.resume(now, target)

    def end(self, now: float, grant: Grant, report: TryReport) -> None:
        """End a call, and learn from how it ended."""
        target = grant.target
        match report.outcome:
            case TryOutcome.ANSWERED:
                self.limits.answered(now, grant, report.tokens, report.rates)
            case TryOutcome.THROTTLED:
                self.limits.refused(now, grant, report.rates)
            case TryOutcome.FAILED:
                self.limits.failed(now, grant)
                self.outages.failed(now, target, grant.at)
                return
            case TryOutcome.REFUSED:
                self.limits.unknown(now, grant, is_sent=True)
                if grant.at > self.answered_at.get(target, -math.inf):
                    self.refused.add(target)
                self.outages.ended(target)
                return
            case TryOutcome.NOT_SENT | TryOutcome.UNKNOWN:
                self.limits.unknown(now, grant, is_sent=report.outcome is TryOutcome.UNKNOWN)
                self.outages.ended(target)
                return
        self.refused.discard(target)
        self.answered_at[target] = now
        if self.outages.answered(now, target):
            self.limits.reopen_at_lowest(now)


class Governor:
    """The quotas that one metadata service owns, and the calls that wait for them or run."""

    def __init__(self) -> None:
        self._quotas: dict[str, _Quota] = {}
        self._waiting: dict[str, Waiting] = {}
        self._running: dict[str, tuple[_Quota, Grant]] = {}

    def configure(self, now: float, quota_id: str, terms: Iterable[QuotaTerms]) -> None:
        """Take over a quota's terms; where several workers or an administrator name others, the smallest counts.

        What runs goes on. A key that was refused counts as one that was not tried, as does a path that was not found.
        """
        smallest = smallest_terms(terms)
        quota = self._quotas.get(quota_id)
        if quota is None:
            self._quotas[quota_id] = _Quota(Limits(smallest, now))
            return
        quota.limits.configure(smallest)
        quota.refused.clear()
        out = quota.outages.out_targets()
        quota.failures = {target: failure for target, failure in quota.failures.items() if target in out}

    def drop(self, quota_id: str) -> None:
        """Forget a quota that another service owns by now, with its calls."""
        self._quotas.pop(quota_id, None)
        for attempt_id in [key for key, waiting in self._waiting.items() if waiting.quota_id == quota_id]:
            del self._waiting[attempt_id]
        for attempt_id in [key for key, (quota, _) in self._running.items() if quota not in self._quotas.values()]:
            del self._running[attempt_id]

    def save(self, now: float, quota_id: str) -> dict[str, Any]:
        """Return what another service goes on with that takes the quota, as JSON takes it."""
        quota = self._quotas[quota_id]
        return {
            "limits": quota.limits.save(now),
            "outages": quota.outages.save(now),
            "refused": sorted(quota.refused),
            "started": sorted(quota.started),
            "failures": {target: failure.model_dump(mode="json") for target, failure in quota.failures.items()},
        }

    def restore(self, now: float, saved_at: float, quota_id: str, saved: Mapping[str, Any]) -> None:
        """Go on from what the former owner of a quota saved at this time, which is configured and has no calls yet."""
        quota = self._quotas[quota_id]
        quota.limits.restore(now, saved_at, saved.get("limits", {}))
        quota.outages.restore(saved_at, saved.get("outages", {}))
        quota.refused, quota.started = set(saved.get("refused", ())), set(saved.get("started", ()))
        failures = saved.get("failures", {})
        quota.failures = {target: TryFailure.model_validate(failure) for target, failure in failures.items()}

    def offer(
        self, now: float, attempt_id: str, quota_id: str, target: str, free_slots: Mapping[str, int] = _NO_BOUNDS
    ) -> bool:
        """Start a call at once, if no other one waits that could start instead; returns whether it did.

        ``free_slots`` are as in `grant`.
        """
        quota = self._quotas[quota_id]
        if attempt_id in self._running:
            return True
        if attempt_id in self._waiting or free_slots.get(target, 1) <= 0:
            return False
        if quota.wait_seconds(now, target) > 0 or quota.ready_targets(now, free_slots):
            return False
        self._start(now, attempt_id, quota, target)
        return True

    def wait(self, waiting: Waiting) -> None:
        """Add a call to those that wait; one that waits or runs already stays as it is."""
        if waiting.attempt_id not in self._waiting and waiting.attempt_id not in self._running:
            self._waiting[waiting.attempt_id] = waiting
            self._quotas[waiting.quota_id].queue.add(waiting)

    def grant(self, now: float, free_slots: Mapping[str, int]) -> list[Waiting]:
        """Start the waiting calls that may start now, and return them.

        ``free_slots`` are how many more calls of a target may run, of those that have a limit of their own.
        """
        granted = list[Waiting]()
        left = dict(free_slots)
        for quota in self._quotas.values():
            while targets := quota.ready_targets(now, left):
                waiting = quota.queue.take(targets)
                assert waiting is not None, "a call waits for each of these targets"
                del self._waiting[waiting.attempt_id]
                self._start(now, waiting.attempt_id, quota, waiting.target)
                granted.append(waiting)
                if waiting.target in left:
                    left[waiting.target] -= 1
            if not quota.queue:
                quota.limits.idle(now)
        return granted

    def resume(self, now: float, attempt_id: str, quota_id: str, target: str) -> None:
        """Count a call that runs already: it was granted before this service had its quota, or its place was lost."""
        if attempt_id not in self._running:
            self.forget(now, attempt_id)
            quota = self._quotas[quota_id]
            self._running[attempt_id] = quota, quota.resume(now, target)

    def end(self, now: float, attempt_id: str, report: TryReport) -> None:
        """End a granted call, and learn from how it ended; an unknown one changes nothing."""
        running = self._running.pop(attempt_id, None)
        if running is not None:
            quota, grant = running
            if report.failure is not None:
                quota.failures[grant.target] = report.failure
            elif report.outcome is TryOutcome.ANSWERED:
                quota.failures.pop(grant.target, None)
            quota.end(now, grant, report)

    def forget(self, now: float, attempt_id: str) -> None:
        """End a call of which nothing is known, whether it waits or runs: it gave up, or its worker is gone."""
        waiting = self._waiting.pop(attempt_id, None)
        if waiting is not None:
            self._quotas[waiting.quota_id].queue.remove(waiting)
        self.end(now, attempt_id, TryReport(outcome=TryOutcome.UNKNOWN))

    def is_probe(self, attempt_id: str) -> bool:
        """Whether a granted call tries a target that is out."""
        quota, grant = self._running[attempt_id]
        return grant.target in quota.outages.out_targets()

    def throttled_seconds(self, now: float, attempt_id: str) -> float | None:
        """How long the key is paused, for a waiting call that only the provider's limits hold back; else None."""
        waiting = self._waiting.get(attempt_id)
        if waiting is None:
            return None
        quota, target = self._quotas[waiting.quota_id], waiting.target
        is_limited = quota.limits.are_known and quota.limits.wait_seconds(now, target) > 0
        if not is_limited or quota.outages.wait_seconds(now, target) > 0:
            return None
        return max(0.0, quota.limits.paused_until - now)

    def due_at(self, now: float, free_slots: Mapping[str, int] = _NO_BOUNDS) -> float:
        """When a waiting call may start by time alone; infinite where only the end of another one lets it start.

        ``free_slots`` are as in `grant`.
        """
        waits = (
            quota.wait_seconds(now, target)
            for quota in self._quotas.values()
            for target in quota.queue.by_target
            if free_slots.get(target, 1) > 0
        )
        return now + min(waits, default=math.inf)

    def describe(self, now: float) -> list[QuotaFigures]:
        """Return what each quota does at present."""
        return [_figures(now, quota_id, quota) for quota_id, quota in self._quotas.items()]

    def _start(self, now: float, attempt_id: str, quota: _Quota, target: str) -> None:
        self._running[attempt_id] = quota, quota.start(now, target)


def smallest_terms(terms: Iterable[QuotaTerms]) -> QuotaTerms:
    """Return the smallest of each number, and no adaptation where one has none."""
    all_terms = list(terms) or [QuotaTerms()]

    def smallest(values: Iterable[float | None]) -> float | None:
        return min((value for value in values if value is not None), default=None)

    highest = min(each.max for each in all_terms)
    return QuotaTerms(
        requests_per_minute=smallest(each.requests_per_minute for each in all_terms),
        tokens_per_minute=smallest(each.tokens_per_minute for each in all_terms),
        start=min(highest, *(each.start for each in all_terms)),
        min=min(highest, *(each.min for each in all_terms)),
        max=highest,
        adaptive=all(each.adaptive for each in all_terms),
    )


def _figures(now: float, quota_id: str, quota: _Quota) -> QuotaFigures:
    limits = quota.limits
    limits.refill(now)
    return QuotaFigures(
        quota_id=quota_id,
        limit=int(limits.limit),
        in_flight=limits.in_flight,
        waiting=len(quota.queue),
        throttled=limits.throttled,
        requests_per_minute=None if limits.requests.rate == math.inf else limits.requests.rate * 60,
        tokens_per_minute=None if limits.tokens.rate == math.inf else limits.tokens.rate * 60,
        paused_until=limits.paused_until if limits.paused_until > now else None,
        last_cut=limits.last_cut,
        out_targets=quota.outages.out_targets(),
        out_since=quota.outages.out_since,
        is_refused=quota.is_refused,
        failures=quota.failures,
    )

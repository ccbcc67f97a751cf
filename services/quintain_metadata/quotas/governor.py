"""The governor of one provider key, its quota: when a call of a target may start, and what each end of one teaches.

No I/O, no clock: times are seconds. In flight are the calls that were started, so that the limit is exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quintain.contracts.quota import QuotaTerms, TryFailure, TryOutcome, TryReport
from quintain_metadata.quotas.limits import CutCause, Grant, Limits
from quintain_metadata.quotas.outages import Outages


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


class Quota:
    """The governor of one quota.

    ``refused`` are the targets at which the provider refuses the key. Nothing waits for that: each caller is told.
    ``answered_at`` is when a call to each target was answered last: a refusal of a call that was granted before is that
    of its content or its model. ``started`` are the targets that were ever tried, ``failures`` why those
    had no answer that were tried in vain last.
    """

    def __init__(self, terms: QuotaTerms, now: float) -> None:
        self.limits, self.outages = Limits(terms, now), Outages()
        self.refused = set[str]()
        self.answered_at: dict[str, float] = {}
        self.started = set[str]()
        self.failures: dict[str, TryFailure] = {}

    def configure(self, terms: QuotaTerms) -> None:
        """Take over other terms, or the key of another worker: what runs goes on.

        A key that was refused counts as one that was not tried, as does a path that was not found.
        """
        self.limits.configure(terms)
        self.refused.clear()
        out = self.outages.out_targets()
        self.failures = {target: failure for target, failure in self.failures.items() if target in out}

    def wait_seconds(self, now: float, target: str) -> float:
        """How long until a call to this target may start; infinite where another one must end first."""
        return max(self.outages.wait_seconds(now, target), self.limits.wait_seconds(now, target))

    def throttled_seconds(self, now: float, target: str) -> float | None:
        """How long the key is paused, where only the provider's limits hold calls of a target back; else None."""
        is_limited = self.limits.are_known and self.limits.wait_seconds(now, target) > 0
        if not is_limited or self.outages.wait_seconds(now, target) > 0:
            return None
        return max(0.0, self.limits.paused_until - now)

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
        self._note_failure(target, report)
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

    def _note_failure(self, target: str, report: TryReport) -> None:
        if report.failure is not None:
            self.failures[target] = report.failure
        elif report.outcome is TryOutcome.ANSWERED:
            self.failures.pop(target, None)

    def save(self, now: float) -> dict[str, Any]:
        """Return what the next service goes on with, as JSON takes it."""
        return {
            "limits": self.limits.save(now),
            "outages": self.outages.save(now),
            "refused": sorted(self.refused),
            "started": sorted(self.started),
            "failures": {target: failure.model_dump(mode="json") for target, failure in self.failures.items()},
        }

    def restore(self, now: float, saved_at: float, saved: Mapping[str, Any]) -> None:
        """Go on from what the former service saved at this time; no call was started yet."""
        self.limits.restore(now, saved_at, saved.get("limits", {}))
        self.outages.restore(saved_at, saved.get("outages", {}))
        self.refused, self.started = set(saved.get("refused", ())), set(saved.get("started", ()))
        failures = saved.get("failures", {})
        self.failures = {target: TryFailure.model_validate(failure) for target, failure in failures.items()}

    def describe(self, now: float, quota_id: str, waiting: Counter[str]) -> QuotaFigures:
        """Return what the quota does at present; ``waiting`` is how many calls of each target wait."""
        limits = self.limits
        limits.refill(now)
        return QuotaFigures(
            quota_id=quota_id,
            limit=int(limits.limit),
            in_flight=limits.in_flight,
            waiting=waiting.total(),
            throttled=limits.throttled,
            requests_per_minute=None if limits.requests.rate == math.inf else limits.requests.rate * 60,
            tokens_per_minute=None if limits.tokens.rate == math.inf else limits.tokens.rate * 60,
            paused_until=limits.paused_until if limits.paused_until > now else None,
            last_cut=limits.last_cut,
            out_targets=self.outages.out_targets(),
            out_since=self.outages.out_since,
            is_refused=bool(self.refused) and self.started.union(waiting) <= self.refused,
            failures=self.failures,
        )


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

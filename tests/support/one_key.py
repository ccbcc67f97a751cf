"""The line of one key: calls of its targets wait, start and end, and nobody refuses them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from quintain.contracts.quota import QuotaTerms, TryOutcome, TryReport
from quintain_metadata.line import CallLine
from quintain_metadata.places import RunningAttempt
from quintain_metadata.quotas.fair_queue import Waiting
from quintain_metadata.quotas.governor import Quota, QuotaFigures

KEY = "key"


class OneKey:
    """A line in which all targets share one quota. ``free``: how many more calls of a target may run."""

    def __init__(self, terms: QuotaTerms) -> None:
        self.line = CallLine()
        self.configure(0, terms)

    @property
    def quota(self) -> Quota:
        return self.line.places.quota(KEY)

    def configure(self, now: float, terms: QuotaTerms) -> None:
        self.line.places.configure_quota(now, KEY, terms)

    def wait(self, waiting: Waiting) -> None:
        if waiting.attempt_id not in self.line.waiting and waiting.attempt_id not in self.line.places.running:
            self.line.places.assign(waiting.target, KEY)
            self.line.wait(0, waiting)

    def offer(self, now: float, attempt_id: str, target: str, free: Mapping[str, int] | None = None) -> bool:
        self.line.places.assign(target, KEY)
        self._bound(now, free or {})
        return self.line.offer(now, attempt_id, target, ("s", attempt_id), "w")

    def grant(self, now: float, free: Mapping[str, int] | None = None) -> list[Waiting]:
        self._bound(now, free or {})
        granted = [waiting for waiting, _ in self.line.next(now)]
        for waiting in granted:
            self.line.granted(now, RunningAttempt(waiting.attempt_id, waiting.target, waiting.call, "w"))
        return granted

    def resume(self, now: float, attempt_id: str, target: str) -> None:
        self.line.places.assign(target, KEY)
        running = RunningAttempt(attempt_id, target, ("s", attempt_id), "w")
        self.line.places.start(now, running, is_resumed=True)

    def end(self, now: float, attempt_id: str, report: TryReport) -> None:
        self.line.end(now, attempt_id, ("s", attempt_id), report)

    def forget(self, now: float, attempt_id: str) -> None:
        self.end(now, attempt_id, TryReport(outcome=TryOutcome.UNKNOWN))
        self.line.give_up(now, attempt_id)

    def due_at(self, now: float, free: Mapping[str, int] | None = None) -> float:
        self._bound(now, free or {})
        places = self.line.places
        waits = (places.wait_seconds(now, target) for target in places.groups[KEY].queue.by_target)
        return now + min(waits, default=math.inf)

    def figures(self, now: float) -> QuotaFigures:
        (found,) = self.line.places.describe(now)
        return found

    def _bound(self, now: float, free: Mapping[str, int]) -> None:
        for name, target in self.line.places.targets.items():
            limit = target.in_flight + free[name] if name in free else math.inf
            self.line.places.configure_target(now, name, limit, 0)

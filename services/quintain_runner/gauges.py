"""What the live table shows beside the counts: what is under way, how long answers take, how the budget goes. Pure.

All of it is of this invocation, in constant memory, and none of it is in the results.
"""

from __future__ import annotations

import math

from quintain.errors import Overloaded, QuintainError, Throttled
from quintain_runner.rows import GraderRow, Row, Status

#: The codes of faults that say: too much at once.
_THROTTLES = frozenset({Throttled.code, Overloaded.code})

#: Latencies are counted in buckets, each this much wider than the one before: a quantile is right within 5 %.
_WIDTH = 1.1
_FIRST_MS = 0.1


class Latencies:
    """How long things took, in milliseconds: as many counters as there are buckets, however many things."""

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._count = 0

    def add(self, took_ms: float) -> None:
        """Count one."""
        bucket = math.ceil(math.log(max(took_ms, _FIRST_MS) / _FIRST_MS, _WIDTH))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self._count += 1

    def quantile(self, share: float) -> float | None:
        """So much of them took at most so many milliseconds; None where there are none."""
        left = share * self._count
        for bucket, count in sorted(self._buckets.items()):
            left -= count
            if left <= 0:
                return float(_FIRST_MS * _WIDTH ** (bucket - 0.5))
        return None


class TargetGauge:
    """One target, as this invocation sees it. ``throttled`` counts the times it was too much at once."""

    def __init__(self) -> None:
        self.in_flight = self.ended = self.throttled = 0
        self.latencies = Latencies()

    def add(self, row: Row) -> None:
        """A row was written."""
        self.ended += 1
        if row.output is not None:
            self.latencies.add(row.duration_ms)
        if row.status is Status.ERROR and row.error is not None and row.error.code in _THROTTLES:
            self.throttled += 1

    def heard(self, error: QuintainError) -> None:
        """The target was asked again after this error."""
        self.throttled += isinstance(error, Throttled | Overloaded)


class GraderGauge:
    """One grader, as this invocation sees it."""

    def __init__(self) -> None:
        self.graded = self.passed = self.errors = self.calls = 0
        self.score_sum = 0.0

    def add(self, row: GraderRow) -> None:
        """A verdict, or the error in its place."""
        self.calls += row.calls
        if row.error is not None or row.score is None:
            self.errors += 1
            return
        self.graded += 1
        self.passed += bool(row.passed)
        self.score_sum += row.score

    @property
    def mean_score(self) -> float | None:
        """The mean of its scores; None where there is none."""
        return self.score_sum / self.graded if self.graded else None


class BudgetGauge:
    """The run's budget, as the ledger last told it."""

    def __init__(self) -> None:
        self.calls = self.max_calls = 0
        #: Calls when this invocation first asked, so that a pace can be told.
        self.calls_before: int | None = None

    def told(self, calls: int, max_calls: int) -> None:
        """The ledger's word."""
        self.calls, self.max_calls = calls, max_calls
        if self.calls_before is None:
            self.calls_before = calls

    @property
    def made(self) -> int:
        """Calls charged during this invocation."""
        return self.calls - (self.calls_before or 0)

"""The calls that the open trials of a run still need, exactly at most, and estimated from what graders took. No I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from quintain_runner.results.row import Row, RowStatus

#: The safety margin in standard deviations: the sum of many varying numbers of calls stays below it in 999 of 1000
#: runs.
_SAFETY_DEVIATIONS = 3.0


@dataclass(frozen=True, slots=True)
class NeededCalls:
    """What one trial needs: whether its target has to be asked, and the graders that have to run."""

    asks: bool = False
    graders: tuple[str, ...] = ()


class GraderCallSamples:
    """How many calls the executions of each grader made, of each column: their number, sum and sum of squares."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], tuple[int, int, int]] = {}

    def add_row(self, row: Row, *, times: int = 1) -> None:
        """Count the verdicts of a graded row; one that failed for lack of budget made fewer calls than it needs.

        ``times=-1`` takes it back.
        """
        if row.status is not RowStatus.GRADED or not row.counts:
            return
        for name, verdict in row.graders.items():
            number, calls, squares = self._sums.get((row.column, name), (0, 0, 0))
            more = times * verdict.calls
            self._sums[row.column, name] = (number + times, calls + more, squares + more * verdict.calls)

    def mean_and_variance(self, column: str, grader: str) -> tuple[float, float] | None:
        """Of the calls of one execution: in this column, else in all columns; None if none is known."""
        sums = self._sums.get((column, grader), (0, 0, 0))
        if not sums[0]:
            others = [other for (_, name), other in self._sums.items() if name == grader]
            sums = (sum(one[0] for one in others), sum(one[1] for one in others), sum(one[2] for one in others))
        number, calls, squares = sums
        mean = calls / number if number else 0.0
        return (mean, max(0.0, squares / number - mean**2)) if number else None


class CallsLeft:
    """The answers and the executions of graders that the open trials need; ``limits`` are the most calls that one
    execution of each grader can make.
    """

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        self._limits = limits or {}
        #: The number of trials whose target has to be asked.
        self.answers = 0
        self._executions: Counter[tuple[str, str]] = Counter()

    def copy(self) -> CallsLeft:
        """The same numbers, to be changed without these."""
        other = CallsLeft(self._limits)
        other.answers, other._executions = self.answers, self._executions.copy()
        return other

    def add(self, column: str, needed: NeededCalls, *, times: int = 1) -> None:
        """Add what a trial needs; ``times=-1`` takes it out."""
        self.answers += times * needed.asks
        for name in needed.graders:
            self._executions[column, name] += times

    @property
    def most(self) -> int:
        """The most calls: each grader uses its limit."""
        return self.answers + sum(count * self._limits.get(name, 0) for (_, name), count in self._executions.items())

    def estimate(self, made: GraderCallSamples) -> int:
        """The calls by what the graders took so far, with a margin for their variance; a grader of which nothing is
        known takes its limit."""
        mean, variance = float(self.answers), 0.0
        for (column, name), count in self._executions.items():
            each, spread = made.mean_and_variance(column, name) or (float(self._limits.get(name, 0)), 0.0)
            mean += count * each
            variance += count * spread
        # Rounded before taking the ceiling, because a floating-point error must not add a call.
        return math.ceil(round(mean + _SAFETY_DEVIATIONS * math.sqrt(variance), 6))

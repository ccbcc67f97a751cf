"""Counts rows for each target in constant memory, and estimates the calls that the open trials will take. No I/O."""

from __future__ import annotations

import math
from collections.abc import Collection
from fractions import Fraction

from quintain_runner.results.row import RowStats, RowStatus


class RowTally:
    """The counts of one target. ``trials`` is how many rows it is to have in the end."""

    def __init__(self, trials: int) -> None:
        self.trials = trials
        self.by_status = dict.fromkeys(RowStatus, 0)
        self.passed = self.calls = self.input_tokens = self.output_tokens = 0
        #: What the graded rows cost, and the sum of the squares of that: how much it scatters.
        self.graded_calls = self.graded_calls_squared = 0
        # Exact, so that the order in which cases end changes nothing: the numerators, by their denominator, which is a
        # power of two.
        self._scores: dict[int, int] = {}

    def add(self, row: RowStats, *, times: int = 1) -> None:
        """Count a row; ``times=-1`` takes it back, when a newer one supersedes it."""
        self.by_status[row.status] += times
        self.passed += times * row.passed
        self.calls += times * row.calls
        self.input_tokens += times * row.input_tokens
        self.output_tokens += times * row.output_tokens
        if row.status is RowStatus.GRADED:
            numerator, denominator = row.score.as_integer_ratio()
            self._scores[denominator] = self._scores.get(denominator, 0) + times * numerator
            self.graded_calls += times * row.calls
            self.graded_calls_squared += times * row.calls**2

    def __iadd__(self, other: RowTally) -> RowTally:
        """Add what another one counted; how many rows there are to be stays."""
        for status, count in other.by_status.items():
            self.by_status[status] += count
        self.passed += other.passed
        self.calls += other.calls
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.graded_calls += other.graded_calls
        self.graded_calls_squared += other.graded_calls_squared
        for denominator, numerator in other._scores.items():
            self._scores[denominator] = self._scores.get(denominator, 0) + numerator
        return self

    @property
    def graded(self) -> int:
        """Rows with a score."""
        return self.by_status[RowStatus.GRADED]

    @property
    def errors(self) -> int:
        """Rows with an error, to be asked again."""
        return self.by_status[RowStatus.ERROR]

    @property
    def in_doubt(self) -> int:
        """Rows of calls that were charged and whose outcome nobody knows."""
        return self.by_status[RowStatus.IN_DOUBT]

    @property
    def done(self) -> int:
        """Rows of any kind."""
        return sum(self.by_status.values())

    @property
    def score_sum(self) -> Fraction:
        """The sum of the scores of the graded rows."""
        return sum((Fraction(numerator, denominator) for denominator, numerator in self._scores.items()), Fraction())

    @property
    def mean_score(self) -> float | None:
        """The mean over the graded rows; None where there is none. Errors are never a score of 0."""
        return float(self.score_sum / self.graded) if self.graded else None


#: A sum of many scattered costs stays below its mean by so many standard deviations in 999 of 1000 runs.
_SAFETY_DEVIATIONS = 3.0


def estimate_remaining_calls(tallies: Collection[RowTally], *, max_calls_per_trial: int) -> int:
    """How many calls finish what waits and what erred, with room for how much the graded rows scatter.

    Only graded rows are measured: one that erred for want of budget cost less than it will. A target without any costs
    as much as the others, and where no row is graded each trial its utmost, ``max_calls_per_trial``.
    """
    everything = RowTally(0)
    for tally in tallies:
        everything += tally
    mean, variance = 0.0, 0.0
    for tally in tallies:
        left = tally.trials - tally.graded - tally.in_doubt
        sample = tally if tally.graded else everything
        if sample.graded:
            each = sample.graded_calls / sample.graded
            cost_variance = max(0.0, sample.graded_calls_squared / sample.graded - each**2)
        else:
            each, cost_variance = float(max_calls_per_trial), 0.0
        mean += left * each
        variance += left * cost_variance
    # Rounded first: a mean of whole numbers is one, whatever its last binary digit.
    return math.ceil(round(mean + _SAFETY_DEVIATIONS * math.sqrt(variance), 6))

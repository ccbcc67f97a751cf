"""Counting rows, for the progress and for the end: per target, one row at a time, in constant memory. Pure."""

from __future__ import annotations

from fractions import Fraction

from quintain_runner.rows import Mark, Status


class Tally:
    """The counts of one target. ``trials`` is how many rows it is to have in the end."""

    def __init__(self, trials: int) -> None:
        self.trials = trials
        self.by_status = dict.fromkeys(Status, 0)
        self.passed = self.calls = self.input_tokens = self.output_tokens = 0
        #: What the graded rows cost, and the sum of the squares of that: how much it scatters.
        self.graded_calls = self.graded_calls_squared = 0
        # Exact, so that the order in which cases end changes nothing: the numerators, by their denominator, which is a
        # power of two.
        self._scores: dict[int, int] = {}

    def add(self, mark: Mark, *, times: int = 1) -> None:
        """Count a row; ``times=-1`` takes it back, when a newer one supersedes it."""
        self.by_status[mark.status] += times
        self.passed += times * mark.passed
        self.calls += times * mark.calls
        self.input_tokens += times * mark.input_tokens
        self.output_tokens += times * mark.output_tokens
        if mark.status is Status.GRADED:
            numerator, denominator = mark.score.as_integer_ratio()
            self._scores[denominator] = self._scores.get(denominator, 0) + times * numerator
            self.graded_calls += times * mark.calls
            self.graded_calls_squared += times * mark.calls**2

    def __iadd__(self, other: Tally) -> Tally:
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
        return self.by_status[Status.GRADED]

    @property
    def errors(self) -> int:
        """Rows with an error, to be asked again."""
        return self.by_status[Status.ERROR]

    @property
    def in_doubt(self) -> int:
        """Rows of calls that were charged and whose outcome nobody knows."""
        return self.by_status[Status.IN_DOUBT]

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

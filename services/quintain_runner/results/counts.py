"""Counts rows in constant memory. No I/O."""

from __future__ import annotations

from fractions import Fraction

from quintain_runner.results.row import RowStats, RowStatus


class RowTally:
    """The counts of one target's rows. ``trials`` is the number of rows that the complete run has."""

    def __init__(self, trials: int) -> None:
        self.trials = trials
        self.by_status = dict.fromkeys(RowStatus, 0)
        self.passed = self.calls = self.input_tokens = self.output_tokens = 0
        #: The number of rows that count although what made them changed.
        self.stale = 0
        # The exact sum of the scores, so that the order in which cases end does not change it: numerators by
        # denominator (a power of two).
        self._scores: dict[int, int] = {}

    def add(self, row: RowStats, *, times: int = 1) -> None:
        """Count a row. ``times=-1`` subtracts a row that a newer one supersedes."""
        self.by_status[row.status] += times
        self.passed += times * row.passed
        self.stale += times * row.stale
        self.calls += times * row.calls
        self.input_tokens += times * row.input_tokens
        self.output_tokens += times * row.output_tokens
        if row.status is RowStatus.GRADED:
            numerator, denominator = row.score.as_integer_ratio()
            self._scores[denominator] = self._scores.get(denominator, 0) + times * numerator

    def __iadd__(self, other: RowTally) -> RowTally:
        """Add the counts of another tally; ``trials`` does not change."""
        for status, count in other.by_status.items():
            self.by_status[status] += count
        self.passed += other.passed
        self.calls += other.calls
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.stale += other.stale
        for denominator, numerator in other._scores.items():
            self._scores[denominator] = self._scores.get(denominator, 0) + numerator
        return self

    @property
    def graded(self) -> int:
        """The number of rows with a score."""
        return self.by_status[RowStatus.GRADED]

    @property
    def errors(self) -> int:
        """The number of error rows; they are executed again when the run is resumed."""
        return self.by_status[RowStatus.ERROR]

    @property
    def in_doubt(self) -> int:
        """The number of rows whose call was charged but has no known outcome."""
        return self.by_status[RowStatus.IN_DOUBT]

    @property
    def done(self) -> int:
        """The number of rows with any status."""
        return sum(self.by_status.values())

    @property
    def score_sum(self) -> Fraction:
        """The exact sum of the scores of the graded rows."""
        return sum((Fraction(numerator, denominator) for denominator, numerator in self._scores.items()), Fraction())

    @property
    def mean_score(self) -> float | None:
        """The mean score of the graded rows, or None if there are none; error rows never count as a score of 0."""
        return float(self.score_sum / self.graded) if self.graded else None

"""Counting rows, for the progress and for the end: per target, one row at a time, in constant memory. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from quintain_runner.rows import Key, Mark, Row, Status

#: How many errors wait to be shown; the rest is in the results.
_ERRORS_WAITING = 20


class Tally:
    """The counts of one target. ``trials`` is how many rows it is to have in the end."""

    def __init__(self, trials: int) -> None:
        self.trials = trials
        self.by_status = dict.fromkeys(Status, 0)
        self.passed = self.calls = self.input_tokens = self.output_tokens = 0
        # Exact, so that the order in which cases end changes nothing.
        self._score_sum = Fraction()

    def add(self, mark: Mark, *, times: int = 1) -> None:
        """Count a row; ``times=-1`` takes it back, when a newer one supersedes it."""
        self.by_status[mark.status] += times
        self.passed += times * mark.passed
        self.calls += times * mark.calls
        self.input_tokens += times * mark.input_tokens
        self.output_tokens += times * mark.output_tokens
        if mark.status is Status.GRADED:
            self._score_sum += times * Fraction(mark.score)

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
        return self._score_sum

    @property
    def mean_score(self) -> float | None:
        """The mean over the graded rows; None where there is none. Errors are never a score of 0."""
        return float(self._score_sum / self.graded) if self.graded else None


class Board:
    """What a run has done so far: a tally per target, and the errors nobody has shown yet."""

    def __init__(self, targets: Sequence[str], *, cases: int, repeats: int, kept: Mapping[Key, Mark]) -> None:
        self._kept, self._repeats = kept, repeats
        self.cases = cases
        self.tallies = {target: Tally(cases * repeats) for target in targets}
        self._errors: deque[str] = deque(maxlen=_ERRORS_WAITING)
        for key, mark in kept.items():
            if key.target in self.tallies and key.repeat <= repeats:
                self.tallies[key.target].add(mark)
        self.calls_before = {target: tally.calls for target, tally in self.tallies.items()}

    def add(self, row: Row) -> None:
        """Count a row of this run."""
        tally, before = self.tallies[row.target], self._kept.get(row.key)
        if before is not None:
            tally.add(before, times=-1)
        tally.add(Mark.of(row))
        if row.error is not None:
            self._errors.append(f"{row.case_id} · {row.target}: {row.error.error}")

    def new_errors(self) -> Iterator[str]:
        """The errors since this was last asked; of a flood the latest ones."""
        while self._errors:
            yield self._errors.popleft()

    @property
    def trials(self) -> int:
        """How many rows there will be."""
        return sum(tally.trials for tally in self.tallies.values())

    @property
    def done(self) -> int:
        """How many rows there are."""
        return sum(tally.done for tally in self.tallies.values())

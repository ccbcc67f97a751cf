"""Counts of the trials of each column, kept while the index is written. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from quintain_view.index.schema import Outcome

SCORE_BINS = 10


class ColumnCounts(NamedTuple):
    """How the trials of one column ended, and how many of their scores are in each tenth from 0 to 1."""

    passed: int
    failed: int
    errors: int
    in_doubt: int
    stale: int
    score_sum: float
    bins: tuple[int, ...]


NO_COUNTS = ColumnCounts(0, 0, 0, 0, 0, 0.0, (0,) * SCORE_BINS)


class CountedTrial(NamedTuple):
    """What is counted of one trial; one that does not count is in no count."""

    outcome: int
    score: float | None
    stale: bool
    counts: bool


class CountsByColumn:
    """The counts of every column, by its number. Trials are added, and taken back when a newer row supersedes them."""

    def __init__(self, stored: str | None = None) -> None:
        self._columns: dict[int, list[int]] = {int(key): value for key, value in json.loads(stored or "{}").items()}

    def add(self, column_no: int, trial: CountedTrial, *, times: int = 1) -> None:
        """Count a trial; ``times=-1`` takes it back."""
        if not trial.counts:
            return
        numbers = self._columns.setdefault(column_no, [0] * (len(Outcome) + 1 + 1 + SCORE_BINS))
        numbers[trial.outcome] += times
        numbers[len(Outcome)] += times * trial.stale
        if trial.score is not None:
            # Millionths, so that the sum does not drift as trials are added and taken back.
            numbers[len(Outcome) + 1] += times * round(trial.score * 1_000_000)
            numbers[len(Outcome) + 2 + min(SCORE_BINS - 1, max(0, int(trial.score * SCORE_BINS)))] += times

    def to_text(self) -> str:
        """The counts as the index stores them."""
        return json.dumps(self._columns)

    def by_name(self, names: Mapping[str, int]) -> dict[str, ColumnCounts]:
        """The counts of columns by their names; ``names`` gives their numbers."""
        return {name: self._counts_of(number) for name, number in names.items()}

    def _counts_of(self, column_no: int) -> ColumnCounts:
        numbers = self._columns.get(column_no)
        if numbers is None:
            return NO_COUNTS
        passed, failed, errors, in_doubt, stale, millionths, *bins = numbers
        return ColumnCounts(passed, failed, errors, in_doubt, stale, millionths / 1_000_000, tuple(bins))

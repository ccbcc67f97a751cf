"""Counts the rows that a folder held when it was opened. No I/O."""

from __future__ import annotations

from collections import Counter

from quintain_runner.results.calls_left import GraderCallSamples
from quintain_runner.results.counts import RowTally
from quintain_runner.results.row import Row, RowStats, count_most_calls


class ResumeState:
    """The counts of the latest row of each case, target, prompt and repeat."""

    def __init__(self) -> None:
        #: The counts of each column and repeat, of the rows that count.
        self.tallies: dict[tuple[str, int], RowTally] = {}
        #: What all rows were charged, those too that do not count.
        self.calls_in_rows = 0
        #: How many rows do not hold their answer, so that they cannot be graded again.
        self.rows_without_content = 0
        #: The most calls that one execution of each grader made.
        self.most_grader_calls: Counter[str] = Counter()
        #: The calls of the graders of the rows that count.
        self.grader_calls = GraderCallSamples()

    def add_row(self, row: Row, *, times: int = 1) -> None:
        """Count a row; ``times=-1`` takes it back, when another supersedes it."""
        self.calls_in_rows += times * row.calls
        self.rows_without_content += times * (row.has_answer and not row.is_gradable)
        count_most_calls(self.most_grader_calls, row)
        self.grader_calls.add_row(row, times=times)
        if row.counts:
            self.tallies.setdefault((row.column, row.repeat), RowTally(0)).add(RowStats.of(row), times=times)

"""Compares the trials of two runs by case and repeat: read from both indexes, and as a page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import apsw

from quintain.web import visible
from quintain_runner.report.text_table import TextTable
from quintain_runner.results.row import Row
from quintain_view.case_page import OUTCOME_WORDS
from quintain_view.index_schema import Outcome
from quintain_view.index_writer import index_path
from quintain_view.text import ShownText, json_text, shown


class PairChange(StrEnum):
    """What the later run changed in one trial."""

    BROKEN = "broken"
    FIXED = "fixed"
    WORSE = "worse"
    BETTER = "better"
    OTHER = "other"
    SAME = "same"


class TrialPair(NamedTuple):
    """One trial in both runs: its case, how it ended, its scores, and where its rows stand in the results."""

    change: PairChange
    case_id: str
    repeat: int
    outcomes: tuple[Outcome, Outcome]
    scores: tuple[float | None, float | None]
    places: tuple[tuple[int, int], tuple[int, int]]


#: A score that differs by less did not change.
_SAME_SCORE = 1e-9

_CHANGE = f"""CASE
    WHEN old.outcome = {Outcome.PASSED:d} AND new.outcome = {Outcome.FAILED:d} THEN '{PairChange.BROKEN}'
    WHEN old.outcome = {Outcome.FAILED:d} AND new.outcome = {Outcome.PASSED:d} THEN '{PairChange.FIXED}'
    WHEN old.outcome != new.outcome THEN '{PairChange.OTHER}'
    WHEN new.score < old.score - {_SAME_SCORE} THEN '{PairChange.WORSE}'
    WHEN new.score > old.score + {_SAME_SCORE} THEN '{PairChange.BETTER}'
    ELSE '{PairChange.SAME}' END"""

_PAIRS = f"""
    SELECT {_CHANGE} AS change, old_case.case_id, old.repeat, old.outcome, new.outcome, old.score, new.score,
        old.offset, old.length, new.offset, new.length
    FROM trial AS old
    JOIN case_text AS old_case ON old_case.case_no = old.case_no
    JOIN later.case_text AS new_case ON new_case.case_id = old_case.case_id
    JOIN later.trial AS new ON new.case_no = new_case.case_no AND new.column_no = ? AND new.repeat = old.repeat
    WHERE old.column_no = ? AND old.counts AND new.counts"""


class PairReader:
    """The trials of one column of an earlier and of one column of a later run. Close it after use."""

    def __init__(self, folders: tuple[Path, Path], columns: tuple[str, str]) -> None:
        self._connection = apsw.Connection(str(index_path(folders[0])), flags=apsw.SQLITE_OPEN_READWRITE)
        self._connection.execute("ATTACH ? AS later", (str(index_path(folders[1])),))
        self._numbers = self._number("later", columns[1]), self._number("main", columns[0])

    def close(self) -> None:
        """Close the indexes."""
        self._connection.close()

    def counts(self) -> dict[PairChange, int]:
        """How many pairs there are of each change."""
        found = self._connection.execute(f"SELECT change, count(*) FROM ({_PAIRS}) GROUP BY change", self._numbers)
        counted = {PairChange(change): int(count) for change, count in found}
        return {change: counted.get(change, 0) for change in PairChange}

    def pairs(self, change: PairChange, *, offset: int, limit: int) -> list[TrialPair]:
        """The pairs with this change, in the order of the earlier run."""
        sql = f"SELECT * FROM ({_PAIRS}) WHERE change = ? LIMIT ? OFFSET ?"
        return [
            TrialPair(
                *(PairChange(values[0]), values[1], values[2], (Outcome(values[3]), Outcome(values[4]))),
                scores=(values[5], values[6]),
                places=((values[7], values[8]), (values[9], values[10])),
            )
            for values in self._connection.execute(sql, (*self._numbers, str(change), limit, offset))
        ]

    def _number(self, schema: str, column: str) -> int:
        found = self._connection.execute(f"SELECT column_no FROM {schema}.result_column WHERE name = ?", (column,))
        return next((int(number) for (number,) in found), -1)


CHANGE_WORDS = {
    PairChange.BROKEN: "passed before, fails now",
    PairChange.FIXED: "failed before, passes now",
    PairChange.WORSE: "lower score",
    PairChange.BETTER: "higher score",
    PairChange.OTHER: "an error or a call in doubt in one of them",
    PairChange.SAME: "the same",
}

#: How many characters of a text a line of the comparison shows.
MAX_LINE_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """One of the two answers of a trial."""

    outcome: str
    score: float | None
    text: ShownText | None


@dataclass(frozen=True, slots=True)
class ComparedTrial:
    """A trial in both runs."""

    case_id: str
    shown_id: str
    repeat: int
    question: ShownText | None
    expected: ShownText | None
    before: ComparedAnswer
    after: ComparedAnswer


@dataclass(frozen=True, slots=True)
class ComparePage:
    """The comparison of two columns of two runs."""

    before: str
    after: str
    columns: tuple[str, str]
    choices: list[tuple[str, str]]
    counts: dict[PairChange, int]
    change: PairChange
    tables: list[TextTable]
    conclusion: str
    trials: list[ComparedTrial]
    page: int
    has_next: bool


def column_choices(before: Sequence[str], after: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of columns that can be compared: those with one name, or the only one of each run."""
    shared = [(name, name) for name in before if name in after]
    return shared or ([(before[0], after[0])] if len(before) == len(after) == 1 else [])


def compared_trial(pair: TrialPair, rows: tuple[Row, Row]) -> ComparedTrial:
    """One line of the comparison."""
    case = rows[0].case or rows[1].case
    question = None if case is None or case.question is None else case.question
    expected = None if case is None or case.expected is None else json_text(case.expected)
    before, after = (_answer(pair, row, number) for number, row in enumerate(rows))
    return ComparedTrial(
        case_id=pair.case_id,
        shown_id=visible(pair.case_id),
        repeat=pair.repeat,
        question=None if question is None else shown(question, MAX_LINE_CHARACTERS),
        expected=None if expected is None else shown(expected, MAX_LINE_CHARACTERS),
        before=before,
        after=after,
    )


def _answer(pair: TrialPair, row: Row, number: int) -> ComparedAnswer:
    text = row.output if row.output is not None else None if row.error is None else row.error.error
    return ComparedAnswer(
        OUTCOME_WORDS[pair.outcomes[number]],
        pair.scores[number],
        None if text is None else shown(text, MAX_LINE_CHARACTERS),
    )

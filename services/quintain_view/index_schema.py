"""The tables of the index, and what they keep of a row.

Lists of a million trials stay quick because each order has an index that covers every filter: a page of a list is read
from one index, without a look at the table.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import apsw

from quintain_runner.results.row import Row, RowStatus

#: The file, beside ``results.jsonl``. It can be removed at any time: it is made again from the results.
FILE_NAME: Final = "view.sqlite3"

#: An index of another version is made anew.
SCHEMA_VERSION: Final = 2

#: Of so many graders a row's index says which failed the answer: the bits of a positive SQLite integer.
MAX_GRADER_BITS: Final = 62

#: In the order by score, trials without a score come last.
NO_SCORE_KEY: Final = 2.0

#: A row of the text index is a case number and, in the lower bits, a running number.
TEXT_ROW_BITS: Final = 20


class Outcome(IntEnum):
    """How a trial ended."""

    PASSED = 0
    FAILED = 1
    ERROR = 2
    IN_DOUBT = 3


TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE result_column (column_no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE grader (bit INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE case_text (case_no INTEGER PRIMARY KEY, case_id TEXT NOT NULL UNIQUE, question TEXT NOT NULL);
CREATE VIRTUAL TABLE trial_text USING fts5(words, content='', detail=none);
CREATE TABLE trial (
    case_no INTEGER NOT NULL, column_no INTEGER NOT NULL, repeat INTEGER NOT NULL, outcome INTEGER NOT NULL,
    score REAL, score_key REAL NOT NULL, duration_ms REAL NOT NULL, input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, cost REAL NOT NULL, disagreement REAL NOT NULL, failed_graders INTEGER NOT NULL,
    stale INTEGER NOT NULL, counts INTEGER NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL,
    PRIMARY KEY (case_no, column_no, repeat)
) WITHOUT ROWID;
"""

_FILTERED: Final = "outcome, column_no, failed_graders, stale, score_key, case_no"

#: One for each order of a list, and one of the stale trials, which are few. They are made after the first pass over a
#: file, because that is quicker.
ORDER_INDEXES: Final = {
    "trial_by_outcome": "(outcome, case_no, column_no, failed_graders, stale, score_key)",
    "trial_by_score": "(score_key, case_no, outcome, column_no, failed_graders, stale)",
    "trial_by_duration": f"(duration_ms, {_FILTERED})",
    "trial_by_cost": f"(cost, {_FILTERED})",
    "trial_by_disagreement": f"(disagreement, {_FILTERED})",
    "trial_stale": "(case_no) WHERE stale = 1",
}


#: How many characters of one text can be found; a longer text is searched in its beginning.
MAX_SEARCHED_CHARACTERS = 4_000

#: How many characters of a question lists show.
MAX_QUESTION_CHARACTERS = 240


class IndexEntry(NamedTuple):
    """The values of a row by which lists filter and sort; ``failed_graders`` are names."""

    outcome: Outcome
    score: float | None
    score_key: float
    duration_ms: float
    input_tokens: int
    output_tokens: int
    disagreement: float
    failed_graders: tuple[str, ...]
    stale: bool
    counts: bool


def outcome_of(row: Row) -> Outcome:
    """How the trial of a row ended."""
    if row.status is RowStatus.IN_DOUBT:
        return Outcome.IN_DOUBT
    if row.status is RowStatus.ERROR:
        return Outcome.ERROR
    return Outcome.PASSED if row.passed else Outcome.FAILED


def disagreement_of(row: Row) -> float:
    """The distance between the highest and the lowest score that graders gave, or the judges of one jury; 0 with fewer
    than two scores."""
    groups = [row.graders, *(grader.votes for grader in row.graders.values())]
    return max(_spread(one.score for one in group.values()) for group in groups)


def _spread(scores: Iterable[float | None]) -> float:
    given = [score for score in scores if score is not None]
    return max(given) - min(given) if len(given) > 1 else 0.0


def entry_of(row: Row) -> IndexEntry:
    """What the index keeps of this row."""
    return IndexEntry(
        outcome=outcome_of(row),
        score=row.score,
        score_key=NO_SCORE_KEY if row.score is None else row.score,
        duration_ms=row.duration_ms,
        input_tokens=row.token_usage.input,
        output_tokens=row.token_usage.output,
        disagreement=disagreement_of(row),
        failed_graders=tuple(name for name, grader in row.graders.items() if not grader.passed),
        stale=row.stale is not None,
        counts=row.counts,
    )


def question_text(row: Row) -> str:
    """What was asked, as one text: the question, or the text of the last message; empty if the row has no contents."""
    if row.case is None:
        return ""
    if row.case.question is not None:
        return row.case.question
    contents = [message.content for message in row.case.messages or ()]
    if not contents and row.case.user is not None:
        return row.case.user.goal
    return content_text(contents[-1]) if contents else next(iter(row.case.turns or ()), "")


def content_text(content: str | Sequence[Mapping[str, object]]) -> str:
    """The text parts of a message's content."""
    if isinstance(content, str):
        return content
    return "\n".join(text for part in content if isinstance(text := part.get("text"), str))


def searched_text(row: Row) -> str:
    """The words by which a text filter finds a row: of its id, question, expected and given answer, reasons, error."""
    return "\n".join(text[:MAX_SEARCHED_CHARACTERS] for text in _texts(row) if text)


def _texts(row: Row) -> Iterator[str | None]:
    yield row.case_id
    yield question_text(row)
    if row.case is not None and row.case.expected is not None:
        yield str(row.case.expected)
    yield row.output
    for grader in row.graders.values():
        yield grader.reason
        yield grader.error
    if row.error is not None:
        yield row.error.code
        yield row.error.error


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


def all_rows(connection: apsw.Connection, sql: str, values: Sequence[str | float | None] = ()) -> list[tuple[Any, ...]]:
    """Every row of a query; the values take the place of the question marks."""
    return [tuple(row) for row in connection.execute(sql, tuple(values))]


def first_values(connection: apsw.Connection, sql: str, values: Sequence[str | float | None] = ()) -> Iterator[Any]:
    """The first column of a query, row by row as they are asked for."""
    return itertools.chain.from_iterable(connection.execute(sql, tuple(values)))

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

from quintain_runner.report.run_report import question_text
from quintain_runner.results.row import Row, RowStatus
from quintain_runner.spec.grader_options import required_repeats
from quintain_runner.statistics.analysis import pass_at_k, pass_hat_k

#: The file, beside ``results.jsonl``. It can be removed at any time: it is made again from the results.
FILE_NAME: Final = "view.sqlite3"

#: An index of another version is made anew.
SCHEMA_VERSION: Final = 9

#: So many graders and columns have a bit of their own: those of a positive SQLite integer.
MAX_BITS: Final = 62

#: A row of the text index is a case number and, in the lower bits, a running number. The fewer bits, the smaller the
#: index. There are enough for twice the trials of a run; a case of more rows has its index made anew with the most.
LEAST_TEXT_BITS: Final = 4
MOST_TEXT_BITS: Final = 20

#: What scores, and costs in US dollars, are multiplied by: SQLite stores small integers in few bytes.
SCORE_UNITS: Final = 1_000_000
COST_UNITS: Final = 1_000_000_000

#: In the order by score, trials without a score come last.
NO_SCORE: Final = 2 * SCORE_UNITS

_MOST: Final = 1 << 62


class Outcome(IntEnum):
    """How a trial ended."""

    PASSED = 0
    FAILED = 1
    ERROR = 2
    IN_DOUBT = 3
    UNCOMPARED = 4


_OUTCOMES: Final = range(len(Outcome))

TABLES: Final = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE result_column (column_no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE grader (bit INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE case_text (
    case_no INTEGER PRIMARY KEY, case_id TEXT NOT NULL UNIQUE, question TEXT NOT NULL, tags TEXT NOT NULL,
    texts INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE case_tag (field TEXT, value TEXT, case_no INTEGER, PRIMARY KEY (field, value, case_no)) WITHOUT ROWID;
CREATE TABLE case_state (
    case_no INTEGER PRIMARY KEY, {", ".join(f"{kind}_{one}" for kind in ("any", "reduced") for one in _OUTCOMES)}
);
CREATE TABLE grader_score (
    bit INTEGER, value INTEGER, case_no INTEGER, column_no INTEGER, repeat INTEGER, outcome INTEGER,
    PRIMARY KEY (bit, value, case_no, column_no, repeat)
) WITHOUT ROWID;
CREATE VIRTUAL TABLE trial_text USING fts5(answer, question, reason, content='', columnsize=0);
CREATE TABLE trial (
    case_no INTEGER NOT NULL, column_no INTEGER NOT NULL, repeat INTEGER NOT NULL, outcome INTEGER NOT NULL,
    score_units INTEGER NOT NULL, duration_ms INTEGER NOT NULL,
    cost_units INTEGER NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
    disagreement_units INTEGER NOT NULL, failed_graders INTEGER NOT NULL, scores TEXT NOT NULL,
    offset INTEGER NOT NULL, length INTEGER NOT NULL, asked INTEGER NOT NULL,
    score AS (nullif(score_units, {NO_SCORE}) / {SCORE_UNITS:.1f}), cost AS (cost_units / {COST_UNITS:.1f}),
    disagreement AS (disagreement_units / {SCORE_UNITS:.1f}),
    PRIMARY KEY (case_no, column_no, repeat)
) WITHOUT ROWID;
"""

#: The states of cases: for each outcome, the bits of the columns in which any repeat ended so, and of those whose
#: repeats are reduced to it.
STATES_OF_CASES: Final = f"""
INSERT OR REPLACE INTO case_state
SELECT case_no, {", ".join(f"sum(bit * (count_{one} > 0))" for one in _OUTCOMES)},
    {", ".join(f"sum(bit * (reduced = {one}))" for one in _OUTCOMES)}
FROM (
    SELECT *, reduced_outcome({", ".join(f"count_{one}" for one in _OUTCOMES)}) AS reduced FROM (
        SELECT case_no, 1 << column_no AS bit, {", ".join(f"sum(outcome = {one}) AS count_{one}" for one in _OUTCOMES)}
        FROM trial WHERE case_no IN (SELECT value FROM json_each(?)) AND column_no < {MAX_BITS}
        GROUP BY case_no, column_no
    )
) GROUP BY case_no
"""

_FILTERED: Final = "outcome, column_no, failed_graders, score_units, case_no"

#: One for each order of a list. They are made after the first pass over a file, because that is quicker. Trials without
#: a cost or a disagreement have no place in its order: where no price is known, or one grader is asked, they are all.
ORDER_INDEXES: Final = {
    "trial_by_outcome": "(outcome, case_no, column_no, failed_graders, score_units)",
    "trial_by_score": "(score_units, case_no, outcome, column_no, failed_graders)",
    "trial_by_duration": f"(duration_ms, {_FILTERED})",
    "trial_by_cost": f"(cost_units, {_FILTERED}) WHERE cost_units > 0",
    "trial_by_tokens": f"(input_tokens + output_tokens, {_FILTERED})",
    "trial_by_disagreement": f"(disagreement_units, {_FILTERED}) WHERE disagreement_units > 0",
}


#: How many characters of one text can be found; a longer text is searched in its beginning.
MAX_SEARCHED_CHARACTERS = 64_000

#: How many characters of a question lists show.
MAX_QUESTION_CHARACTERS = 240


def outcome_of(row: Row) -> Outcome:
    """How the trial of a row ended."""
    if row.status is RowStatus.IN_DOUBT:
        return Outcome.IN_DOUBT
    if row.status is RowStatus.ERROR:
        return Outcome.ERROR
    if row.status is RowStatus.UNCOMPARED:
        return Outcome.UNCOMPARED
    return Outcome.PASSED if row.passed else Outcome.FAILED


def reduced_outcome(counts: Sequence[int], reducer: str | None) -> Outcome:
    """What the repeats of a case in one column come to; ``counts`` are how many had each `Outcome`.

    Without a reducer it is the worst of them, in the order error, in doubt, uncompared, failed, passed. With one,
    repeats without a score are left out, and ``pass@k`` and ``pass^k`` pass where their value is a half or more. Other
    reducers pass where more than half of the repeats do: a mean score says nothing of who passed.
    """
    passed, failed, *unscored = counts
    graded = passed + failed
    k = 1 if reducer is None else required_repeats(reducer)
    if graded < k or (reducer is None and any(unscored)):
        return next((one for one, count in zip(list(Outcome)[2:], unscored, strict=True) if count), Outcome.ERROR)
    if reducer is None:
        is_pass = failed == 0
    elif "@" in reducer or "^" in reducer:
        is_pass = (pass_at_k if "@" in reducer else pass_hat_k)(graded, passed, k) >= 0.5
    else:
        is_pass = 2 * passed > graded
    return Outcome.PASSED if is_pass else Outcome.FAILED


def disagreement_of(row: Row) -> float:
    """The distance between the highest and the lowest score that graders gave, or the judges of one jury; 0 with fewer
    than two scores."""
    groups = [row.graders, *(grader.votes for grader in row.graders.values())]
    return max(_spread(one.score for one in group.values()) for group in groups)


def _spread(scores: Iterable[float | None]) -> float:
    given = [score for score in scores if score is not None]
    return max(given) - min(given) if len(given) > 1 else 0.0


def whole(value: float) -> int:
    """The nearest whole number of which SQLite can hold the sum of two."""
    return round(min(_MOST, max(-_MOST, value)))


def searched_texts(row: Row) -> tuple[str, str, str]:
    """The texts in which words find a row: id, question and expected answer; the answer; reasons and the error."""
    expected = None if row.case is None or row.case.expected is None else str(row.case.expected)
    said = [text for grader in row.graders.values() for text in (grader.reason, grader.error)]
    if row.error is not None:
        said += [row.error.code, row.error.error]
    return _searched((row.case_id, question_text(row), expected)), _searched((row.output,)), _searched(said)


def _searched(texts: Iterable[str | None]) -> str:
    return "\n".join(text[:MAX_SEARCHED_CHARACTERS] for text in texts if text)


SCORE_BINS = 10


class ColumnCounts(NamedTuple):
    """How the trials of one column ended, and how many of their scores are in each tenth from 0 to 1."""

    passed: int
    failed: int
    errors: int
    in_doubt: int
    uncompared: int
    score_sum: float
    bins: tuple[int, ...]


NO_COUNTS = ColumnCounts(0, 0, 0, 0, 0, 0.0, (0,) * SCORE_BINS)


class CountedTrial(NamedTuple):
    """What is counted of one trial, as the index stores it."""

    outcome: int
    score_units: int


#: Where the bins of scores stand in the numbers of a column: after the outcomes and the sum.
_BINS_AT = len(Outcome) + 1


class CountsByColumn:
    """The counts of every column, by its number. Trials are added, and taken back when a newer row supersedes them."""

    def __init__(self, stored: str | None = None) -> None:
        self._columns: dict[int, list[int]] = {int(key): value for key, value in json.loads(stored or "{}").items()}

    def add(self, column_no: int, trial: CountedTrial, *, times: int = 1) -> None:
        """Count a trial; ``times=-1`` takes it back."""
        numbers = self._columns.setdefault(column_no, [0] * (_BINS_AT + SCORE_BINS))
        numbers[trial.outcome] += times
        if trial.score_units != NO_SCORE:
            numbers[len(Outcome)] += times * trial.score_units
            numbers[_BINS_AT + min(SCORE_BINS - 1, max(0, trial.score_units * SCORE_BINS // SCORE_UNITS))] += times

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
        passed, failed, errors, in_doubt, uncompared, score_units, *bins = numbers
        return ColumnCounts(passed, failed, errors, in_doubt, uncompared, score_units / SCORE_UNITS, tuple(bins))


def all_rows(connection: apsw.Connection, sql: str, values: Sequence[str | float | None] = ()) -> list[tuple[Any, ...]]:
    """Every row of a query; the values take the place of the question marks."""
    return [tuple(row) for row in connection.execute(sql, tuple(values))]


def first_values(connection: apsw.Connection, sql: str, values: Sequence[str | float | None] = ()) -> Iterator[Any]:
    """The first column of a query, row by row as they are asked for."""
    return itertools.chain.from_iterable(connection.execute(sql, tuple(values)))

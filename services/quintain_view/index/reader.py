"""Reads lists, counts and places of rows from the index of a results folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw

from quintain_view.index.counts import ColumnCounts, CountsByColumn
from quintain_view.index.filters import SortOrder, SqlCondition, TrialFilter
from quintain_view.index.schema import Outcome
from quintain_view.index.sql import all_rows
from quintain_view.index.writer import index_path

#: A count of cases stops here: a list says "more than".
MAX_COUNTED_CASES = 1_000

_COLUMNS = "SELECT name, column_no FROM result_column ORDER BY column_no"

#: Words that so many texts have are common.
COMMON_TEXTS = 20_000


class TrialEntry(NamedTuple):
    """One trial of the index, and where its row stands in the results."""

    case_no: int
    column_no: int
    repeat: int
    outcome: Outcome
    score: float | None
    duration_ms: float
    input_tokens: int
    output_tokens: int
    cost: float
    disagreement: float
    stale: bool
    counts: bool
    offset: int
    length: int


class CaseEntry(NamedTuple):
    """One case of a list: its number in the index, its id and the beginning of its question."""

    case_no: int
    case_id: str
    question: str


class IndexReader:
    """The index of one folder, open for reading. Use `open_index`."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.columns: dict[str, int] = {
            name: number
            for number, name in all_rows(connection, "SELECT column_no, name FROM result_column ORDER BY 1")
        }
        self.graders: dict[str, int] = {name: bit for bit, name in all_rows(connection, "SELECT bit, name FROM grader")}

    def list_cases(self, trial_filter: TrialFilter, *, offset: int, limit: int) -> list[CaseEntry]:
        """The cases with a trial that passes the filter, in its order, from this place on."""
        numbers = self._case_numbers(trial_filter, offset + limit)[offset:]
        return [self.case(number) for number in numbers]

    def count_cases(self, trial_filter: TrialFilter) -> int:
        """How many cases pass the filter; at most `MAX_COUNTED_CASES` + 1."""
        if not trial_filter.is_narrowed:
            return int(all_rows(self._connection, "SELECT count(*) FROM case_text")[0][0])
        condition = self._condition(trial_filter)
        sql = f"SELECT count(*) FROM (SELECT 1 FROM trial WHERE {condition.sql} GROUP BY case_no LIMIT ?)"
        return int(all_rows(self._connection, sql, (*condition.values, MAX_COUNTED_CASES + 1))[0][0])

    def case(self, case_no: int) -> CaseEntry:
        """The case of this number."""
        sql = "SELECT case_no, case_id, question FROM case_text WHERE case_no = ?"
        return CaseEntry(*all_rows(self._connection, sql, (case_no,))[0])

    def find_case(self, case_id: str) -> CaseEntry | None:
        """The case with this id; None if there is none."""
        sql = "SELECT case_no, case_id, question FROM case_text WHERE case_id = ?"
        found = all_rows(self._connection, sql, (case_id.encode(errors="replace").decode(),))
        return CaseEntry(*found[0]) if found else None

    def trials_of(self, case_no: int) -> list[TrialEntry]:
        """The trials of a case, by column and repeat."""
        sql = (
            "SELECT case_no, column_no, repeat, outcome, score, duration_ms, input_tokens, output_tokens, cost, "
            "disagreement, stale, counts, offset, length FROM trial WHERE case_no = ?"
        )
        return [
            TrialEntry(*values)._replace(outcome=Outcome(values[3]), stale=bool(values[10]), counts=bool(values[11]))
            for values in all_rows(self._connection, sql, (case_no,))
        ]

    def column_counts(self) -> dict[str, ColumnCounts]:
        """The counts of each column, in the order of their numbers."""
        stored = all_rows(self._connection, "SELECT value FROM meta WHERE name = 'counts'")
        return CountsByColumn(stored[0][0] if stored else None).by_name(self.columns)

    def _condition(self, trial_filter: TrialFilter) -> SqlCondition:
        is_common = False
        if trial_filter.word_query:
            sql = "SELECT count(*) FROM (SELECT 1 FROM trial_text WHERE trial_text MATCH ? LIMIT ?)"
            ((found,),) = all_rows(self._connection, sql, (trial_filter.word_query, COMMON_TEXTS))
            is_common = found >= COMMON_TEXTS
        return trial_filter.condition(self.columns, self.graders, is_common=is_common)

    def _case_numbers(self, trial_filter: TrialFilter, count: int) -> list[int]:
        condition = self._condition(trial_filter)
        if trial_filter.order is SortOrder.CASE:
            sql = f"SELECT case_no FROM trial WHERE {condition.sql} GROUP BY case_no ORDER BY case_no LIMIT ?"
            return [number for (number,) in all_rows(self._connection, sql, (*condition.values, count))]
        # A case stands where its first trial stands: trials are read in their order until there are enough cases.
        sql = f"SELECT case_no FROM trial WHERE {condition.sql} ORDER BY {trial_filter.sort_columns}"
        numbers: dict[int, None] = {}
        for (number,) in self._connection.execute(sql, condition.values):
            numbers.setdefault(int(str(number)))
            if len(numbers) >= count:
                break
        return list(numbers)


@contextmanager
def open_index(folder: Path) -> Iterator[IndexReader | None]:
    """Open the index of a folder for reading; None if there is none yet. Closed at the end of the block."""
    try:
        connection = apsw.Connection(str(index_path(folder)), flags=apsw.SQLITE_OPEN_READWRITE)
    except apsw.CantOpenError:
        yield None
        return
    try:
        connection.set_busy_timeout(1_000)
        with connection:  # one snapshot for all that is read
            yield IndexReader(connection) if _has_tables(connection) else None
    finally:
        connection.close()


def _has_tables(connection: apsw.Connection) -> bool:
    return bool(connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'trial'").fetchall())

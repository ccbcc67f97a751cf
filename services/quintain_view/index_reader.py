"""Reads lists, counts and places of rows from the index of a results folder, and the rows at these places."""

from __future__ import annotations

import heapq
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import apsw
from pydantic import ValidationError

from quintain_runner.results.row import Row
from quintain_runner.results.store import RESULTS_FILE_NAME
from quintain_view.filters import IN_ORDER, SqlCondition, TrialFilter
from quintain_view.index_schema import (
    SCORE_UNITS,
    ColumnCounts,
    CountsByColumn,
    Outcome,
    all_rows,
    first_values,
    whole,
)
from quintain_view.index_writer import index_path

#: A count of cases stops here: a list says "more than".
MAX_COUNTED_CASES = 1_000

#: Words that more texts have are common.
COMMON_TEXTS = 5_000

#: So many words of the index that begin as a word of the filter are looked for by themselves.
MAX_NAMED_WORDS = 16

_VOCABULARY = "CREATE VIRTUAL TABLE IF NOT EXISTS temp.trial_word USING fts5vocab(main, trial_text, row)"
_BEGINNING = "SELECT term FROM temp.trial_word WHERE term >= ? AND term < ? LIMIT ?"

#: The words of a filter are looked for once, in the order of the cases.
_WORDS = (
    "SELECT rowid >> (SELECT value FROM meta WHERE name = 'text_bits') FROM trial_text WHERE trial_text MATCH ? "
    "ORDER BY rowid"
)

#: So many cases of a list are looked up together, and those of them that failed.
_LOOKED_UP = 500
_FAILED = "SELECT case_no FROM trial WHERE case_no IN (SELECT value FROM json_each(?)) AND outcome != 0"


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
    offset: int
    length: int
    scores: tuple[tuple[int, float], ...]


class CaseEntry(NamedTuple):
    """One case of a list: its number in the index, its id, the beginning of its question, and its tags as JSON."""

    case_no: int
    case_id: str
    question: str
    tags: str


class IndexReader:
    """The index of one folder, open for reading. Use `open_index`."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.columns: dict[str, int] = {
            name: number
            for number, name in all_rows(connection, "SELECT column_no, name FROM result_column ORDER BY 1")
        }
        self.graders: dict[str, int] = {name: bit for bit, name in all_rows(connection, "SELECT bit, name FROM grader")}

    def tag_fields(self) -> list[str]:
        """The fields of which cases have tags."""
        # One look for each field: a list of distinct fields would read the tags of all cases.
        found: list[str] = []
        while rows := all_rows(
            self._connection, "SELECT min(field) FROM case_tag WHERE field > ?", (found[-1] if found else "",)
        ):
            if rows[0][0] is None:
                break
            found.append(rows[0][0])
        return found

    def list_cases(self, trial_filter: TrialFilter, *, offset: int, limit: int) -> list[CaseEntry]:
        """The cases with a trial that passes the filter, in its order, from this place on."""
        return [self.case(number) for number in self._case_numbers(trial_filter, offset, offset + limit)]

    def count_cases(self, trial_filter: TrialFilter) -> int:
        """How many cases pass the filter; at most `MAX_COUNTED_CASES` + 1."""
        if trial_filter.is_narrowed:
            return len(self._case_numbers(trial_filter, 0, MAX_COUNTED_CASES + 1))
        return self.count_all_cases()

    def count_all_cases(self) -> int:
        """How many cases there are; they are numbered from 1, without gaps."""
        return int(all_rows(self._connection, "SELECT coalesce(max(case_no), 0) FROM case_text")[0][0])

    def list_page(self, trial_filter: TrialFilter, *, offset: int, limit: int) -> tuple[list[CaseEntry], int]:
        """`list_cases` and `count_cases`, with one pass over the index for both."""
        if not trial_filter.is_narrowed:
            return self.list_cases(trial_filter, offset=offset, limit=limit), self.count_cases(trial_filter)
        numbers = self._case_numbers(trial_filter, 0, max(offset + limit, MAX_COUNTED_CASES + 1))
        listed = [self.case(number) for number in numbers[offset : offset + limit]]
        return listed, min(len(numbers), MAX_COUNTED_CASES + 1)

    def case(self, case_no: int) -> CaseEntry:
        """The case of this number."""
        sql = "SELECT case_no, case_id, question, tags FROM case_text WHERE case_no = ?"
        return CaseEntry(*all_rows(self._connection, sql, (case_no,))[0])

    def find_case(self, case_id: str) -> CaseEntry | None:
        """The case with this id; None if there is none."""
        sql = "SELECT case_no, case_id, question, tags FROM case_text WHERE case_id = ?"
        found = all_rows(self._connection, sql, (case_id.encode(errors="replace").decode(),))
        return CaseEntry(*found[0]) if found else None

    def trials_of(self, case_no: int) -> list[TrialEntry]:
        """The trials of a case, by column and repeat."""
        return self._trials("WHERE case_no = ?", case_no)

    def most_disputed(self, limit: int) -> list[TrialEntry]:
        """The trials on which graders differ, the most first."""
        return self._trials("WHERE disagreement_units > 0 ORDER BY disagreement_units DESC LIMIT ?", limit)

    def nearest_scores(self, score: float, *, within: float, limit: int) -> list[TrialEntry]:
        """The trials with a score at most so far from this one, the nearest first."""
        low, middle, high = (whole(one * SCORE_UNITS) for one in (score - within, score, score + within))
        above = self._trials("WHERE score_units BETWEEN ? AND ? ORDER BY score_units LIMIT ?", middle, high, limit)
        below = self._trials(
            "WHERE score_units >= ? AND score_units < ? ORDER BY score_units DESC LIMIT ?", low, middle, limit
        )
        return list(heapq.merge(above, below, key=lambda trial: abs((trial.score or 0.0) - score)))[:limit]

    def _trials(self, condition: str, *values: float) -> list[TrialEntry]:
        sql = (
            "SELECT case_no, column_no, repeat, outcome, score, duration_ms, input_tokens, output_tokens, cost, "
            f"disagreement, offset, length, scores FROM trial {condition}"
        )
        return [
            TrialEntry(*found)._replace(
                outcome=Outcome(found[3]),
                scores=tuple((int(bit), score) for bit, score in json.loads(found[12]).items()),
            )
            for found in all_rows(self._connection, sql, values)
        ]

    def column_counts(self) -> dict[str, ColumnCounts]:
        """The counts of each column, in the order of their numbers."""
        stored = all_rows(self._connection, "SELECT value FROM meta WHERE name = 'counts'")
        return CountsByColumn(stored[0][0] if stored else None).by_name(self.columns)

    def next_failure(self, trial_filter: TrialFilter, place: int, step: int) -> tuple[int, int] | None:
        """The number and the place of the next case of a list with a trial that did not pass, or of the one before.

        Where there is none it is the case at ``place`` itself; None if the list has none there.
        """
        numbers = self._cases(trial_filter, place if step > 0 else 0)
        if step < 0:
            until = list(itertools.islice(numbers, place + 1))
            place, numbers = len(until) - 1, reversed(until)
        here, distance = next(numbers, None), 0
        while some := list(itertools.islice(numbers, _LOOKED_UP)):
            failed = {*first_values(self._connection, _FAILED, (json.dumps(some),))}
            for number in some:
                distance += step
                if number in failed:
                    return number, place + distance
        return None if here is None else (here, place)

    def _case_numbers(self, trial_filter: TrialFilter, begin: int, end: int) -> list[int]:
        """The numbers of the cases in the list from one place to another."""
        return list(itertools.islice(self._cases(trial_filter, begin), end - begin))

    def _cases(self, trial_filter: TrialFilter, begin: int) -> Iterator[int]:
        """The numbers of the cases in the list from a place on, as they are asked for."""
        if not trial_filter.is_narrowed and trial_filter.order == IN_ORDER:
            return iter(range(begin + 1, self.count_all_cases() + 1))
        return itertools.islice(_distinct(self._ordered_numbers(trial_filter)), begin, None)

    def _ordered_numbers(self, trial_filter: TrialFilter) -> Iterator[int]:
        """The case of each trial that passes the filter, in its order; a case may come several times."""
        if not trial_filter.outcomes:
            return self._trial_numbers(trial_filter)
        wanted = trial_filter.case_condition(self.columns)
        sql = f"SELECT case_no FROM case_state WHERE {wanted.sql} ORDER BY case_no"
        found = first_values(self._connection, sql, wanted.values)
        others = replace(trial_filter, outcomes=())
        if not others.is_narrowed and others.order == IN_ORDER:
            return found
        cases = {*found}
        return (number for number in self._trial_numbers(others) if number in cases)

    def _trial_numbers(self, trial_filter: TrialFilter) -> Iterator[int]:
        """The case of each trial that passes what the filter asks of trials, in its order."""
        if not trial_filter.terms:
            return self._select(trial_filter)
        found = first_values(self._connection, _WORDS, (self._word_query(trial_filter),))
        if trial_filter.order == IN_ORDER and not replace(trial_filter, words="").is_narrowed:
            return found
        first = list(itertools.islice(found, COMMON_TEXTS + 1))
        if len(first) <= COMMON_TEXTS:
            # Their trials are looked up one after the other.
            of_cases = SqlCondition("case_no IN (SELECT value FROM json_each(?))", (json.dumps(sorted({*first})),))
            return self._select(trial_filter, of_cases)
        listed = self._select(trial_filter)
        if trial_filter.order == IN_ORDER:
            return _in_both(listed, itertools.chain(first, found))
        cases = {*first, *found}
        return (number for number in listed if number in cases)

    def _word_query(self, trial_filter: TrialFilter) -> str:
        """The query for texts that have each phrase, and a word with each beginning."""
        self._connection.execute(_VOCABULARY)
        terms = [f'"{text}"' if is_phrase else self._beginning_query(text) for is_phrase, text in trial_filter.terms]
        return (f"{{{trial_filter.scope}}} : " if trial_filter.scope else "") + f"({' AND '.join(terms)})"

    def _beginning_query(self, word: str) -> str:
        """The words of the index that begin so, where they are few; else the query for the beginning itself.

        The text index reads the texts of a word one after the other, as far as they are asked for. For a beginning it
        first makes one list of the texts of all words that have it.
        """
        if word.isascii():
            begin = word.lower()
            found = all_rows(self._connection, _BEGINNING, (begin, f"{begin}\U0010ffff", MAX_NAMED_WORDS + 1))
            terms = [str(term) for (term,) in found]
            if 0 < len(terms) <= MAX_NAMED_WORDS and all(term.isascii() for term in terms):
                return "(" + " OR ".join(f'"{term}"' for term in terms) + ")"
        return f'"{word}"*'

    def _select(self, trial_filter: TrialFilter, *of_cases: SqlCondition) -> Iterator[int]:
        """The case of each trial that passes the filter, without its words, and is one of these cases."""
        index = "" if of_cases else self._index_of(trial_filter)
        in_table = trial_filter.sorted_table(self.graders)
        table, placed = ("trial", []) if in_table is None else (in_table[0], [in_table[1]])
        order = f"ORDER BY {trial_filter.sort_columns}"
        lists = []
        for one in trial_filter.conditions(self.columns, self.graders):
            condition = SqlCondition.all_of([*placed, one, *of_cases])
            sql = f"SELECT case_no FROM {table} {index} WHERE {condition.sql} {order}"
            lists.append(first_values(self._connection, sql, condition.values))
        yield from heapq.merge(*lists) if len(lists) > 1 else lists[0]
        if in_table is not None:
            # Those without a place in the order come last.
            yield from self._select(replace(trial_filter, order=IN_ORDER), *of_cases)

    def _index_of(self, trial_filter: TrialFilter) -> str:
        """The index that has the order of the list and all that a filter needs.

        SQLite would take one that fits the condition, and sort what it finds: half a million trials, where the first
        few in the order are enough.
        """
        name = trial_filter.index_name
        # While an index is being made, it has no orders yet.
        if name and not all_rows(self._connection, "SELECT 1 FROM sqlite_schema WHERE name = ?", (name,)):
            return ""
        return f"INDEXED BY {name}" if name else ""


def _distinct(numbers: Iterable[int]) -> Iterator[int]:
    """Each number once, where it comes first: a case stands where its first trial stands."""
    seen = set[int]()
    for number in numbers:
        if number not in seen:
            seen.add(number)
            yield number


def _in_both(listed: Iterable[int], found: Iterator[int]) -> Iterator[int]:
    """The numbers that both have; both rise."""
    last = 0
    for number in listed:
        while last < number:
            last = next(found, sys.maxsize)
        if last == number:
            yield number


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


class RowMoved(Exception):
    """The results are not what the index says: they were compacted, replaced or cut since."""


def read_rows(folder: Path, places: Iterable[tuple[int, int]], case_id: str | None = None) -> list[Row]:
    """The rows at these places, each an offset and a length, all of the case ``case_id`` if that is given.

    Raises `RowMoved` if another row, or none, stands there.
    """
    rows: list[Row] = []
    try:
        with (folder / RESULTS_FILE_NAME).open("rb") as file:
            for offset, length in places:
                file.seek(offset)
                rows.append(Row.model_validate_json(file.read(length)))
    except (OSError, ValidationError):
        raise RowMoved from None
    if case_id is not None and any(row.case_id.encode(errors="replace").decode() != case_id for row in rows):
        raise RowMoved
    return rows


def rows_of_case(folder: Path, index: IndexReader, case: CaseEntry) -> list[Row]:
    """The rows of a case of the index, by column and repeat. Raises `RowMoved`."""
    places = [(trial.offset, trial.length) for trial in index.trials_of(case.case_no)]
    return read_rows(folder, places, case.case_id)

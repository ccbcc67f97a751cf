"""How lists are read from a large index: in an order that it has, up to the end of the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import product
from urllib.parse import parse_qsl

import apsw
import pytest

from quintain_view import index_reader
from quintain_view.filters import SortOrder, TrialFilter
from quintain_view.index_reader import IndexReader
from quintain_view.index_writer import index_path, update_index
from support.results_folder import graded_row, write_results

FILTERS = ["", "show=failed", "show=passed&show=failed", "show=stale", "grader=same", "target=bot", "min=0", "max=0.5"]
FILTERS += ["show=failed&min=0.1&target=bot&grader=same", "show=stale&show=error"]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    folder = tmp_path_factory.mktemp("runs") / "run"
    rows = [graded_row(f"case-{number}", number % 3 / 2, output="some words") for number in range(30)]
    write_results(folder, rows)
    update_index(folder)
    with closing(apsw.Connection(str(index_path(folder)))) as connection:
        yield connection


def statements(connection: apsw.Connection, query: str, order: SortOrder) -> list[tuple[str, tuple[object, ...]]]:
    """What a page of this list asks of the index, with the values."""
    pairs = [(name, value) for name, _, value in (part.partition("=") for part in query.split("&")) if name]
    reader, asked = IndexReader(connection), []

    def note(_: apsw.Cursor, sql: str, values: object) -> bool:
        asked.append((sql, tuple(values) if isinstance(values, tuple) else ()))
        return True

    connection.exec_trace = note
    try:
        reader.list_page(TrialFilter.from_query([*pairs, ("sort", order)]), offset=0, limit=5)
    finally:
        connection.exec_trace = None
    return asked


@pytest.mark.parametrize(("query", "order"), [*product(FILTERS, SortOrder)])
def test_no_list_is_sorted_when_it_is_read(index: apsw.Connection, query: str, order: SortOrder) -> None:
    lists = [(sql, values) for sql, values in statements(index, query, order) if "ORDER BY" in sql]
    plans = [str(row[3]) for sql, values in lists for row in index.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    # All cases in the order of the results are numbers without gaps.
    assert plans or (not query and order in {SortOrder.CASE, SortOrder.GRADER, SortOrder.TAG})
    assert [plan for plan in plans if "TEMP B-TREE" in plan] == []


@pytest.mark.parametrize("looked_up", [1, 2, 500])
@pytest.mark.parametrize("query", ["", "show=passed", "sort=score", "show=failed&sort=duration", "q=some", "q=none"])
def test_the_next_and_the_previous_failure_are_those_of_the_list(
    index: apsw.Connection, query: str, looked_up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_reader, "_LOOKED_UP", looked_up)
    reader, trial_filter = IndexReader(index), TrialFilter.from_query(parse_qsl(query))
    listed = [case.case_no for case in reader.list_cases(trial_filter, offset=0, limit=100)]
    failed = [any(trial.outcome for trial in reader.trials_of(number)) for number in listed]
    for place, number in enumerate(listed):
        after = next((one for one in range(place + 1, len(listed)) if failed[one]), place)
        before = next((one for one in range(place - 1, -1, -1) if failed[one]), place)
        assert reader.next_failure(trial_filter, place, 1) == (listed[after], after), number
        assert reader.next_failure(trial_filter, place, -1) == (listed[before], before), number
    assert reader.next_failure(trial_filter, len(listed), 1) is None
    assert (reader.next_failure(trial_filter, 10**9, -1) is None) == (not listed)


def test_the_next_failure_of_all_cases_is_one_look_up(index: apsw.Connection) -> None:
    reader, asked = IndexReader(index), list[str]()
    index.exec_trace = lambda _, sql, __: asked.append(sql) is None
    try:
        reader.next_failure(TrialFilter(), 20, 1)
    finally:
        index.exec_trace = None
    plans = [str(row[3]) for sql in asked if "?" in sql for row in index.execute(f"EXPLAIN QUERY PLAN {sql}", ("[1]",))]
    assert len(asked) == 2
    assert plans[0] == "SEARCH trial USING PRIMARY KEY (case_no=?)"


@pytest.mark.parametrize("is_common", [False, True])
@pytest.mark.parametrize("query", ["q=some", "q=some&show=failed", "q=wor&grader=same&min=0.5"])
def test_words_are_looked_for_once(
    index: apsw.Connection, query: str, is_common: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintain_view.index_reader.COMMON_TEXTS", 0 if is_common else 1_000)
    for order in SortOrder:
        assert sum("MATCH" in sql for sql, _ in statements(index, query, order)) == 1

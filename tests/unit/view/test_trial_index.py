"""The index of a results folder: what lists find in it, and what becomes of it when the results change."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from urllib.parse import parse_qsl, quote_plus, unquote_plus

import apsw
import pytest

from quintain.contracts.invoke import TokenUsage
from quintain_runner.report.run_file import read_run
from quintain_runner.results.row import GraderRow, Row, RowStatus
from quintain_runner.spec.grader_options import Reducers
from quintain_view import index_reader
from quintain_view.filters import Repeats, Shown, SortOrder, TrialFilter, TrialState
from quintain_view.index_reader import IndexReader, RowMoved, open_index, read_rows
from quintain_view.index_writer import IndexProgress, index_path, update_index, update_index_step
from support.results_folder import errored_row, graded_row, write_results


def write_rows(folder: Path, rows: list[Row], *, mode: str = "wb") -> None:
    folder.mkdir(exist_ok=True)
    with (folder / "results.jsonl").open(mode) as file:
        file.writelines(row.to_line() for row in rows)


def found(folder: Path, query: str) -> list[str]:
    """The ids of the cases in the list with this query."""
    pairs = [(name, value) for name, _, value in (part.partition("=") for part in query.split("&")) if name]
    with open_index(folder) as index:
        trial_filter = TrialFilter.from_query(pairs)
        ids = [case.case_id for case in index.list_cases(trial_filter, offset=0, limit=1_000)]
        assert index.count_cases(trial_filter) == len(ids)
        cases, count = index.list_page(trial_filter, offset=1, limit=2)
        assert ([case.case_id for case in cases], count) == (ids[1:3], len(ids))
        return ids


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        graded_row("low", 0.2, output="Zürich lies by a lake"),
        graded_row("high", 1.0),
        graded_row("middle", 0.5).model_copy(update={"duration_ms": 9_000.0}),
        errored_row("broken"),
        errored_row("unknown", status=RowStatus.IN_DOUBT),
        graded_row("old", 0.9),
        graded_row("low", 0.8, target="other"),
    ]
    disputed = {"same": GraderRow(score=1.0, passed=True), "judge": GraderRow(score=0.0, passed=False)}
    rows.append(graded_row("disputed", 0.5, target="other").with_fields(graders=disputed, tags={"topic": ["law"]}))
    write_rows(tmp_path / "run", rows)
    assert update_index(tmp_path / "run").rows == 8
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["low", "high", "middle", "broken", "unknown", "old", "disputed"]),
        ("show=failed", ["low", "disputed"]),
        ("show=passed&target=bot", ["high", "middle", "old"]),
        ("show=error", ["broken"]),
        ("show=inDoubt", ["unknown"]),
        ("show=error&show=inDoubt", ["broken", "unknown"]),
        ("target=other", ["low", "disputed"]),
        *(("target=nobody", []), ("grader=judge", ["disputed"]), ("grader=nobody", [])),
        ("min=0.5&max=0.9", ["low", "middle", "old", "disputed"]),
        ("is=bot:failed", ["low"]),
        ("is=bot:failed&is=other:passed", ["low"]),
        ("is=bot:passed&is=other:passed", []),
        ("is=nobody:passed", []),
        ("is=other:failed&show=passed", []),
        ("is=other:failed&sort=duration", ["disputed"]),
        ("is=bot:error", ["broken"]),
        ("is=bot:nothing", ["low", "high", "middle", "broken", "unknown", "old", "disputed"]),
        *(('q="lies by a"', ["low"]), ('q="lies a"', []), ('q="a lake" zür', ["low"]), ('q="lies by', ["low"])),
        *(("q=lake&in=answer", ["low"]), ("q=lake&in=reason", []), ("q=low&in=question", ["low"])),
        *(("q=zurich", ["low"]), ("q=ZÜR lak", ["low"])),
        ("q=provider_error", ["broken", "unknown"]),
        ('q=" OR 1) --', []),
        ("q=*", ["low", "high", "middle", "broken", "unknown", "old", "disputed"]),
        ("sort=score", ["low", "middle", "disputed", "old", "high", "broken", "unknown"]),
        ("sort=duration&show=passed&target=bot", ["middle", "old", "high"]),
        ("sort=disagreement&show=failed", ["disputed", "low"]),
        ("sort=grader:judge", ["disputed", "low", "high", "middle", "broken", "unknown", "old"]),
        ("sort=grader:same&show=passed", ["middle", "low", "old", "high"]),
        ("sort=tag:topic", ["disputed", "low", "high", "middle", "broken", "unknown", "old"]),
        ("sort=tokens&show=failed", ["disputed", "low"]),
        ("sort=nothing&show=nothing&min=nan&max=x", ["low", "high", "middle", "broken", "unknown", "old", "disputed"]),
    ],
)
def test_a_list_has_the_cases_of_its_filter_in_its_order(folder: Path, query: str, ids: list[str]) -> None:
    listed = found(folder, query)
    assert sorted(listed) == sorted(ids)
    if "sort=score" in query:
        assert listed == ids
    elif "sort=" in query and "nothing" not in query:
        assert listed[0] == ids[0]
    else:
        assert listed == ids


@pytest.mark.parametrize(
    ("reduce", "query", "ids"),
    [
        (None, "is=bot:passed", ["all"]),
        (None, "is=bot:failed", ["two", "one"]),
        ("majority", "is=bot:passed", ["all", "two", "spoilt"]),
        ("pass@3", "is=bot:passed", ["all", "two", "one"]),
        ("pass@3", "is=bot:error", ["spoilt"]),
        ("pass^3", "is=bot:passed", ["all"]),
        ("majority", "is=bot:failed&repeats=any", ["two", "one"]),
        ("majority", "is=bot:passed&repeats=all", ["all"]),
    ],
)
def test_an_outcome_of_repeats_is_by_the_reducer_any_or_all(
    tmp_path: Path, reduce: str | None, query: str, ids: list[str]
) -> None:
    passes = {"all": (1, 1, 1), "two": (1, 0, 1), "one": (0, 0, 1)}
    rows = [graded_row(case, score, repeat=n) for case, scores in passes.items() for n, score in enumerate(scores)]
    rows += [graded_row("spoilt", 1, repeat=0), graded_row("spoilt", 1, repeat=1), errored_row("spoilt", repeat=2)]
    write_results(tmp_path / "run", rows, repeats=3)
    record = read_run(tmp_path / "run")
    reducers = record.configuration.with_fields(reduce=Reducers(row=reduce))
    update_index(tmp_path / "run", record)
    update_index(tmp_path / "run", record.with_fields(configuration=reducers))
    assert found(tmp_path / "run", query) == ids


def test_a_filter_is_the_same_after_its_way_through_an_address() -> None:
    given = TrialFilter(
        columns=("a · b&c",),
        states=(TrialState.FAILED, TrialState.ERROR),
        grader="g=1",
        words="x y",
        least=0.25,
        scope="answer",
        outcomes=(("a:b", TrialState.FAILED), ("c", TrialState.IN_DOUBT)),
        repeats=Repeats.ALL,
        order=Shown(SortOrder.GRADER, "judge: fair"),
        shown=(Shown(SortOrder.TOKENS), Shown(SortOrder.TAG, "topic")),
    )
    pairs = [part.partition("=")[::2] for part in given.to_query(page=2).split("&")]
    assert TrialFilter.from_query([(name, unquote_plus(value)) for name, value in pairs]) == given


def test_common_and_rare_words_find_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("answer", "answer&show=failed", "lake&sort=score", "l", "a l", "ANS", "zür", "Z", "nothing")
    queries = [f"q={word}" for word in words]
    rare = {query: found(folder, query) for query in queries}
    monkeypatch.setattr("quintain_view.index_reader.COMMON_TEXTS", 0)
    assert {query: found(folder, query) for query in rare} == rare
    monkeypatch.setattr("quintain_view.index_reader.MAX_NAMED_WORDS", 0)
    assert {query: found(folder, query) for query in rare} == rare
    assert rare["q=l"] == rare["q=zür"] == ["low"]


HOSTILE_WORDS = ['"', "AND", "NOT", "answer AND", "col:", "lake*", '"lake', "NEAR(a b)", "(", "a\u19b0b", "a\u1cf2b"]


@pytest.mark.parametrize("words", HOSTILE_WORDS)
def test_words_with_the_syntax_of_the_index_are_words(folder: Path, words: str) -> None:
    """None of them is an error, and none has a meaning of its own."""
    page = found(folder, f"q={quote_plus(words)}")
    assert page == found(folder, f"q={quote_plus(words.lower())}")


def test_a_newer_row_takes_the_place_of_an_older_one(folder: Path) -> None:
    write_rows(folder, [graded_row("broken", 1.0)], mode="ab")
    assert update_index(folder).rows == 9
    assert found(folder, "show=error") == []
    with open_index(folder) as index:
        counts = index.column_counts()["bot"]
    assert (counts.passed, counts.failed, counts.errors, counts.in_doubt) == (4, 1, 0, 1)
    assert sum(counts.bins) == 5
    assert counts.score_sum == pytest.approx(3.6)


def test_counts_are_those_of_all_rows_in_any_order(tmp_path: Path) -> None:
    source = random.Random(7)
    rows = [graded_row(str(source.randrange(20)), source.random(), repeat=source.randrange(1, 3)) for _ in range(200)]
    write_rows(tmp_path, [*rows, graded_row("long", 0.1, output="word " * 20_000)])
    rows.append(graded_row("long", 0.1))
    while not update_index_step(tmp_path, max_bytes=2_000).is_complete:
        pass
    latest = list({row.key: row for row in rows}.values())
    with open_index(tmp_path) as index:
        counts = index.column_counts()["bot"]
    assert counts.passed == sum(row.passed for row in latest)
    assert counts.score_sum == pytest.approx(sum(row.score or 0 for row in latest), abs=1e-3)
    assert sum(counts.bins) == len(latest)


def test_a_line_that_is_being_written_waits_and_one_that_is_no_row_is_counted(tmp_path: Path) -> None:
    first, second = graded_row("1", 1.0).to_line(), graded_row("2", 1.0).to_line()
    (tmp_path / "results.jsonl").write_bytes(first + b"no row\n" + second[:20])
    assert update_index(tmp_path) == IndexProgress(len(first) + 7, len(first) + 7, 1, 1)
    (tmp_path / "results.jsonl").write_bytes(first + b"no row\n" + second)
    assert update_index(tmp_path).rows == 2
    assert found(tmp_path, "") == ["1", "2"]


@pytest.mark.parametrize("kept", [(), ("2",), ("3", "1")])
def test_results_that_were_cut_or_compacted_are_indexed_anew(tmp_path: Path, kept: tuple[str, ...]) -> None:
    rows = {name: graded_row(name, 1.0, output=name * 50) for name in "123"}
    write_rows(tmp_path, list(rows.values()))
    update_index(tmp_path)
    write_rows(tmp_path, [rows[name] for name in kept])
    assert update_index(tmp_path).rows == len(kept)
    assert found(tmp_path, "") == list(kept)


def test_a_row_that_moved_is_not_shown_as_another(tmp_path: Path) -> None:
    line = graded_row("1", 1.0).to_line()
    (tmp_path / "results.jsonl").write_bytes(line)
    for places, case_id in (([(0, len(line))], "2"), ([(3, len(line))], "1"), ([(0, len(line) - 5)], "1")):
        with pytest.raises(RowMoved):
            read_rows(tmp_path, places, case_id)


def test_a_case_of_many_rows_is_found_by_the_words_of_each(tmp_path: Path) -> None:
    rows = [graded_row("many", 1.0, repeat=number, output=f"answer a{number} ends") for number in range(40)]
    write_rows(tmp_path, [graded_row("first", 1.0), *rows, graded_row("last", 1.0, output="a39 ends")])
    while not update_index_step(tmp_path, max_bytes=2_000).is_complete:
        pass
    assert all(found(tmp_path, f'q="a{number} ends"') == ["many"] for number in range(39))
    assert found(tmp_path, 'q="a39 ends"') == ["many", "last"]


@pytest.mark.parametrize(
    "odd",
    [
        *({"score": 1e300}, {"score": float("nan")}, {"duration_ms": 1e300}, {"repeat": 10**30}),
        {"token_usage": TokenUsage(input=10**30, output=10**30)},
        {"graders": {"same": GraderRow(score=float("-inf"), passed=False)}},
    ],
)
def test_a_row_with_an_impossible_number_is_listed(tmp_path: Path, odd: dict[str, object]) -> None:
    write_rows(tmp_path, [graded_row("odd", 1.0).model_copy(update=odd), graded_row("plain", 1.0)])
    assert update_index(tmp_path).rows == 2
    for order in SortOrder:
        assert sorted(found(tmp_path, f"sort={order}")) == ["odd", "plain"]


def test_an_answer_that_is_not_compared_yet_is_found_as_that_alone(tmp_path: Path) -> None:
    waiting = graded_row("waiting", 0.0).with_fields(status=RowStatus.UNCOMPARED, score=None, graders={})
    write_results(tmp_path / "run", [graded_row("good", 1.0), waiting])
    update_index(tmp_path / "run")
    states = {state: found(tmp_path / "run", f"show={state}") for state in TrialState}
    assert {state: ids for state, ids in states.items() if "waiting" in ids} == {TrialState.UNCOMPARED: ["waiting"]}
    assert found(tmp_path / "run", "is=bot:uncompared") == ["waiting"]


# How lists are read from a large index: in an order that it has, up to the end of the page.


FILTERS = ["", "show=failed", "show=passed&show=failed", "grader=same", "target=bot", "min=0", "max=0.5"]
FILTERS += ["show=failed&min=0.1&target=bot&grader=same"]


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


@pytest.mark.parametrize("is_common", [False, True])
@pytest.mark.parametrize("query", ["q=some", "q=some&show=failed", "q=wor&grader=same&min=0.5"])
def test_words_are_looked_for_once(
    index: apsw.Connection, query: str, is_common: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintain_view.index_reader.COMMON_TEXTS", 0 if is_common else 1_000)
    for order in SortOrder:
        assert sum("MATCH" in sql for sql, _ in statements(index, query, order)) == 1

"""Evaluations from Python: rows as objects and as a table, graders as functions, also while an event loop runs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import quintain
from quintain import evaluate, run

GRADERS = """
import quintain

@quintain.grader
def brief(output: str) -> bool:
    return len(output) < 3
"""
CASES = [
    {"id": "a", "question": "x", "expected": "x"},
    quintain.Case(id="b", question="long", expected="no", metadata={"level": 2}),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "quintain.yaml").write_text("targets: {echo: {provider: mock}}\n")
    (tmp_path / "own_graders.py").write_text(GRADERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("QUINTAIN_BROKER_URL", "QUINTAIN_GATEWAY_URL", "QUINTAIN_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_cases_are_evaluated_and_only_what_is_new_is_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_graders = __import__("own_graders")
    result = evaluate(CASES, "echo", ["exact", own_graders.brief])
    scores = {(row.case_id, row.target): row.score for row in result.rows}
    assert scores == {("a", "echo"): 1.0, ("b", "echo"): 0.0}
    assert (result.mean_score, result.exit_code, result.folder) == (0.5, 0, Path("runs/evaluate"))
    again = evaluate([*CASES, {"id": "c", "question": "y", "expected": "y"}], "echo", ["exact", own_graders.brief])
    assert (len(again.rows), again.report.summary.total.calls) == (3, 3)
    assert len(result.rows) == 2, "rows are those of their call"
    assert [line.split() for line in repr(again).splitlines()[1:]] == [
        ["echo", "2/3", "passed,", "0", "errors,", "mean", "score", "0.667"]
    ]
    page = again._repr_html_()
    assert ("<td>echo</td><td>2/3</td>" in page, "<p>echo passes 2 of 3 answers" in page) == (True, True)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows, columns: (columns, rows)))
    columns, rows = again.to_pandas()
    first = dict(zip(columns, rows[0], strict=True))
    assert (first["case_id"], first["score"], first["exact pass"], first["brief pass"]) == ("a", 1.0, 1, 1)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(quintain.ConfigError, match="pandas"):
        again.to_pandas()


def test_the_modules_of_a_target_and_of_a_grader_are_imported_once(folder: Path) -> None:
    note = "with open('imports.txt', 'a') as file:\n    print(__name__, file=file)\n"
    (folder / "bot.py").write_text(f"{note}def answer(request): return request.question")
    (folder / "own_graders.py").write_text(f"{GRADERS}\n{note}")
    (folder / "quintain.yaml").write_text("targets: {bot: {provider: python, callable: 'bot:answer'}}\n")
    (folder / "cases.jsonl").write_text('{"id": "a", "question": "x"}\n')
    (folder / "eval.yaml").write_text("dataset: cases.jsonl\ngraders: [{name: brief, function: 'own_graders:brief'}]\n")
    assert run("eval.yaml").mean_score == 1.0
    assert sorted((folder / "imports.txt").read_text().split()) == ["bot", "own_graders"]


def test_answers_come_from_the_cache_or_a_recording(folder: Path) -> None:
    cache = str(folder / "cache.sqlite3")
    first = evaluate(CASES, "echo", ["exact"], output="runs/first", cache=cache)
    second = evaluate(CASES, "echo", ["exact"], output="runs/second", cache=cache)
    assert [row.cached for row in (*first.rows, *second.rows)] == [0, 0, 1, 1]
    replayed = evaluate(CASES, "echo", ["exact"], output="runs/third", replay="runs/first")
    assert [(row.output, row.score) for row in replayed.rows] == [(row.output, row.score) for row in first.rows]


async def test_a_file_is_run_while_an_event_loop_runs(folder: Path) -> None:
    (folder / "cases.jsonl").write_text('{"id": "a", "question": "x", "expected": "x"}\n')
    (folder / "eval.yaml").write_text("dataset: cases.jsonl\ngraders: [{name: same, builtin: exact}]\n")
    result = run("eval.yaml")
    assert [row.graders["same"].passed for row in result.rows] == [True]
    assert result.folder == Path("runs/eval")


def test_a_grader_that_no_process_can_import_is_an_error(folder: Path) -> None:
    @quintain.grader
    def local(output: str) -> bool:
        return True

    with pytest.raises(quintain.ConfigError, match="module"):
        evaluate(CASES, "echo", [local])
    assert not (folder / "runs").exists()


def test_what_is_no_case_or_amount_is_an_error_by_its_place(folder: Path) -> None:
    with pytest.raises(quintain.ConfigError, match=r"cases\.jsonl: line 2: .*ud83d is half of a surrogate pair"):
        evaluate([CASES[0], {"id": "b", "question": "\ud83d"}], "echo", ["exact"])
    with pytest.raises(quintain.ConfigError, match="max_cost_usd"):
        evaluate(CASES, "echo", ["exact"], max_cost_usd=True)


def test_a_limit_in_money_stops_an_evaluation(folder: Path) -> None:
    (folder / "quintain.yaml").write_text("targets: {echo: {provider: mock, price: {per_call: 0.02}}}\n")
    stopped = evaluate(CASES, "echo", ["exact"], max_cost_usd=0.03)
    assert (stopped.exit_code, len(stopped.rows)) == (4, 1)
    assert len(evaluate(CASES, "echo", ["exact"], max_cost_usd=0.04).rows) == 2


def test_an_error_has_no_frames_of_an_event_loop(folder: Path) -> None:
    with pytest.raises(quintain.ConfigError) as raised:
        run("no-such.yaml")
    files = {entry.path.name if isinstance(entry.path, Path) else entry.path for entry in raised.traceback}
    assert files == {"test_evaluate.py", "evaluation.py"}
    assert raised.value.__suppress_context__

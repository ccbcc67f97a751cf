"""The list of runs: what a search finds, the line of passes of an evaluation, and what `quintain view --at` opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain_view.folders import RunFolders
from quintain_view.responses import opened_path
from quintain_view.run_list import columns_over_time, run_list, trends, with_words
from support.results_folder import graded_row, write_results


def write_run(
    folder: Path, day: int, scores: list[float], *, evaluation: str = "eval.yaml", ended: bool = True
) -> None:
    write_results(folder, [graded_row(str(number), score) for number, score in enumerate(scores)], ended=ended)
    record = json.loads((folder / "run.json").read_text())
    record["startedAt"] = f"2026-01-{day:02}T10:00:00+00:00"
    record["configuration"]["evaluation"] = evaluation
    (folder / "run.json").write_text(json.dumps(record))


def test_passes_over_time_are_of_runs_that_ended_and_can_be_read(tmp_path: Path) -> None:
    write_run(tmp_path / "b", 2, [1.0, 0.0])
    write_run(tmp_path / "a", 1, [1.0, 1.0])
    write_run(tmp_path / "c", 3, [1.0], ended=False)
    write_run(tmp_path / "alone", 4, [1.0], evaluation="other.yaml")
    write_run(tmp_path / "half", 5, [1.0])
    (tmp_path / "half" / "run.json").write_text((tmp_path / "half" / "run.json").read_text()[:200])
    lines = run_list(RunFolders([tmp_path]).sources())
    (title, points), *others = trends(lines, lines).items()
    assert (title, others) == ("eval", [])
    assert [point.label for point in points] == ["a, 2026-01-01: 100 %", "b, 2026-01-02: 50 %"]
    assert points[0].y < points[1].y, "a lower share stands lower"
    assert trends(lines, [line for line in lines if line.source.name == "alone"]) == {}


def test_a_trend_has_the_pass_rate_of_each_target_with_its_interval(tmp_path: Path) -> None:
    write_run(tmp_path / "b", 2, [1.0, 0.0])
    write_run(tmp_path / "a", 1, [1.0, 1.0])
    write_run(tmp_path / "c", 3, [1.0], ended=False)
    write_run(tmp_path / "other", 4, [1.0], evaluation="other.yaml")
    table, plots = columns_over_time(run_list(RunFolders([tmp_path]).sources()), "b")
    assert table.columns == ("run", "started", "bot")
    rates = {run: rate for run, _, rate in table.rows}
    assert rates == {"a": "100 % (34-100 %)", "b": "50 % (9-91 %)", "c": "-"}
    (points,) = plots.values()
    assert [point.low > point.y >= point.high for point in points] == [True, True], "an interval is around its rate"


def test_words_are_looked_for_in_run_evaluation_target_and_status(tmp_path: Path) -> None:
    write_run(tmp_path / "Nightly", 1, [1.0], evaluation="support.yaml")
    write_run(tmp_path / "begun", 2, [1.0], ended=False)
    lines = run_list(RunFolders([tmp_path]).sources())
    found = {word: [line.source.name for line in with_words(lines, [word])] for word in ("nightly", "support", "ended")}
    assert found == {"nightly": ["Nightly"], "support": ["Nightly"], "ended": ["begun"]}
    assert len(with_words(lines, ["bot"])) == 2
    assert with_words(lines, ["bot", "nightly", "begun"]) == []


@pytest.mark.parametrize(
    ("folder", "at", "path"),
    [
        ("one", "is=bot%3Afailed&sort=cost", "/run/one?is=bot%3Afailed&sort=cost"),
        ("one", "?q=a+b&page=2#cases", "/run/one?q=a+b&page=2"),
        ("one", "case?id=2&at=1&text=raw", "/run/one/case?id=2&at=1&text=raw"),
        ("one", "", "/run/one?"),
        ("one", "q=//evil.example/%23token=x", "/run/one?q=%2F%2Fevil.example%2F%23token%3Dx"),
        (".", "q=one+two", "/?q=one+two"),
    ],
)
def test_a_query_opens_the_page_that_has_it(tmp_path: Path, folder: str, at: str, path: str) -> None:
    write_results(tmp_path / "one", [graded_row("1", 1.0)])
    assert opened_path(RunFolders([tmp_path / folder]), at) == path


@pytest.mark.parametrize(
    ("folder", "at"),
    [
        *(("one", at) for at in ("words", "http://evil.example/?q=x", "/../static/page.js", "q=a&iss=bot:failed")),
        *(("one", at) for at in ("sort=nothing", "case?words=a", "raw?id=1")),
        (".", "is=bot:failed"),
        (".", "case?id=1"),
    ],
)
def test_what_no_page_has_is_refused_by_name(tmp_path: Path, folder: str, at: str) -> None:
    write_results(tmp_path / "one", [graded_row("1", 1.0)])
    with pytest.raises(ConfigError, match="--at"):
        opened_path(RunFolders([tmp_path / folder]), at)

"""The page of two runs: what became of each case, and nothing that the command would not compare."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import quintain_view.comparison
from quintain_runner.report.comparison import compare_runs
from quintain_runner.report.run_report import RunReport
from quintain_runner.results.row import Row, RowFingerprints
from quintain_view.comparison import ONLY_HERE, ComparePage, read_compare_page
from quintain_view.index_writer import update_index
from support.results_folder import errored_row, graded_row, write_results

BOTH = ("bot", "other")


def page_of(tmp_path: Path, tab: str = "", *, target: str = "", force: bool = False, later: str = "b") -> ComparePage:
    folders = (tmp_path / "a", tmp_path / later)
    for folder in folders:
        update_index(folder)
    return read_compare_page(("a", later), folders, target, tab, force=force)


def counts_of(page: ComparePage) -> dict[str, int]:
    return {name: count for name, _, count in page.changes.tabs}


def some_rows(seed: int) -> list[Row]:
    """Repeats that pass by chance, some with an error and some missing; one case is in one of the runs only."""
    chance = random.Random(seed)
    rows: list[Row] = []
    for case in (*range(40), 100 + seed):
        for target in BOTH:
            for repeat in (1, 2, 3):
                kind = chance.random()
                if kind > 0.95:
                    rows.append(errored_row(f"{case}", target=target, repeat=repeat))
                elif kind > 0.05:
                    rows.append(graded_row(f"{case}", float(chance.random() < 0.5), target=target, repeat=repeat))
    return rows


def run_of(folder: Path, rows: list[Row], **more: object) -> RunReport:
    return write_results(folder, rows, repeats=3, **more)


@pytest.mark.parametrize("target", BOTH)
def test_the_tabs_count_what_the_command_counts(tmp_path: Path, target: str) -> None:
    before, after = (run_of(tmp_path / name, some_rows(seed), targets=BOTH) for seed, name in enumerate("ab"))
    compared = {one.before: one for one in compare_runs(before, after).targets}[target]
    page = page_of(tmp_path, target=target)
    counts = {str(change): count for change, count in compared.changes.items()}
    assert {name: count for name, count in counts_of(page).items() if name in counts} == counts
    assert page.changes.by_chance == pytest.approx(compared.worse_by_chance)
    difference = compared.row.passed
    assert difference.better == counts["better"]
    assert difference.worse == counts["worseInEveryRepeat"] + counts["worseInSome"]


def test_a_case_that_fails_once_of_three_times_is_worse_in_some(tmp_path: Path) -> None:
    run_of(tmp_path / "a", [graded_row("1", 1.0, repeat=repeat, output="It is 42 now") for repeat in (1, 2, 3)])
    rows = [graded_row("1", float(repeat != 2), repeat=repeat, output="It is 41 now") for repeat in (1, 2, 3)]
    run_of(tmp_path / "b", rows)
    page = page_of(tmp_path)
    assert page.changes.tab == "worseInSome"
    (case,) = page.cases
    assert (case.passed, case.first_open) == ("3 of 3 passed → 2 of 3 passed", 1)
    spans = [f"{span.kind} {span.text.strip()}" for span in case.repeats[1].difference]
    assert spans == ["same It is", "missing 42", "added 41", "same now"]


def test_what_only_one_run_has_is_shown_and_not_compared(tmp_path: Path) -> None:
    run_of(tmp_path / "a", [graded_row("both", 1.0), graded_row("gone", 1.0), errored_row("broken")])
    run_of(tmp_path / "b", [graded_row("both", 1.0), graded_row("new", 0.0), graded_row("broken", 0.0)])
    page = page_of(tmp_path, ONLY_HERE)
    assert (counts_of(page)[ONLY_HERE], counts_of(page)["same"]) == (3, 1)
    assert {case.case_id: (case.passed, case.in_later) for case in page.cases} == {
        "gone": ("1 of 1 passed → no score", False),
        "new": ("no score → 0 of 1 passed", True),
        "broken": ("no score → 0 of 1 passed", True),
    }
    assert any("without a score in both runs" in line for line in page.notes)


def test_a_case_that_asks_something_else_is_left_out_as_the_command_does(tmp_path: Path) -> None:
    def rows(score: float, *inputs: str) -> list[Row]:
        made = [RowFingerprints(input=asked, grading="g") for asked in inputs]
        return [graded_row(f"{n}", score).with_fields(fingerprints=one) for n, one in enumerate(made)]

    run_of(tmp_path / "a", rows(1.0, "asked", "asked"))
    run_of(tmp_path / "b", rows(0.0, "asked", "changed"), dataset="e" * 64)
    page = page_of(tmp_path)
    assert [counts_of(page)[name] for name in ("worseInEveryRepeat", ONLY_HERE)] == [1, 1]
    assert any("2 rows left out" in line for line in page.notes)
    (case,) = page_of(tmp_path, ONLY_HERE).cases
    assert (case.case_id, len(case.asked), len(case.repeats)) == ("1", 2, 2)
    forced = page_of(tmp_path, force=True)
    assert counts_of(forced)["worseInEveryRepeat"] == 2


def test_what_is_refused_or_too_large_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, score in (("a", 1.0), ("b", 0.0)):
        run_of(tmp_path / name, [graded_row("1", score)])
    # What the command refuses is not listed until somebody insists.
    run_of(tmp_path / "c", [graded_row("1", 0.0)], graders=[{"name": "same", "builtin": "contains"}])
    page = page_of(tmp_path, later="c")
    assert (page.changes, page.cases, page.tables) == (None, [], [])
    assert "differ in their graders" in page.conclusion
    assert len(page_of(tmp_path, later="c", force=True).cases) == 1
    monkeypatch.setattr(quintain_view.comparison, "MAX_COMPARED_TRIALS", 1)
    page = page_of(tmp_path)
    assert page.tables == []
    assert f"quintain compare {tmp_path / 'a'} {tmp_path / 'b'}" in page.conclusion
    assert [case.passed for case in page.cases] == ["1 of 1 passed → 0 of 1 passed"]

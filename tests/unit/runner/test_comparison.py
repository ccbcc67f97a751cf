"""Two runs compared: on the cases of both, with what chance may have done, and never what cannot be compared."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain_runner.report.comparison import CaseChange, Comparison, compare_runs, count_changes
from quintain_runner.report.comparison_tables import (
    changes_text,
    comparison_lines,
    comparison_tables,
    conclusion,
    flip_lines,
)
from quintain_runner.report.run_report import RunReport
from quintain_runner.results.row import GraderRow, Row, RowFingerprints
from support.results_folder import errored_row, graded_row, write_results


def run_of(folder: Path, passed: int, *, of: int = 20, target: str = "bot", **more: object) -> RunReport:
    """A run in which the first so many cases passed."""
    rows = [graded_row(f"case-{n}", float(n < passed), target=target) for n in range(of)]
    return write_results(folder, rows, targets=[target], **more)


def test_a_fall_that_chance_seldom_makes_is_a_regression(tmp_path: Path) -> None:
    comparison = compare_runs(run_of(tmp_path / "a", 18), run_of(tmp_path / "b", 8))
    (target,) = comparison.targets
    assert target.row.score.estimate.value == pytest.approx(-0.5)
    assert (target.row.passed.better, target.row.passed.worse) == (0, 10)
    assert target.row.passed.p == pytest.approx(2 / 2**10)
    assert comparison.regressed_targets == [target]
    assert conclusion(comparison) == "significantly worse: bot"
    # One that chance may make is none; the cases that flipped are named.
    comparison = compare_runs(run_of(tmp_path / "c", 10), run_of(tmp_path / "d", 9))
    assert (comparison.regressed_targets, conclusion(comparison)) == ([], "no significant change")
    (flip,) = comparison.targets[0].flips
    assert (flip.case_id, flip.before.passed, flip.after.passed) == ("case-9", True, False)
    assert list(flip_lines(comparison)) == ["flipped bot case-9: passed → failed (1.000 → 0.000)"]


def test_only_cases_with_a_score_in_both_are_compared(tmp_path: Path) -> None:
    rows = [graded_row("1", 1.0), graded_row("2", 1.0), errored_row("3"), graded_row("4", 1.0)]
    before = write_results(tmp_path / "a", rows)
    after = write_results(tmp_path / "b", [graded_row("1", 1.0), graded_row("2", 0.0), graded_row("3", 1.0)])
    (target,) = compare_runs(before, after).targets
    assert (target.row.score.estimate.cases, target.row.score.base) == (2, 1.0)
    assert target.left_out == 3
    told = next(comparison_lines(Comparison(before="a", after="b", targets=[target])))
    assert "3 rows without a score in both runs" in told
    comparison = compare_runs(before, write_results(tmp_path / "c", [errored_row("1"), graded_row("3", 1.0)]))
    (sheet,) = comparison_tables(comparison)
    assert (comparison.targets[0].row.score, sheet.rows) == (None, [])
    assert conclusion(comparison) == "no case has a score in both runs"


def test_repeats_are_matched_and_count_as_one_case(tmp_path: Path) -> None:
    def rows(passed: int) -> list[object]:
        return [graded_row(str(n), float(n < passed), repeat=repeat) for n in range(6) for repeat in (1, 2)]

    before = write_results(tmp_path / "a", rows(6), repeats=2)
    after = write_results(tmp_path / "b", rows(0), repeats=2)
    (target,) = compare_runs(before, after).targets
    assert (target.row.passed.estimate.rows, target.row.passed.worse) == (12, 6)
    assert target.row.passed.p == pytest.approx(2 / 64)
    assert target.flipped == 12
    assert target.changes[CaseChange.WORSE_IN_EVERY] == 6
    assert target.worse_by_chance == pytest.approx(6 / 6)


@pytest.mark.parametrize("repeats", [1, 2, 3, 4])
def test_the_number_that_chance_makes_worse_is_that_of_all_ways_to_deal_the_passes(repeats: int) -> None:
    for passed in range(2 * repeats + 1):
        choices = list(itertools.combinations(range(2 * repeats), passed))
        worse = sum(choice == tuple(range(repeats)) for choice in choices)
        before = min(passed, repeats)
        _, by_chance = count_changes([(repeats, before, passed - before, 1)])
        assert by_chance == pytest.approx(worse / len(choices))
    # Of three repeats that passed: none, one, two passes later; and fewer than passed before.
    counts, _ = count_changes([(3, 3, 0, 2), (3, 3, 1, 4), (3, 1, 2, 5), (3, 2, 2, 6)])
    assert list(counts.values()) == [2, 4, 5, 6]
    for count, words in ((1, "1 case worse"), (1200, "1,200 cases worse")):
        assert changes_text(dict.fromkeys(CaseChange, count), 0.5).startswith(words)


def test_each_grader_is_compared_by_itself(tmp_path: Path) -> None:
    def run(folder: Path, strict: float) -> RunReport:
        graders = {"strict": GraderRow(score=strict, passed=strict > 0.5), "kind": GraderRow(score=1.0, passed=True)}
        rows = [graded_row(str(n), 1.0).model_copy(update={"graders": graders}) for n in range(10)]
        return write_results(folder, rows)

    comparison = compare_runs(run(tmp_path / "a", 1.0), run(tmp_path / "b", 0.0))
    graders = comparison.targets[0].graders
    assert graders["strict"].is_significantly_worse
    assert not graders["kind"].is_significantly_worse
    _, by_grader = comparison_tables(comparison)
    assert [row[0] for row in by_grader.rows] == ["strict", "", "kind", ""]
    assert [row[5] for row in by_grader.rows] == ["-100 %", "-1.000", "+0 %", "+0.000"]


def test_the_only_target_of_each_is_compared_under_both_names(tmp_path: Path) -> None:
    comparison = compare_runs(run_of(tmp_path / "a", 9, target="old"), run_of(tmp_path / "b", 9, target="new"))
    (target,) = comparison.targets
    assert (target.before, target.after, target.flipped) == ("old", "new", 0)
    (sheet,) = comparison_tables(comparison)
    assert sheet.rows[0][0] == "old → new"
    several = [
        write_results(
            tmp_path / name,
            [graded_row(str(n), float(n < passed), target=target) for n in range(12) for target in "xy"],
            targets="xy",
        )
        for name, passed in (("c", 12), ("d", 6))
    ]
    with pytest.raises(ConfigError, match="no target is in both"):
        compare_runs(run_of(tmp_path / "e", 9), several[0])
    # Several targets are adjusted for being several.
    comparison = compare_runs(*several)
    for target in comparison.targets:
        assert target.row.passed.adjusted_p == pytest.approx(2 * target.row.passed.p)
    assert comparison.regressed_targets == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"dataset": "e" * 64}, "differ in their dataset"),
        ({"graders": [{"name": "same", "builtin": "contains"}]}, "differ in their graders"),
        ({"graders": [{"name": "same", "builtin": "exact", "weight": 2}]}, "differ in their graders"),
    ],
)
def test_runs_of_other_cases_or_graders_are_compared_by_force(
    tmp_path: Path, change: dict[str, object], what: str
) -> None:
    before, after = run_of(tmp_path / "a", 18), run_of(tmp_path / "b", 8, **change)
    with pytest.raises(ConfigError, match=what) as refused:
        compare_runs(before, after)
    assert "--force" in refused.value.message
    assert len(compare_runs(before, after, force=True).regressed_targets) == 1


def test_of_different_datasets_the_cases_are_compared_that_ask_and_expect_the_same(tmp_path: Path) -> None:
    def rows(*inputs: str) -> list[Row]:
        return [
            graded_row(str(n), 1.0).model_copy(update={"fingerprints": RowFingerprints(input=asked, grading="g")})
            for n, asked in enumerate(inputs)
        ]

    before = write_results(tmp_path / "a", rows("a", "b", "c"))
    after = write_results(tmp_path / "b", rows("a", "changed", "c", "new"), dataset="e" * 64)
    comparison = compare_runs(before, after)
    (target,) = comparison.targets
    assert (target.row.score.estimate.cases, target.left_out, comparison.changed_cases) == (2, 0, 3)
    other = write_results(tmp_path / "c", rows("x", "y"), dataset="f" * 64)
    with pytest.raises(ConfigError, match="differ in their dataset"):
        compare_runs(before, other)

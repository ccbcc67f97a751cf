"""The first sentence of a report: which target is better, by how much and how sure, also where none is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from quintain.contracts.session import CostUsage, UsageLine
from quintain_runner.report.headline import Headline, headline, more_cases
from quintain_runner.report.run_report import RunReport
from quintain_runner.results.bill import Bill
from quintain_runner.results.row import RowStatus
from quintain_runner.statistics.significance import SIGNIFICANCE_LEVEL, mcnemar_p
from support.results_folder import errored_row, graded_row, write_results


def told(report: RunReport) -> Headline:
    return headline(report.summary, report.analysis, report.bill)


def run_of(folder: Path, scores: Mapping[str, str], apart: str = "") -> RunReport:
    """A run in which each target has these scores, a digit for a case in quarters, or an error for ``e``; the cases of
    ``apart`` are its own."""
    rows = [
        errored_row(str(number), target=target)
        if digit == "e"
        else graded_row(f"{target if target == apart else ''}{number}", int(digit) / 4, target=target)
        for target, digits in scores.items()
        for number, digit in enumerate(digits)
    ]
    return write_results(folder / "run", rows, targets=list(scores))


#: The scores of each target, and the clauses of the sentence.
RESULTS: list[tuple[dict[str, str], list[str]]] = [
    ({"a": "440"}, ["a passes 2 of 3 answers (67 %, 95 % from 21 to 94 %) with a mean score of 0.667"]),
    ({"a": "ee"}, ["No answer has a score"]),
    ({"a": "40", "b": "ee"}, ["a passes 1 of 2 answers (50 %, 95 % from 9 to 91 %) with a mean score of 0.500",
        "no answer of b has a score"]),
    ({"a": "0" * 10, "b": "4" * 10}, ["b passes 100 points more than a (34 to 100, 10 cases in common)",
        "significant, p = 0.002"]),
    ({"a": "4" * 12, "b": "4" * 7 + "0" * 5}, ["a passes 42 points more than b (-2 to 72, 12 cases in common)",
        "not significant, p = 0.062", "about 16 more cases would probably tell"]),
    ({"a": "440", "b": "404"}, ["a and b pass equally often (67 % of 3 cases in common)",
        "their mean scores are equal too"]),
    ({"a": "3" * 10, "b": "2" * 10}, ["a and b pass equally often (100 % of 10 cases in common)",
        "the mean score of a is 0.250 higher", "significant, p = 0.002"]),
    ({"a": "4" * 9, "b": "0" * 9, "c": "4" * 8 + "0"}, ["Of 3 targets a passes most often (100 %)",
        "it passes 11 points more than c (-28 to 48, 9 cases in common)", "not significant, p = 1.000"]),
    ({"a": "40", "b": "04", "c": "00"}, ["Of 3 targets a and b pass most often (50 %)",
        "a and b pass equally often (50 % of 2 cases in common)", "their mean scores are equal too"]),
    ({str(number): "40" for number in range(13)}, ["Of 13 targets 0, 1, 2 and 10 others pass most often (50 %)",
        "pairs of more than 12 are not compared"]),
]  # fmt: skip


@pytest.mark.parametrize(("scores", "clauses"), RESULTS, ids=[f"{len(one)}-{expected[0]}" for one, expected in RESULTS])
def test_the_first_sentence_says_what_the_pairs_say(
    tmp_path: Path, scores: Mapping[str, str], clauses: list[str]
) -> None:
    report = run_of(tmp_path, scores)
    assert told(report).result == f"{'; '.join(clauses)}."
    pairs = [difference.significant for pair in report.analysis.pairs for difference in (pair.passed, pair.score)]
    assert ("; significant" in told(report).result) <= any(pairs)


def test_targets_without_a_case_in_common_are_not_called_better(tmp_path: Path) -> None:
    result = told(run_of(tmp_path, {"a": "440", "b": "400"}, apart="b")).result
    assert "a passes 67 %" in result
    assert "b passes 33 %" in result
    assert "a and b have no case in common" in result


def test_the_cost_and_each_thing_that_went_wrong_are_told(tmp_path: Path) -> None:
    rows = [graded_row("1", 0.0), errored_row("2"), errored_row("3", status=RowStatus.IN_DOUBT)]
    bill = Bill.of([UsageLine(target="bot", calls=3, tries=3, cost=CostUsage(spent_usd=1.5))])
    first = told(write_results(tmp_path / "wrong", rows, targets=["bot", "other"], bill=bill))
    assert (first.cost, first.wrong) == (
        "It cost $1.50 for 3 calls.", "Of 6 trials: 1 erred, 1 in doubt, 3 without an answer."
    )  # fmt: skip
    assert (
        told(write_results(tmp_path / "low", rows[:1])).wrong
        == "It fails: mean score 0.000 is below the threshold 0.5."
    )
    right = told(write_results(tmp_path / "right", [graded_row("1", 1.0)]))
    assert (right.cost, right.wrong) == ("It took 1 call.", "")


def test_the_further_cases_that_are_named_would_tell_at_this_rate(tmp_path: Path) -> None:
    (pair,) = run_of(tmp_path, {"a": "4" * 12, "b": "4" * 7 + "0" * 5}).analysis.pairs
    more = more_cases(pair.passed)
    assert more is not None
    times = (12 + more) / 12
    assert mcnemar_p(int(5 * times), 0) < SIGNIFICANCE_LEVEL < pair.passed.p
    assert more_cases(pair.passed.with_fields(significant=True)) is None
    assert more_cases(pair.passed.with_fields(adjusted_p=0.5)) is None

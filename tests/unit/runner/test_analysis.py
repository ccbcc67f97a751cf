"""What a run's rows say: which of them count, what is paired with what, and what errors must not do."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from quintain_runner.results.row import RowStatus
from quintain_runner.statistics.analysis import Analysis, analyse, pass_at_k, pass_hat_k, reduce_cases
from quintain_runner.statistics.frame import ROW_PASS, ROW_SCORE, Measure, build_frames, pair_frames, trial_hash
from quintain_runner.statistics.inference import wilson
from support.results_folder import errored_row, graded_row


def test_a_mean_and_a_pass_rate_have_their_intervals() -> None:
    rows = [graded_row(str(n), 1.0 if n < 7 else 0.0) for n in range(12)]
    said = analyse(build_frames(rows, ["bot"])).targets["bot"].row
    assert said.passed.interval == wilson(7, 12)
    assert (said.passed.value, said.passed.cases, said.passed.rows) == (pytest.approx(7 / 12), 12, 12)
    assert said.score.interval.method == "bootstrap"
    # An error is no score of zero; a target without a graded row has nothing to say.
    doubt = errored_row("4", status=RowStatus.IN_DOUBT)
    rows = [graded_row("1", 1.0), graded_row("2", 0.5), errored_row("3"), doubt]
    analysis = analyse(build_frames(rows, ["bot", "other"]))
    assert (analysis.targets["bot"].row.score.value, analysis.targets["bot"].row.score.rows) == (0.75, 2)
    assert (analysis.targets["other"].row, analysis.pairs) == (None, [])


def test_of_several_rows_of_a_trial_the_graded_one_counts_or_else_the_last() -> None:
    rows = [errored_row("1"), graded_row("1", 1.0), graded_row("2", 0.0), graded_row("2", 1.0), *[errored_row("3")] * 2]
    column = build_frames(rows, ["bot"])["bot"]
    assert len(column.trial_hashes) == 3
    # Once graded, a trial is not asked again: a later row would be nobody's.
    assert column.clusters(ROW_SCORE).mean == 0.5


def test_targets_are_compared_on_the_cases_of_both() -> None:
    rows = [graded_row(str(n), 1.0, target="good") for n in range(10)]
    rows += [graded_row(str(n), 0.0, target="bad") for n in range(2, 12)]
    (pair,) = analyse(build_frames(rows, ["good", "bad"])).pairs
    assert (pair.first, pair.second) == ("good", "bad")
    assert (pair.passed.estimate.cases, pair.passed.better, pair.passed.worse) == (8, 8, 0)
    assert (pair.passed.p, pair.score.p) == (pytest.approx(2 / 256), pytest.approx(2 / 256))
    assert pair.passed.significant


def test_the_trials_that_differ_are_named() -> None:
    rows = [graded_row("1", 1.0, target="a"), graded_row("1", 1.0, target="b")]
    rows += [graded_row("2", 1.0, target="a"), graded_row("2", 0.0, target="b")]
    columns = build_frames(rows, ["a", "b"])
    assert pair_frames(columns["a"], columns["b"], ROW_PASS).differing_trials.tolist() == [trial_hash("2", 1)]
    assert pair_frames(columns["a"], columns["b"], Measure("score", "nobody")).differing_trials.tolist() == []


def test_what_is_written_is_read_again() -> None:
    rows = [graded_row(str(n), n / 10, target=target) for n in range(8) for target in ("a", "b")]
    analysis = analyse(build_frames(rows, ["a", "b"]))
    wire = analysis.to_wire()
    assert Analysis.from_wire(wire) == analysis
    pair = json.loads(wire)["pairs"][0]
    assert pair.keys() == {"first", "second", "pass", "score"}
    assert pair["pass"].keys() == {"estimate", "base", "better", "worse", "p", "adjustedP", "significant", "test"}


#: Scores of three cases, the rows in no order; a score from a half on passes.
ROWS = [(1, 0.0), (2, 0.5), (1, 1.0), (3, 0.25), (1, 0.6), (2, 0.1), (1, 0.9)]


@pytest.mark.parametrize(
    ("reducer", "values", "left_out"),
    [
        ("mean", [0.625, 0.3, 0.25], 0),
        ("median", [0.75, 0.3, 0.25], 0),
        # Case 2 passes once of twice: that is no majority.
        *(("majority", [1.0, 0.0, 0.0], 0), ("pass@1", [0.75, 0.5, 0.0], 0), ("pass@2", [1.0, 1.0], 1)),
        *(("pass^2", [0.5, 0.0], 1), ("pass@4", [1.0], 2), ("pass@9", [], 3)),
    ],
)
def test_the_repeats_of_each_case_become_one_value(reducer: str, values: list[float], left_out: int) -> None:
    cases = np.array([case for case, _ in ROWS], dtype=np.uint64)
    scores = np.array([score for _, score in ROWS])
    reduced = reduce_cases(reducer, cases, scores, (scores >= 0.5).astype(np.float64))
    assert reduced.values.sums.tolist() == pytest.approx(values)
    assert (reduced.values.rows.tolist(), reduced.left_out) == ([1.0] * len(values), left_out)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_pass_at_k_and_pass_hat_k_are_the_shares_of_all_choices_of_k_answers(count: int) -> None:
    for passed, k in itertools.product(range(count + 1), range(1, count + 1)):
        choices = list(itertools.combinations([True] * passed + [False] * (count - passed), k))
        assert pass_at_k(count, passed, k) == pytest.approx(sum(map(any, choices)) / len(choices))
        assert pass_hat_k(count, passed, k) == pytest.approx(sum(map(all, choices)) / len(choices))

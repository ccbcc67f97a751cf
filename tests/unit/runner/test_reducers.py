"""Reducers: one value of the repeats of a case."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from quintain_runner.statistics.analysis import pass_at_k, pass_hat_k, reduce_cases

#: Scores of three cases, the rows in no order; a score from a half on passes.
ROWS = [(1, 0.0), (2, 0.5), (1, 1.0), (3, 0.25), (1, 0.6), (2, 0.1), (1, 0.9)]


@pytest.mark.parametrize(
    ("reducer", "values", "left_out"),
    [
        ("mean", [0.625, 0.3, 0.25], 0),
        ("median", [0.75, 0.3, 0.25], 0),
        # Case 2 passes once of twice: that is no majority.
        ("majority", [1.0, 0.0, 0.0], 0),
        ("pass@1", [0.75, 0.5, 0.0], 0),
        ("pass@2", [1.0, 1.0], 1),
        ("pass^2", [0.5, 0.0], 1),
        ("pass@4", [1.0], 2),
        ("pass@9", [], 3),
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

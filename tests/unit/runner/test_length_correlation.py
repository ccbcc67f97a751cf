"""The rank correlation of the lengths of answers with their scores, within the cases."""

from __future__ import annotations

import numpy as np
import pytest

from quintain_runner.statistics.inference import Floats
from quintain_runner.statistics.length_correlation import RankCorrelation, rank_correlation

#: M. G. Kendall and J. D. Gibbons, "Rank Correlation Methods" (1990), table 1.1: ten boys in mathematics and in music,
#: whose rank correlation is 1 - 6 · 182 / 990.
MATHEMATICS = [7, 4, 3, 10, 6, 2, 9, 8, 1, 5]
MUSIC = [5, 7, 3, 10, 1, 9, 6, 2, 8, 4]


def correlated(*rows: tuple[int, float, float]) -> RankCorrelation | None:
    cases, first, second = zip(*rows, strict=True)
    return rank_correlation(np.array(cases, dtype=np.uint64), np.array(first, float), np.array(second, float))


def by_definition(values: Floats) -> Floats:
    """Centered ranks, where equal values share the mean of their ranks."""
    ranks = np.array([np.sum(values < value) + (np.sum(values == value) + 1) / 2 for value in values])
    return ranks - ranks.mean()


def test_of_one_case_it_is_spearmans() -> None:
    found = correlated(*((1, float(a), float(b)) for a, b in zip(MATHEMATICS, MUSIC, strict=True)))
    assert found is not None
    assert found.value == pytest.approx(1 - 6 * 182 / 990)
    assert (found.cases, found.rows, found.interval) == (1, 10, None)


def test_what_differs_between_cases_has_no_part_in_it() -> None:
    # Cases with long answers have low scores; within a case longer answers have higher ones.
    rows = [(case, 100.0 * case + step, 1 - case / 10 + step / 100) for case in range(1, 9) for step in range(3)]
    found = correlated(*rows)
    assert found is not None
    assert found.value == pytest.approx(1)
    assert found.interval is None


def test_it_is_pearsons_of_the_ranks_within_cases_also_with_ties_and_is_within_its_interval() -> None:
    random = np.random.default_rng(7)
    cases = np.repeat(np.arange(200, dtype=np.uint64), 5)
    lengths = random.integers(1, 6, 1000).astype(float)
    scores = np.round(0.1 * lengths + random.random(1000), 1)
    order = random.permutation(1000)
    found = rank_correlation(cases[order], lengths[order], scores[order])
    ranks = [np.concatenate([by_definition(each[cases == case]) for case in range(200)]) for each in (lengths, scores)]
    assert found is not None
    assert found.value == pytest.approx(float(np.corrcoef(ranks[0], ranks[1])[0, 1]))
    assert found.interval is not None
    assert 0 < found.interval.low < found.value < found.interval.high < 1
    assert found.interval.high - found.interval.low < 0.2


def test_an_interval_covers_0_as_often_as_it_says() -> None:
    random = np.random.default_rng(11)
    cases = np.repeat(np.arange(60, dtype=np.uint64), 3)
    missed = 0
    for _ in range(60):
        found = rank_correlation(cases, random.random(180), random.random(180))
        assert found is not None
        assert found.interval is not None
        missed += not found.interval.low <= 0 <= found.interval.high
    assert missed <= 9


@pytest.mark.parametrize(
    "rows",
    [
        [(1, 1.0, 1.0), (2, 2.0, 0.0)],
        [(1, 1.0, 1.0), (1, 1.0, 0.0)],
        [(1, 1.0, 1.0), (1, 2.0, 1.0)],
        [(1, float("nan"), 1.0), (1, 2.0, 0.0)],
        [(1, float("nan"), float("nan"))],
    ],
)
def test_without_answers_to_one_case_that_differ_in_both_there_is_none(rows: list[tuple[int, float, float]]) -> None:
    assert correlated(*rows) is None

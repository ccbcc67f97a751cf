"""The tests of a difference and their intervals, against published values and against each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain_runner.statistics.inference import MAX_DRAWS, MAX_RESAMPLES, Clusters
from quintain_runner.statistics.significance import (
    MAX_ENUMERATED_CASES,
    SIGNIFICANCE_LEVEL,
    holm,
    holm_levels,
    mcnemar_p,
    paired_interval,
    sign_flip_test,
)

#: C. Darwin's crossed and self-fertilised maize, in eighths of an inch, as R. A. Fisher tested it (1935, §21).
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def test_fishers_test_of_darwins_maize_gives_fishers_result() -> None:
    assert sign_flip_test(np.array(DARWIN, dtype=float))[0] == pytest.approx(1726 / 32768)


def test_mcnemars_exact_test_gives_the_result_of_r() -> None:
    # mcnemar.exact of R's exact2x2 (M. P. Fay): b = 2 and c = 9 give 0.06543.
    assert mcnemar_p(2, 9) == pytest.approx(0.06543, abs=5e-6)
    assert mcnemar_p(9, 2) == mcnemar_p(2, 9)
    assert mcnemar_p(1, 9) == pytest.approx(22 / 1024)
    assert (mcnemar_p(0, 0), mcnemar_p(4, 5), mcnemar_p(5, 5)) == (1.0, 1.0, 1.0)
    # Pass and fail, asked once, are tested by it.
    assert sign_flip_test(np.array([1.0] * 2 + [-1.0] * 9 + [0.0] * 30)) == (mcnemar_p(2, 9), "mcnemar")


def test_more_cases_than_can_be_enumerated_are_drawn_and_give_nearly_the_exact_result() -> None:
    differences = [0.1, 0.3, -0.2, 0.5, 0.4, 0.1, -0.1, 0.2, 0.6, 0.3, -0.3, 0.2, 0.1, 0.4, 0.25, -0.15, 0.35, 0.05]
    differences += [0.45, -0.05]
    assert len(differences) > MAX_ENUMERATED_CASES
    # scipy.stats.permutation_test 1.16, permutation_type "samples", all of its 2**20 patterns.
    assert sign_flip_test(np.array(differences))[0] == pytest.approx(0.00689, abs=0.0025)
    assert sign_flip_test(1 + np.random.default_rng(1).random(100))[0] == pytest.approx(1 / 10_000), "never zero"


def test_very_many_cases_are_tested_by_the_normal_law_with_nearly_the_drawn_result() -> None:
    random = np.random.default_rng(2)
    many = random.normal(0.05, 1.0, size=1_001)
    drawn = random.permutation(many)[:1_000]
    assert sign_flip_test(many)[0] == pytest.approx(sign_flip_test(drawn)[0], abs=0.05)
    assert (sign_flip_test(many)[1], sign_flip_test(drawn)[1]) == ("normal", "sign_flip")


def test_what_differs_nowhere_is_no_evidence() -> None:
    assert sign_flip_test(np.zeros(10))[0] == 1.0
    assert sign_flip_test(np.empty(0))[0] == 1.0


def test_holms_adjustment_is_the_textbooks() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def clusters(sums: Sequence[float], rows: Sequence[float] | None = None) -> Clusters:
    return Clusters(np.array(sums, dtype=float), np.ones(len(sums)) if rows is None else np.array(rows, dtype=float))


def passes(better: int, worse: int, cases: int) -> Clusters:
    return clusters([1.0] * better + [-1.0] * worse + [0.0] * (cases - better - worse))


def excludes_zero(differences: Clusters, level: float = SIGNIFICANCE_LEVEL) -> bool:
    interval = paired_interval(differences, level)
    assert -1 <= interval.low <= differences.mean <= interval.high <= 1
    return interval.low > 0 or interval.high < 0


@pytest.mark.parametrize(
    ("better", "worse", "cases", "low", "high"),
    [
        # mcnemarExactDP of R's exact2x2 1.6.9 (Fay and Lumbard 2021); the first is the example of its manual.
        (1, 7, 21, -0.5455, 0.0205),
        (12, 2, 50, 0.0362, 0.3550),
        (9, 2, 161, -0.0025, 0.0938),
        (13, 0, 256, 0.0197, 0.0853),
        (0, 0, 12, -0.2646, 0.2646),
        (5, 0, 5, -0.0436, 1.0),
        (10, 0, 10, 0.3380, 1.0),
        (3, 3, 6, -0.7638, 0.7638),
    ],
)
def test_an_interval_of_passes_is_fay_and_lumbards(
    better: int, worse: int, cases: int, low: float, high: float
) -> None:
    interval = paired_interval(passes(better, worse, cases))
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-4)


def test_darwins_maize_has_the_interval_that_fishers_test_gives() -> None:
    # All 2**15 means of subsets, sorted: the 819th from either end, as 2 * 819 / 2**15 is the first above 0.05.
    interval = paired_interval(clusters([one / 100 for one in DARWIN]))
    assert interval.method == "sign_flip"
    assert (100 * interval.low, 100 * interval.high) == pytest.approx((-0.167, 41.0), abs=0.001)


def test_an_interval_excludes_zero_exactly_where_mcnemars_test_does() -> None:
    for cases in (1, 5, 6, 17, 40):
        for better in range(0, cases + 1, 1 + cases // 9):
            for worse in range(min(6, cases + 1 - better)):
                expected = mcnemar_p(better, worse) < SIGNIFICANCE_LEVEL
                assert excludes_zero(passes(better, worse, cases)) == expected, (better, worse, cases)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.1, 0.3, 0.5, 1.0]), st.integers(1, 4)), min_size=1),
    st.sampled_from([0.05, 0.05 / 3, 0.01]),
)
def test_an_interval_excludes_zero_where_the_sign_flip_test_does(cases: list[tuple[float, int]], level: float) -> None:
    differences = clusters([mean * rows for mean, rows in cases], [rows for _, rows in cases])
    assert excludes_zero(differences, level) == (sign_flip_test(differences.sums)[0] < level)


@pytest.mark.parametrize("shift", [0.0, 0.04, 0.06, 0.08, 0.1])
@pytest.mark.parametrize("cases", [MAX_ENUMERATED_CASES + 4, 200, 2 * MAX_DRAWS // MAX_RESAMPLES])
def test_an_interval_excludes_zero_exactly_where_the_test_of_many_cases_does(cases: int, shift: float) -> None:
    random = np.random.default_rng(7)
    values = np.round(np.clip(random.normal(shift * 14 / math.sqrt(cases), 0.3, size=cases), -1, 1), 2)
    values[:: 1 + cases // 10] = 0.0
    differences = Clusters(values, np.ones(cases))
    assert excludes_zero(differences) == (sign_flip_test(values)[0] < SIGNIFICANCE_LEVEL)


def test_cases_that_do_not_differ_make_the_interval_of_scores_narrower_but_not_empty() -> None:
    few, many = (paired_interval(clusters([0.0] * cases)) for cases in (5, 50))
    assert (few.low, few.high) == pytest.approx((-0.5218, 0.5218), abs=1e-3)
    assert (many.low, many.high) == pytest.approx((-0.0711, 0.0711), abs=1e-3)


@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=12))
def test_a_p_value_is_below_its_level_exactly_where_its_adjusted_one_is_below_five_percent(p: list[float]) -> None:
    below = [one < level for one, level in zip(p, holm_levels(p), strict=True)]
    assert below == [one < SIGNIFICANCE_LEVEL for one in holm(p)]

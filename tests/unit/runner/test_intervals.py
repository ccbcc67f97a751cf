"""The intervals, against published numbers, against SciPy's, and against what repeats must not do."""

from __future__ import annotations

import numpy as np
import pytest

from quintain_runner.statistics.inference import (
    MAX_DRAWS,
    MIN_RESAMPLES,
    Clusters,
    mean_interval,
    share_interval,
    standard_error,
    wilson,
)


def clusters(*sums: float, rows: float | list[float] = 1.0) -> Clusters:
    values = np.array(sums, dtype=float)
    return Clusters(values, np.full(len(sums), rows) if isinstance(rows, float) else np.array(rows))


@pytest.mark.parametrize(
    ("passed", "rows", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (20, 20, 0.8389, 1.0),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_the_one_of_newcombes_table_1(passed: int, rows: int, low: float, high: float) -> None:
    interval = wilson(passed, rows)
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


def test_repeats_that_are_all_alike_say_no_more_than_one() -> None:
    once = share_interval(clusters(*[1.0] * 7, *[0.0] * 5))
    thrice = share_interval(clusters(*[3.0] * 7, *[0.0] * 5, rows=3.0))
    # The variance between twelve cases is known from eleven degrees of freedom: it may count for no fewer than twelve.
    assert (thrice.low, thrice.high) == pytest.approx((once.low, once.high), abs=1e-12)


def test_the_standard_error_is_the_clustered_one_by_hand() -> None:
    # Means 1, 0.5 and 0 of two rows each about 0.5: residues 1, 0 and -1, so sqrt(3/2 * 2) / 6.
    assert standard_error(clusters(2.0, 1.0, 0.0, rows=2.0)) == pytest.approx(3**0.5 / 6)
    assert standard_error(clusters(1.0)) == 0.0


SCORES = (1, 1, 0.5, 0, 1, 0.75, 0.25, 1, 1, 0, 0.5, 1, 1, 0.9, 0.1, 1, 0.6, 1, 0.3, 0.8)


@pytest.mark.parametrize(
    ("measured", "low", "high"),
    [
        # scipy.stats.bootstrap 1.16, method BCa, 999,999 resamples; paired=True for the second.
        (clusters(*SCORES), 0.5075, 0.8275),
        (clusters(3, 1, 0, 2, 4, 1, 0, 2, 3, 5, rows=[3, 2, 1, 2, 4, 3, 2, 2, 4, 5]), 0.5, 0.9143),
        # B. Efron and R. J. Tibshirani's treated mice (1993, table 2.1): their mean, by the same.
        (clusters(94, 197, 16, 38, 99, 141, 23), 46.43, 138.86),
    ],
)
def test_the_bootstrap_is_the_one_of_scipy(measured: Clusters, low: float, high: float) -> None:
    interval = mean_interval(measured)
    assert interval.method == "bootstrap"
    scale = measured.mean
    assert interval.low / scale == pytest.approx(low / scale, abs=0.015)
    assert interval.high / scale == pytest.approx(high / scale, abs=0.015)


def test_the_same_cases_in_another_order_have_the_same_interval() -> None:
    for values in (SCORES, tuple(np.random.default_rng(3).random(300))):
        forwards, backwards = mean_interval(clusters(*values)), mean_interval(clusters(*values[::-1]))
        assert (forwards.low, forwards.high) == pytest.approx((backwards.low, backwards.high), abs=1e-12)


def test_where_a_bootstrap_would_take_long_the_normal_interval_is_the_same() -> None:
    values = np.random.default_rng(4).random(MAX_DRAWS // MIN_RESAMPLES + 1)
    normal = mean_interval(Clusters(values, np.ones(len(values))))
    drawn = mean_interval(Clusters(values[:-2], np.ones(len(values) - 2)))
    assert (normal.method, drawn.method) == ("normal", "bootstrap")
    assert (normal.low, normal.high) == pytest.approx((drawn.low, drawn.high), abs=1e-3)


def test_cases_that_are_all_alike_have_no_interval() -> None:
    assert mean_interval(clusters(1.0, 1.0, 1.0)) is None
    assert mean_interval(clusters(0.5)) is None

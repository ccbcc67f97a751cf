"""Confidence intervals of rates and means."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, TypeAlias

from quintain.contracts.message import Message
from quintain_runner.statistics.arrays import np, npt

#: The confidence level of all intervals.
CONFIDENCE: Final = 0.95

#: The usual and the smallest number of resamples of a bootstrap.
MAX_RESAMPLES: Final = 9_999
MIN_RESAMPLES: Final = 1_000

#: The most random draws of one bootstrap. With so many cases that this allows fewer than `MIN_RESAMPLES` resamples, the
#: mean is normally distributed to a very good approximation, and the normal interval is used.
MAX_DRAWS: Final = 10_000_000

#: The cost of one multinomial draw, in draws of a random index.
_MULTINOMIAL_COST = 16

#: The number of draws made in one NumPy call, which bounds the memory in use (8 bytes each).
_DRAWS_PER_BATCH = 1_000_000

_BOOTSTRAP_SEED = 20_260_101
_ROUND_DIGITS = 12
_NORMAL = NormalDist()

Floats: TypeAlias = "npt.NDArray[np.float64]"
KindCounts: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval from ``low`` to ``high``, and its method: ``wilson``, ``bootstrap``, or the test of
    a difference: ``exact``, ``sign_flip`` or ``normal``.
    """

    low: float
    high: float
    method: str


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """Values grouped by case. For each case (one entry per case, float64): the sum of its rows' values and its number
    of rows.
    """

    sums: Floats
    rows: Floats

    @property
    def mean(self) -> float:
        """The mean over all rows; there must be at least one row."""
        return float(self.sums.sum() / self.rows.sum())

    def __len__(self) -> int:
        """The number of cases (clusters)."""
        return len(self.sums)


class MeanEstimate(Message):
    """A mean over graded rows: its value, the number of cases and rows, and its confidence interval.

    ``interval`` is None if every case has the same value.
    """

    value: float
    cases: int
    rows: int
    interval: Interval | None = None


def mean_estimate(clusters: Clusters, interval: Interval | None) -> MeanEstimate:
    """The mean of clusters, with the given interval."""
    return MeanEstimate(value=clusters.mean, cases=len(clusters), rows=int(clusters.rows.sum()), interval=interval)


def wilson(passed: float, rows: float, *, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's score interval of a proportion: ``passed`` of ``rows``.

    ``rows`` may be an effective sample size, which need not be an integer. Sources: E. B. Wilson, "Probable inference,
    the law of succession, and statistical inference", JASA 22 (1927), in the form of R. G. Newcombe, "Two-sided
    confidence intervals for the single proportion", Statistics in Medicine 17 (1998), method 3.
    """
    z = _NORMAL.inv_cdf(0.5 + confidence / 2)
    share = passed / rows
    middle = 2 * rows * share + z * z
    spread = z * math.sqrt(z * z + 4 * rows * share * (1 - share))
    denominator = 2 * (rows + z * z)
    # Avoid rounding errors outside [0, 1]: at 0 and at 1 the bound is exact.
    low = 0.0 if passed <= 0 else (middle - spread) / denominator
    high = 1.0 if passed >= rows else (middle + spread) / denominator
    return Interval(max(0.0, low), min(1.0, high), "wilson")


def share_interval(passed: Clusters) -> Interval:
    """Wilson's interval of a pass rate, with the effective sample size if cases have several rows.

    The effective sample size is the number of independent rows that would give the variance observed between the cases,
    limited to at least the number of cases and at most the number of rows. Source: N. Dean and M. Pagano, "Evaluating
    confidence interval methods for binomial proportions in clustered surveys", Journal of Survey Statistics and
    Methodology 3 (2015).
    """
    rows, share = float(passed.rows.sum()), passed.mean
    effective_rows = rows
    if len(passed) < rows:
        variance = standard_error(passed) ** 2
        effective_rows = share * (1 - share) / variance if variance > 0 else float(len(passed))
        effective_rows = min(max(effective_rows, float(len(passed))), rows)
    return wilson(share * effective_rows, effective_rows)


def standard_error(clusters: Clusters) -> float:
    """The standard error of the mean, with each case as a cluster; 0 if there is only one case.

    Source: E. Miller, "Adding error bars to evals", arXiv:2411.00640 (2024), §2.2, with the correction C/(C - 1) for a
    small number of clusters C.
    """
    count = len(clusters)
    if count < 2:
        return 0.0
    residues = clusters.sums - clusters.mean * clusters.rows
    return float(math.sqrt(count / (count - 1) * np.square(residues).sum()) / clusters.rows.sum())


def mean_interval(clusters: Clusters) -> Interval | None:
    """The BCa bootstrap interval of a mean, with cases drawn with replacement; None if all cases have the same value.

    With too many cases for `MAX_DRAWS` the normal interval is returned, which is practically the same then. Source of
    the bootstrap: see `_bca`.
    """
    kinds, weights = _distinct_cases(clusters)
    if len(kinds) < 2:
        return None
    use_multinomial = _MULTINOMIAL_COST * len(kinds) < len(clusters)
    resamples = min(MAX_RESAMPLES, MAX_DRAWS // min(_MULTINOMIAL_COST * len(kinds), len(clusters)))
    if resamples < MIN_RESAMPLES:
        half_width = _NORMAL.inv_cdf(0.5 + CONFIDENCE / 2) * standard_error(clusters)
        return Interval(clusters.mean - half_width, clusters.mean + half_width, "normal")
    draw_means = _draw_means_multinomial if use_multinomial else _draw_means_by_index
    low, high = _bca(draw_means(kinds, weights, resamples), clusters.mean, _jackknife(kinds, clusters), weights)
    return Interval(low, high, "bootstrap")


def _distinct_cases(clusters: Clusters) -> tuple[Floats, KindCounts]:
    """The distinct pairs of sum and rows, as an array of shape (kinds, 2), and the number of cases of each kind."""
    if np.all(clusters.rows == 1):
        sums, weights = np.unique(clusters.sums, return_counts=True)
        return np.column_stack((sums, np.ones(len(sums)))), weights
    # NumPy sorts complex numbers faster than pairs.
    distinct, weights = np.unique(clusters.sums + 1j * clusters.rows, return_counts=True)
    return np.column_stack((distinct.real, distinct.imag)), weights


def _draw_means_multinomial(kinds: Floats, weights: KindCounts, resamples: int) -> Floats:
    """The means of ``resamples`` bootstrap samples, drawn as the counts of each kind of case; fast with few kinds."""
    random, count = np.random.default_rng(_BOOTSTRAP_SEED), int(weights.sum())
    totals = random.multinomial(count, weights / count, size=resamples) @ kinds
    means: Floats = totals[:, 0] / totals[:, 1]
    return means


def _draw_means_by_index(kinds: Floats, weights: KindCounts, resamples: int) -> Floats:
    """The means of ``resamples`` bootstrap samples, drawn as indices of cases; faster with many kinds."""
    random, cases = np.random.default_rng(_BOOTSTRAP_SEED), np.repeat(kinds, weights, axis=0)
    sums, rows = np.ascontiguousarray(cases[:, 0]), np.ascontiguousarray(cases[:, 1])
    means, batch = [], max(1, _DRAWS_PER_BATCH // len(cases))
    for start in range(0, resamples, batch):
        chosen = random.integers(0, len(cases), size=(min(batch, resamples - start), len(cases)))
        means.append(sums[chosen].sum(axis=1) / rows[chosen].sum(axis=1))
    return np.concatenate(means)


def _jackknife(kinds: Floats, clusters: Clusters) -> Floats:
    """The jackknife means: for each kind of case, the mean of all rows without one case of that kind."""
    left_out: Floats = (clusters.sums.sum() - kinds[:, 0]) / (clusters.rows.sum() - kinds[:, 1])
    return left_out


def _bca(resampled_means: Floats, mean: float, left_out: Floats, weights: KindCounts) -> tuple[float, float]:
    """The bias-corrected and accelerated (BCa) bounds of a bootstrap.

    ``left_out`` are the jackknife means of each kind of case, and ``weights`` the number of cases of that kind.
    Resampled means equal to the observed mean count half below and half above it, because scores often have few
    distinct values. Source: B. Efron and R. J. Tibshirani, "An Introduction to the Bootstrap" (1993), §14.3.
    """
    # Rounded, because a different order of additions can change the last binary digit of an equal mean.
    resampled_means, mean = np.round(resampled_means, _ROUND_DIGITS), round(mean, _ROUND_DIGITS)
    fraction_below = (np.count_nonzero(resampled_means < mean) + np.count_nonzero(resampled_means <= mean)) / (
        2 * len(resampled_means)
    )
    tails = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    if not 0 < fraction_below < 1:
        low, high = np.quantile(resampled_means, tails)
        return float(low), float(high)
    bias = _NORMAL.inv_cdf(fraction_below)
    deviations = np.average(left_out, weights=weights) - left_out
    spread = float(weights @ deviations**2)
    acceleration = float(weights @ deviations**3) / (6 * spread**1.5) if spread else 0.0

    def adjusted_tail(tail: float) -> float:
        z = bias + _NORMAL.inv_cdf(tail)
        return _NORMAL.cdf(bias + z / (1 - acceleration * z))

    low, high = np.quantile(resampled_means, [adjusted_tail(tail) for tail in tails])
    return float(low), float(high)


def bootstrap_interval(cases: Floats, statistic: Callable[[Floats], Floats]) -> Interval | None:
    """The percentile bootstrap interval of a statistic of sums over cases, with cases drawn with replacement.

    ``cases`` has a row of summands for each case, and ``statistic`` gives a value, or NaN, for each row of sums. None
    where it has one value whatever cases are drawn. With too many kinds of cases for `MAX_DRAWS` the normal interval
    with the jackknife's standard error is returned. Source: B. Efron and R. J. Tibshirani, "An Introduction to the
    Bootstrap" (1993), §13.3 and §11.2.
    """
    kinds, weights = np.unique(np.round(cases, _ROUND_DIGITS), axis=0, return_counts=True)
    count, resamples = len(cases), min(MAX_RESAMPLES, MAX_DRAWS // len(kinds))
    if resamples < MIN_RESAMPLES:
        left_out = statistic(cases.sum(axis=0) - cases)
        error = math.sqrt((count - 1) / count * float(np.square(left_out - left_out.mean()).sum()))
        value = float(statistic(cases.sum(axis=0, keepdims=True))[0])
        half_width = _NORMAL.inv_cdf(0.5 + CONFIDENCE / 2) * error
        return Interval(value - half_width, value + half_width, "normal")
    random, values = np.random.default_rng(_BOOTSTRAP_SEED), list[Floats]()
    batch = max(1, _DRAWS_PER_BATCH // len(kinds))
    for start in range(0, resamples, batch):
        drawn = random.multinomial(count, weights / count, size=min(batch, resamples - start))
        values.append(statistic(drawn @ kinds))
    defined = np.round(np.concatenate(values), _ROUND_DIGITS)
    defined = defined[~np.isnan(defined)]
    if not len(defined) or defined.min() == defined.max():
        return None
    low, high = np.quantile(defined, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Interval(float(low), float(high), "bootstrap")

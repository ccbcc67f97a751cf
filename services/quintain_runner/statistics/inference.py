"""Confidence intervals and significance tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from quintain.contracts.message import Message

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

Floats = npt.NDArray[np.float64]
KindCounts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval from ``low`` to ``high``, and its method: ``wilson``, ``bootstrap`` or ``normal``."""

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


#: Up to this many differing cases all 2**n sign patterns are enumerated, so the p-value is exact.
MAX_ENUMERATED_CASES: Final = 16

#: A difference with an adjusted p-value below this is called significant.
SIGNIFICANCE_LEVEL: Final = 0.05

_SIGN_SEED = 20_260_102

#: The relative difference below which two sums are considered equal: rounding of another order of additions.
_ROUNDING = 1e-9

#: The number of signs drawn in one NumPy call, which bounds the memory in use.
_SIGNS_PER_BATCH = 4_000_000


#: How a p-value was found: McNemar's exact test and the normal approximation are cases of the sign-flip test.
SignificanceTest = Literal["mcnemar", "sign_flip", "normal"]


def sign_flip_test(differences: Floats) -> tuple[float, SignificanceTest]:
    """The two-sided p-value of the hypothesis that the mean of ``differences`` (one per case) is 0, and the test.

    If all nonzero differences have the same size, it is McNemar's exact test; with at most `MAX_ENUMERATED_CASES` of
    them it is the exact permutation test. With more, signs are drawn from a constant seed, and the observed pattern
    counts as one of them (B. Phipson and G. K. Smyth, "Permutation p-values should never be zero", Stat. Appl. Genet.
    Mol. Biol. 9, 2010). With too many for `MAX_DRAWS` the normal approximation of the sum is used, which for pass/fail
    is the test of V. L. Durkalski et al., "Analysis of clustered matched-pair data", Stat. Med. 22, 2003.
    """
    nonzero = differences[differences != 0]
    if not len(nonzero):
        return 1.0, "mcnemar"
    sizes = np.abs(nonzero)
    if sizes.max() - sizes.min() <= _ROUNDING * sizes.max():
        return mcnemar_p(int(np.count_nonzero(nonzero > 0)), int(np.count_nonzero(nonzero < 0))), "mcnemar"
    if len(sizes) <= MAX_ENUMERATED_CASES:
        patterns = (np.arange(1 << len(sizes))[:, None] >> np.arange(len(sizes))) & 1
        return float(np.mean(_at_least_as_extreme((2 * patterns - 1) @ sizes, nonzero))), "sign_flip"
    if len(sizes) * MAX_RESAMPLES > MAX_DRAWS:
        z = abs(float(nonzero.sum())) / math.sqrt(float(np.square(nonzero).sum()))
        return 2 * NormalDist().cdf(-z), "normal"
    return _sampled_p_value(nonzero, sizes), "sign_flip"


def mcnemar_p(better: int, worse: int) -> float:
    """McNemar's exact two-sided p-value: ``better`` cases passed only on the first target, ``worse`` only on the
    second.

    It is twice the smaller tail of the binomial distribution with probability 1/2, at most 1. Source: Q. McNemar, "Note
    on the sampling error of the difference between correlated proportions", Psychometrika 12 (1947).
    """
    count, fewer = better + worse, min(better, worse)
    if 2 * fewer >= count - 1:
        return 1.0
    log_probabilities = (
        math.lgamma(count + 1) - math.lgamma(i + 1) - math.lgamma(count - i + 1) - count * math.log(2)
        for i in range(fewer + 1)
    )
    return min(1.0, 2 * math.fsum(math.exp(log_probability) for log_probability in log_probabilities))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjustment of p-values for multiple comparisons; the result is in the order of the input.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6
    (1979).
    """
    adjusted, highest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = highest
    return adjusted


def _sampled_p_value(nonzero: Floats, sizes: Floats) -> float:
    """The p-value from `MAX_RESAMPLES` random sign patterns."""
    random, extreme_count, left = np.random.default_rng(_SIGN_SEED), 0, MAX_RESAMPLES
    while left:
        batch = min(left, max(1, _SIGNS_PER_BATCH // len(sizes)))
        signs = random.integers(0, 2, size=(batch, len(sizes)), dtype=np.int8)
        extreme_count += int(np.count_nonzero(_at_least_as_extreme((2.0 * signs - 1.0) @ sizes, nonzero)))
        left -= batch
    return (extreme_count + 1) / (MAX_RESAMPLES + 1)


def _at_least_as_extreme(sums: Floats, nonzero: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Which of the sums are at least as far from 0 as the observed sum of ``nonzero``, as a boolean array."""
    observed = abs(float(nonzero.sum()))
    return np.abs(sums) >= observed - _ROUNDING * float(np.abs(nonzero).sum())

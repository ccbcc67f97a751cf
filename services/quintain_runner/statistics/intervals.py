"""Confidence intervals of pass rates and mean scores, clustered by case because repeats are not independent. No I/O.

Random numbers come from a constant seed: the same rows always have the same interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

#: How much of the time an interval is to hold what is measured.
CONFIDENCE: Final = 0.95

#: How many resamples a bootstrap has: most of them, and the fewest with which it still is one.
MAX_RESAMPLES: Final = 9_999
MIN_RESAMPLES: Final = 1_000

#: What a bootstrap may cost, in random draws; where so many cases need more, their mean is normal for every purpose.
MAX_DRAWS: Final = 10_000_000

#: A draw from a multinomial costs about as much as so many draws of an index.
_MULTINOMIAL_COST = 16

#: Draws that are made at once: what they take of memory is this many numbers.
_DRAWS_PER_BATCH = 1_000_000

_SEED = 20_260_101
_ROUND_DIGITS = 12
_NORMAL = NormalDist()

Floats = npt.NDArray[np.float64]
KindCounts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Interval:
    """From where to where, and by which method: ``wilson``, ``bootstrap`` or ``normal``."""

    low: float
    high: float
    method: str


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """One number per case: the sum of its rows' values, and how many rows that were (one at least)."""

    sums: Floats
    rows: Floats

    @property
    def mean(self) -> float:
        """The mean over the rows. There must be one."""
        return float(self.sums.sum() / self.rows.sum())

    def __len__(self) -> int:
        return len(self.sums)


def wilson(passed: float, rows: float, *, confidence: float = CONFIDENCE) -> Interval:
    """The score interval of a share.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927), in the form
    of R. G. Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17 (1998),
    method 3. ``rows`` may be an effective number, which is no integer.
    """
    z = _NORMAL.inv_cdf(0.5 + confidence / 2)
    share = passed / rows
    middle = 2 * rows * share + z * z
    spread = z * math.sqrt(z * z + 4 * rows * share * (1 - share))
    denominator = 2 * (rows + z * z)
    # Rounding must not leave the range: at 0 and at 1 the bound is that number.
    low = 0.0 if passed <= 0 else (middle - spread) / denominator
    high = 1.0 if passed >= rows else (middle + spread) / denominator
    return Interval(max(0.0, low), min(1.0, high), "wilson")


def share_interval(passed: Clusters) -> Interval:
    """Wilson's interval of a pass rate, on the effective number of rows where cases have several of them.

    N. Dean and M. Pagano, "Evaluating confidence interval methods for binomial proportions in clustered surveys",
    Journal of Survey Statistics and Methodology 3 (2015): the rows count for as many independent ones as would give
    the variance between the clusters. That is at least one per case, and at most every row.
    """
    rows, share = float(passed.rows.sum()), passed.mean
    effective_rows = rows
    if len(passed) < rows:
        variance = standard_error(passed) ** 2
        effective_rows = share * (1 - share) / variance if variance > 0 else float(len(passed))
        effective_rows = min(max(effective_rows, float(len(passed))), rows)
    return wilson(share * effective_rows, effective_rows)


def standard_error(clusters: Clusters) -> float:
    """The standard error of a mean, with the case as the cluster; 0 where there is one case only.

    E. Miller, "Adding error bars to evals", arXiv:2411.00640 (2024), §2.2, with the factor C/(C - 1) of small numbers
    of clusters, C.
    """
    count = len(clusters)
    if count < 2:
        return 0.0
    residues = clusters.sums - clusters.mean * clusters.rows
    return float(math.sqrt(count / (count - 1) * np.square(residues).sum()) / clusters.rows.sum())


def mean_interval(clusters: Clusters) -> Interval | None:
    """The bootstrap interval of a mean, cases drawn with replacement; None where all cases are alike.

    Where they are so many that it would take long, the normal interval, which is the same by then.
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
    """Which cases there are, as pairs of their sum and their rows, and how many of each."""
    if np.all(clusters.rows == 1):
        sums, weights = np.unique(clusters.sums, return_counts=True)
        return np.column_stack((sums, np.ones(len(sums)))), weights
    # As complex numbers, because pairs sort fast that way.
    alike, weights = np.unique(clusters.sums + 1j * clusters.rows, return_counts=True)
    return np.column_stack((alike.real, alike.imag)), weights


def _draw_means_multinomial(kinds: Floats, weights: KindCounts, resamples: int) -> Floats:
    """The means of so many samples of as many cases, drawn by how many there are of each kind."""
    random, count = np.random.default_rng(_SEED), int(weights.sum())
    totals = random.multinomial(count, weights / count, size=resamples) @ kinds
    means: Floats = totals[:, 0] / totals[:, 1]
    return means


def _draw_means_by_index(kinds: Floats, weights: KindCounts, resamples: int) -> Floats:
    """The same, each case drawn by itself: the better way where few are alike."""
    random, cases = np.random.default_rng(_SEED), np.repeat(kinds, weights, axis=0)
    sums, rows = np.ascontiguousarray(cases[:, 0]), np.ascontiguousarray(cases[:, 1])
    means, batch = [], max(1, _DRAWS_PER_BATCH // len(cases))
    for begun in range(0, resamples, batch):
        chosen = random.integers(0, len(cases), size=(min(batch, resamples - begun), len(cases)))
        means.append(sums[chosen].sum(axis=1) / rows[chosen].sum(axis=1))
    return np.concatenate(means)


def _jackknife(kinds: Floats, clusters: Clusters) -> Floats:
    """The mean without one case, for a case of each kind."""
    left_out: Floats = (clusters.sums.sum() - kinds[:, 0]) / (clusters.rows.sum() - kinds[:, 1])
    return left_out


def _bca(resampled_means: Floats, mean: float, left_out: Floats, weights: KindCounts) -> tuple[float, float]:
    """The bias-corrected and accelerated bounds.

    B. Efron and R. J. Tibshirani, "An Introduction to the Bootstrap" (1993), §14.3; samples that hit the mean itself
    count by half on either side, as scores of few values often do.
    """
    # Rounded, or the last binary digit would tell a mean from the same numbers added up in another order.
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

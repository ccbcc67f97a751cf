"""Intervals for what a run measured, where the repeats of a case are not independent of each other. Pure.

The unit of chance is the case, never the row: a run has drawn its cases, and asked each of them ``repeats`` times.
Every random number comes from a seed that is a constant, so the same rows have the same interval for ever.
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
MOST_RESAMPLES: Final = 9_999
FEWEST_RESAMPLES: Final = 1_000

#: What a bootstrap may cost, in random draws; where so many cases need more, their mean is normal for every purpose.
MOST_DRAWS: Final = 10_000_000

#: A draw from a multinomial costs about as much as so many draws of an index.
_MULTINOMIAL_COST = 16

#: Draws that are made at once: what they take of memory is this many numbers.
_DRAWS_TOGETHER = 1_000_000

_SEED = 20_260_101
_DIGITS = 12
_NORMAL = NormalDist()

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


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
    below = 2 * (rows + z * z)
    # Rounding must not leave the range: at 0 and at 1 the bound is that number.
    low = 0.0 if passed <= 0 else (middle - spread) / below
    high = 1.0 if passed >= rows else (middle + spread) / below
    return Interval(max(0.0, low), min(1.0, high), "wilson")


def share_interval(passed: Clusters) -> Interval:
    """Wilson's interval of a pass rate, on the effective number of rows where cases have several of them.

    N. Dean and M. Pagano, "Evaluating confidence interval methods for binomial proportions in clustered surveys",
    Journal of Survey Statistics and Methodology 3 (2015): the rows count for as many independent ones as would give
    the variance between the clusters. That is at least one per case, and at most every row.
    """
    rows, share = float(passed.rows.sum()), passed.mean
    effective = rows
    if len(passed) < rows:
        variance = standard_error(passed) ** 2
        effective = share * (1 - share) / variance if variance > 0 else float(len(passed))
        effective = min(max(effective, float(len(passed))), rows)
    return wilson(share * effective, effective)


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
    kinds, weights = _kinds(clusters)
    if len(kinds) < 2:
        return None
    together = _MULTINOMIAL_COST * len(kinds) < len(clusters)
    resamples = min(MOST_RESAMPLES, MOST_DRAWS // min(_MULTINOMIAL_COST * len(kinds), len(clusters)))
    if resamples < FEWEST_RESAMPLES:
        reach = _NORMAL.inv_cdf(0.5 + CONFIDENCE / 2) * standard_error(clusters)
        return Interval(clusters.mean - reach, clusters.mean + reach, "normal")
    draw = _drawn_together if together else _drawn_singly
    low, high = _bca(draw(kinds, weights, resamples), clusters.mean, _jackknife(kinds, clusters), weights)
    return Interval(low, high, "bootstrap")


def _kinds(clusters: Clusters) -> tuple[Floats, Counts]:
    """Which cases there are, as pairs of their sum and their rows, and how many of each."""
    if np.all(clusters.rows == 1):
        sums, weights = np.unique(clusters.sums, return_counts=True)
        return np.column_stack((sums, np.ones(len(sums)))), weights
    # As complex numbers, because pairs sort fast that way.
    alike, weights = np.unique(clusters.sums + 1j * clusters.rows, return_counts=True)
    return np.column_stack((alike.real, alike.imag)), weights


def _drawn_together(kinds: Floats, weights: Counts, resamples: int) -> Floats:
    """The means of so many samples of as many cases, drawn by how many there are of each kind."""
    random, count = np.random.default_rng(_SEED), int(weights.sum())
    totals = random.multinomial(count, weights / count, size=resamples) @ kinds
    means: Floats = totals[:, 0] / totals[:, 1]
    return means


def _drawn_singly(kinds: Floats, weights: Counts, resamples: int) -> Floats:
    """The same, each case drawn by itself: the better way where few are alike."""
    random, cases = np.random.default_rng(_SEED), np.repeat(kinds, weights, axis=0)
    sums, rows = np.ascontiguousarray(cases[:, 0]), np.ascontiguousarray(cases[:, 1])
    means, batch = [], max(1, _DRAWS_TOGETHER // len(cases))
    for begun in range(0, resamples, batch):
        chosen = random.integers(0, len(cases), size=(min(batch, resamples - begun), len(cases)))
        means.append(sums[chosen].sum(axis=1) / rows[chosen].sum(axis=1))
    return np.concatenate(means)


def _jackknife(kinds: Floats, clusters: Clusters) -> Floats:
    """The mean without one case, for a case of each kind."""
    left_out: Floats = (clusters.sums.sum() - kinds[:, 0]) / (clusters.rows.sum() - kinds[:, 1])
    return left_out


def _bca(drawn: Floats, mean: float, left_out: Floats, weights: Counts) -> tuple[float, float]:
    """The bias-corrected and accelerated bounds.

    B. Efron and R. J. Tibshirani, "An Introduction to the Bootstrap" (1993), §14.3; samples that hit the mean itself
    count by half on either side, as scores of few values often do.
    """
    # Rounded, or the last binary digit would tell a mean from the same numbers added up in another order.
    drawn, mean = np.round(drawn, _DIGITS), round(mean, _DIGITS)
    below = (np.count_nonzero(drawn < mean) + np.count_nonzero(drawn <= mean)) / (2 * len(drawn))
    tails = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    if not 0 < below < 1:
        low, high = np.quantile(drawn, tails)
        return float(low), float(high)
    bias = _NORMAL.inv_cdf(below)
    away = np.average(left_out, weights=weights) - left_out
    spread = float(weights @ away**2)
    acceleration = float(weights @ away**3) / (6 * spread**1.5) if spread else 0.0

    def shifted(tail: float) -> float:
        z = bias + _NORMAL.inv_cdf(tail)
        return _NORMAL.cdf(bias + z / (1 - acceleration * z))

    low, high = np.quantile(drawn, [shifted(tail) for tail in tails])
    return float(low), float(high)

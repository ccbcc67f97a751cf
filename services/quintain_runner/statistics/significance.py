"""Tests of paired differences, and the confidence intervals that these tests give: an interval excludes 0 where its
test rejects 0, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist
from typing import Final, Literal

from quintain.contracts.message import Message
from quintain_runner.statistics.arrays import np
from quintain_runner.statistics.inference import (
    MAX_DRAWS,
    MAX_RESAMPLES,
    Clusters,
    Floats,
    Interval,
    MeanEstimate,
    mean_estimate,
)

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


class Difference(Message):
    """The mean difference of one measure between two targets (first minus second), on the cases that both answered.

    ``base`` is the second target's mean on these cases. ``better`` and ``worse`` count the cases on which the first is
    higher and lower. ``p`` is the two-sided p-value, ``adjusted_p`` is Holm's adjustment for all differences of this
    measure in the same table, and ``significant`` says whether the adjusted value is below `SIGNIFICANCE_LEVEL`. The
    interval of ``estimate`` comes from the same test at the level of the same adjustment (see `holm_levels`), so that
    it excludes 0 exactly where the difference is significant; of one difference it is the 95 % interval. ``test`` is
    how ``p`` was found; McNemar's test is one of random signs, as which records without it are read.
    """

    estimate: MeanEstimate
    base: float
    better: int
    worse: int
    p: float
    adjusted_p: float
    significant: bool
    test: SignificanceTest = "sign_flip"


def sign_flip_test(differences: Floats) -> tuple[float, SignificanceTest]:
    """The two-sided p-value of the hypothesis that the mean of ``differences`` (one per case) is 0, and the test.

    If all nonzero differences have the same size, it is McNemar's exact test; with at most `MAX_ENUMERATED_CASES` of
    them it is the exact permutation test. With more, signs are drawn from a constant seed, and the observed pattern
    counts as one of them (B. Phipson and G. K. Smyth, "Permutation p-values should never be zero", Stat. Appl. Genet.
    Mol. Biol. 9, 2010). With too many for `MAX_DRAWS` the normal approximation of the sum is used, which for pass/fail
    is the test of V. L. Durkalski et al., "Analysis of clustered matched-pair data", Stat. Med. 22, 2003.
    """
    nonzero = differences[differences != 0]
    test = _choose_test(nonzero)
    if test == "mcnemar":
        return mcnemar_p(int(np.count_nonzero(nonzero > 0)), int(np.count_nonzero(nonzero < 0))), test
    if test == "normal":
        z = abs(float(nonzero.sum())) / math.sqrt(float(np.square(nonzero).sum()))
        return 2 * NormalDist().cdf(-z), test
    observed = abs(float(nonzero.sum())) - _ROUNDING * float(np.abs(nonzero).sum())
    extreme, patterns = 0, 0
    for flipped in _flipped_cases(len(nonzero)):
        sums = float(nonzero.sum()) - 2.0 * (flipped @ nonzero)
        extreme, patterns = extreme + int(np.count_nonzero(np.abs(sums) >= observed)), patterns + len(flipped)
    return extreme / patterns, test


def _choose_test(nonzero: Floats) -> SignificanceTest:
    """The test for these differences, none of which is 0."""
    sizes = np.abs(nonzero)
    if not len(sizes) or sizes.max() - sizes.min() <= _ROUNDING * sizes.max():
        return "mcnemar"
    is_large = len(sizes) > MAX_ENUMERATED_CASES and len(sizes) * MAX_RESAMPLES > MAX_DRAWS
    return "normal" if is_large else "sign_flip"


def _flipped_cases(cases: int) -> Iterator[Floats]:
    """Iterate over batches of sign patterns, of shape (patterns, cases): 1 where the sign of a case is turned.

    All patterns, or the observed one, which turns none, and `MAX_RESAMPLES` random ones.
    """
    if cases <= MAX_ENUMERATED_CASES:
        yield ((np.arange(1 << cases)[:, None] >> np.arange(cases)) & 1).astype(np.float64)
        return
    yield np.zeros((1, cases))
    random, left = np.random.default_rng(_SIGN_SEED), MAX_RESAMPLES
    while left:
        batch = min(left, max(1, _SIGNS_PER_BATCH // cases))
        yield 1.0 - random.integers(0, 2, size=(batch, cases), dtype=np.int8).astype(np.float64)
        left -= batch


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


def holm_levels(p_values: Sequence[float]) -> list[float]:
    """The level that Holm's procedure compares each p-value with: 0.05, divided by the hypotheses that are left.

    The procedure ends at the first p-value that is not below its level; the later ones have that level too. So a
    p-value is below its level exactly where its adjusted one (see `holm`) is below 0.05, and an interval of this level
    never contradicts it.
    """
    levels, left = [SIGNIFICANCE_LEVEL] * len(p_values), len(p_values)
    for index in sorted(range(len(p_values)), key=p_values.__getitem__):
        levels[index] = SIGNIFICANCE_LEVEL / left
        if p_values[index] * left < SIGNIFICANCE_LEVEL:
            left -= 1
    return levels


def paired_interval(differences: Clusters, level: float = SIGNIFICANCE_LEVEL, *, limit: float = 1.0) -> Interval:
    """The confidence interval of a mean difference, with confidence 1 - ``level``.

    It contains the values that `sign_flip_test` does not reject at this level, so that it excludes 0 exactly where the
    p-value is below ``level``. No row's difference is larger than ``limit``, which bounds the interval of few cases.
    """
    nonzero = differences.sums[differences.sums != 0]
    test = _choose_test(nonzero)
    if test == "mcnemar":
        return _exact_interval(differences, nonzero, level, limit)
    low, high = (_normal_bounds if test == "normal" else _sign_flip_bounds)(differences, level)
    return Interval(max(-limit, low), min(limit, high), test)


def _normal_bounds(differences: Clusters, level: float) -> tuple[float, float]:
    """The means d for which the sum of (difference - d * rows) is no further from 0 than the normal law allows.

    The two bounds are the roots of a quadratic equation, as of every score interval.
    """
    sums, rows = differences.sums, differences.rows
    z_squared = NormalDist().inv_cdf(level / 2) ** 2
    total, size = float(sums.sum()), float(rows.sum())
    a = size**2 - z_squared * float(np.square(rows).sum())
    half_b = total * size - z_squared * float((sums * rows).sum())
    c = total**2 - z_squared * float(np.square(sums).sum())
    root = math.sqrt(max(0.0, half_b**2 - a * c))
    return (half_b - root) / a, (half_b + root) / a


def _sign_flip_bounds(differences: Clusters, level: float) -> tuple[float, float]:
    """The bounds of the mean by the sign-flip test.

    Turning the signs of some cases makes the sum of (difference - d * rows) no smaller exactly where the mean of these
    cases is at most d. So the p-value of d is twice the share of subsets of cases whose mean is at most d, and the
    bounds are quantiles of the means of subsets. The subsets of differing cases are those of the test; of the cases
    without a difference a random half is in each. Source: J. A. Hartigan, "Using subsample values as typical values",
    JASA 64 (1969).
    """
    is_zero = differences.sums == 0
    sums, rows = differences.sums[~is_zero], differences.rows[~is_zero]
    zero_rows, zero_cases = np.unique(differences.rows[is_zero], return_counts=True)
    all_zero_rows = float(differences.rows[is_zero].sum())
    tolerance = _ROUNDING * float(np.abs(sums).sum()) / 2
    random, repeats, lows, highs = np.random.default_rng(_SIGN_SEED), 1, list[Floats](), list[Floats]()
    if all_zero_rows and len(sums) <= MAX_ENUMERATED_CASES:
        repeats = -(-MAX_RESAMPLES >> len(sums))
    for _ in range(repeats):
        for flipped in _flipped_cases(len(sums)):
            chosen_zero_rows = random.binomial(zero_cases, 0.5, size=(len(flipped), len(zero_cases))) @ zero_rows
            for chosen, extra in ((flipped, chosen_zero_rows), (1.0 - flipped, all_zero_rows - chosen_zero_rows)):
                of_subset, size = chosen @ sums, chosen @ rows + extra
                of_subset[np.abs(of_subset) <= tolerance] = 0.0
                means = np.divide(of_subset, size, out=np.full(len(size), np.nan), where=size > 0)
                # No mean is smaller than that of no case, and none is larger: it supports every value.
                lows.append(np.nan_to_num(means, nan=-math.inf))
                highs.append(np.nan_to_num(means, nan=math.inf))
    means_up, means_down = np.sort(np.concatenate(lows)), np.sort(np.concatenate(highs))[::-1]
    place = max(0, math.ceil(level / 2 * len(means_up) * (1 - _ROUNDING)) - 1)
    return float(means_up[place]), float(means_down[place])


def _exact_interval(differences: Clusters, nonzero: Floats, level: float, limit: float) -> Interval:
    """The interval of McNemar's exact test, for differences of one size, scaled to that size."""
    better, worse = int(np.count_nonzero(nonzero > 0)), int(np.count_nonzero(nonzero < 0))
    rows = float(differences.rows.sum())
    size = float(np.abs(nonzero).max()) if len(nonzero) else limit * float(differences.rows.max())
    scale = size * len(differences) / rows
    low = _melded_bound(better, worse, len(differences), level / 2)
    high = -_melded_bound(worse, better, len(differences), level / 2)
    if mcnemar_p(better, worse) < level:  # rounding moves no bound across 0
        low, high = (max(low, math.ulp(0.0)), high) if better > worse else (low, min(high, -math.ulp(0.0)))
    else:
        low, high = min(low, 0.0), max(high, 0.0)
    return Interval(max(-limit, low * scale), min(limit, high * scale), "exact")


def _melded_bound(better: int, worse: int, cases: int, tail: float) -> float:
    """The lower bound of the share of better cases less that of worse ones, with probability ``tail`` beyond it.

    It melds the confidence distributions of the share of differing cases and of the share of better ones among these,
    both Clopper and Pearson's. Source: M. P. Fay and K. Lumbard, "Confidence intervals for difference in proportions
    for matched pairs compatible with exact McNemar's or sign tests", Statistics in Medicine 40 (2021).
    """
    differing = better + worse
    share_better = _beta_distribution(better, worse + 1)
    few, many = (
        _beta_grid(differing, cases - differing + 1),
        _beta_grid(differing + 1, cases - differing),
    )

    def probability_below(bound: float) -> float:
        shares, weights = few if bound > 0 else many
        with np.errstate(divide="ignore"):
            return float(weights @ share_better((1.0 + bound / shares) / 2))

    low, high = -1.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if probability_below(middle) < tail else (low, middle)
    return high


def _beta_grid(a: int, b: int) -> tuple[Floats, Floats]:
    """Points of a beta distribution and their weights; with a parameter of 0 all of it is at 0 or at 1."""
    if a == 0 or b == 0:
        return np.array([float(b == 0)]), np.ones(1)
    mean = a / (a + b)
    reach = 12 * math.sqrt(mean * (1 - mean) / (a + b + 1))
    points = np.linspace(max(0.0, mean - reach), min(1.0, mean + reach), 4_001)
    points = (points[1:] + points[:-1]) / 2
    logarithms = (a - 1) * np.log(points) + (b - 1) * np.log1p(-points)
    weights = np.exp(logarithms - logarithms.max())
    return points, weights / weights.sum()


def _beta_distribution(a: int, b: int) -> Callable[[Floats], Floats]:
    """The distribution function of a beta distribution."""
    points, weights = _beta_grid(a, b)
    if len(points) == 1:
        return lambda values: (values >= points[0]).astype(np.float64)
    edges = np.concatenate(([2 * points[0] - points[1]], points)) + (points[1] - points[0]) / 2
    cumulated = np.concatenate(([0.0], np.cumsum(weights)))
    return lambda values: np.interp(values, edges, cumulated)


def differences_of(compared: Sequence[tuple[Clusters, float]], *, limit: float = 1.0) -> list[Difference]:
    """The differences whose values by case these are, each with the second mean, adjusted by Holm's method.

    ``limit`` is as in `paired_interval`.
    """
    tests = [sign_flip_test(clusters.sums) for clusters, _ in compared]
    p_values = [p for p, _ in tests]
    return [
        Difference(
            estimate=mean_estimate(clusters, paired_interval(clusters, level, limit=limit)),
            base=base,
            better=int(np.count_nonzero(clusters.sums > 0)),
            worse=int(np.count_nonzero(clusters.sums < 0)),
            p=p,
            adjusted_p=adjusted,
            significant=adjusted < SIGNIFICANCE_LEVEL,
            test=test,
        )
        for (clusters, base), (p, test), adjusted, level in zip(
            compared, tests, holm(p_values), holm_levels(p_values), strict=True
        )
    ]

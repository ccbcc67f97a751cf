"""p-values of the difference between two targets on the cases that both answered. No I/O.

Pass/fail and scores use the same sign-flip permutation test: if the targets were equal, the difference of each case
could have had the opposite sign. R. A. Fisher, "The Design of Experiments" (1935), §21; recommended for evaluations by
R. Dror et al., "The hitchhiker's guide to testing statistical significance in NLP", ACL 2018. For pass/fail without
repeats it equals McNemar's exact test. Unlike Wilcoxon's test it tests the mean difference, which the tables show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import numpy as np

from quintain_runner.statistics.intervals import MAX_DRAWS, MAX_RESAMPLES, Floats

#: Up to this many differing cases all 2**n sign patterns are enumerated, so the p-value is exact.
MAX_ENUMERATED_CASES: Final = 16

#: A difference with an adjusted p-value below this is called significant.
SIGNIFICANCE_LEVEL: Final = 0.05

_SEED = 20_260_102

#: The relative difference below which two sums are considered equal: rounding of another order of additions.
_ROUNDING = 1e-9

#: The number of signs drawn in one NumPy call, which bounds the memory in use.
_SIGNS_PER_BATCH = 4_000_000


def sign_flip_p_value(differences: Floats) -> float:
    """The two-sided p-value of the hypothesis that the mean of ``differences`` (one per case) is 0.

    If all nonzero differences have the same size, it is McNemar's exact test; with at most `MAX_ENUMERATED_CASES` of
    them it is the exact permutation test. With more, signs are drawn from a constant seed, and the observed pattern
    counts as one of them (B. Phipson and G. K. Smyth, "Permutation p-values should never be zero", Stat. Appl. Genet.
    Mol. Biol. 9, 2010). With too many for `MAX_DRAWS` the normal approximation of the sum is used, which for pass/fail
    is the test of V. L. Durkalski et al., "Analysis of clustered matched-pair data", Stat. Med. 22, 2003.
    """
    nonzero = differences[differences != 0]
    if not len(nonzero):
        return 1.0
    sizes = np.abs(nonzero)
    if sizes.max() - sizes.min() <= _ROUNDING * sizes.max():
        return mcnemar_p(int(np.count_nonzero(nonzero > 0)), int(np.count_nonzero(nonzero < 0)))
    if len(sizes) <= MAX_ENUMERATED_CASES:
        patterns = (np.arange(1 << len(sizes))[:, None] >> np.arange(len(sizes))) & 1
        return float(np.mean(_at_least_as_extreme((2 * patterns - 1) @ sizes, nonzero)))
    if len(sizes) * MAX_RESAMPLES > MAX_DRAWS:
        z = abs(float(nonzero.sum())) / math.sqrt(float(np.square(nonzero).sum()))
        return 2 * NormalDist().cdf(-z)
    return _sampled_p_value(nonzero, sizes)


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
    random, extreme_count, left = np.random.default_rng(_SEED), 0, MAX_RESAMPLES
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

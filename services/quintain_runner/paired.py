"""Whether two answerers differ on the cases that both answered: p-values. Pure.

One test serves pass/fail and scores: were the two alike, each case's difference could as well have had the other
sign, whatever its repeats have in common. R. A. Fisher, "The Design of Experiments" (1935), §21; recommended for
evaluations by R. Dror et al., "The hitchhiker's guide to testing statistical significance in NLP", ACL 2018. For
pass/fail asked once it is McNemar's test in its exact form. Unlike Wilcoxon's it looks at the differences themselves,
so that it tests what the table shows: their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import numpy as np

from quintain_runner.intervals import MOST_DRAWS, MOST_RESAMPLES, Floats

#: Up to so many differing cases every pattern of signs is looked at: two to their number.
MOST_ENUMERATED: Final = 16

#: Beneath it a difference is called significant.
SIGNIFICANT: Final = 0.05

_SEED = 20_260_102

#: Sums this close are the same sum, added up in another order.
_ROUNDING = 1e-9

#: Signs that are drawn at once.
_SIGNS_TOGETHER = 4_000_000


def sign_flip_p(differences: Floats) -> float:
    """The two-sided p-value that the cases' differences, one number each, have the mean 0.

    Exact where all differing cases differ by the same, and where they are few; else by seeded random signs, counting
    the observed pattern as one of them (B. Phipson and G. K. Smyth, "Permutation p-values should never be zero",
    Stat. Appl. Genet. Mol. Biol. 9, 2010); where they are very many by the normal law that the sum then follows, which
    for pass/fail is V. L. Durkalski et al., "Analysis of clustered matched-pair data", Stat. Med. 22, 2003.
    """
    differing = differences[differences != 0]
    if not len(differing):
        return 1.0
    sizes = np.abs(differing)
    if sizes.max() - sizes.min() <= _ROUNDING * sizes.max():
        return mcnemar_p(int(np.count_nonzero(differing > 0)), int(np.count_nonzero(differing < 0)))
    if len(sizes) <= MOST_ENUMERATED:
        patterns = (np.arange(1 << len(sizes))[:, None] >> np.arange(len(sizes))) & 1
        return float(np.mean(_as_far((2 * patterns - 1) @ sizes, differing)))
    if len(sizes) * MOST_RESAMPLES > MOST_DRAWS:
        z = abs(float(differing.sum())) / math.sqrt(float(np.square(differing).sum()))
        return 2 * NormalDist().cdf(-z)
    return _drawn_p(differing, sizes)


def mcnemar_p(better: int, worse: int) -> float:
    """The exact two-sided p-value for so many cases that only the one, and only the other got right.

    Q. McNemar, "Note on the sampling error of the difference between correlated proportions", Psychometrika 12 (1947);
    twice the smaller tail of the binomial distribution, 1 at most.
    """
    count, fewer = better + worse, min(better, worse)
    if 2 * fewer >= count - 1:
        return 1.0
    ways = (
        math.lgamma(count + 1) - math.lgamma(i + 1) - math.lgamma(count - i + 1) - count * math.log(2)
        for i in range(fewer + 1)
    )
    return min(1.0, 2 * math.fsum(math.exp(way) for way in ways))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted for being several, in their order.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979).
    """
    adjusted, highest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = highest
    return adjusted


def _drawn_p(differing: Floats, sizes: Floats) -> float:
    random, as_far, left = np.random.default_rng(_SEED), 0, MOST_RESAMPLES
    while left:
        batch = min(left, max(1, _SIGNS_TOGETHER // len(sizes)))
        signs = random.integers(0, 2, size=(batch, len(sizes)), dtype=np.int8)
        as_far += int(np.count_nonzero(_as_far((2.0 * signs - 1.0) @ sizes, differing)))
        left -= batch
    return (as_far + 1) / (MOST_RESAMPLES + 1)


def _as_far(sums: Floats, differing: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Which of the sums are as far from 0 as the one that was seen."""
    seen = abs(float(differing.sum()))
    return np.abs(sums) >= seen - _ROUNDING * float(np.abs(differing).sum())

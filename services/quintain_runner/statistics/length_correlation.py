"""Whether longer answers to the same case get higher scores: a rank correlation within cases. No I/O."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from quintain.contracts.message import Message
from quintain_runner.statistics.inference import Floats, Interval, bootstrap_interval


class RankCorrelation(Message):
    """A rank correlation within cases, from -1 to 1, of ``rows`` answers to ``cases`` that have several.

    ``interval`` is by a bootstrap over cases; None where there is only one, or all are alike.
    """

    value: float
    cases: int
    rows: int
    interval: Interval | None = None


def rank_correlation(cases: npt.NDArray[np.uint64], first: Floats, second: Floats) -> RankCorrelation | None:
    """Spearman's rank correlation of two values of rows, within the cases: the rows of one case are ranked by
    themselves, so that what differs between cases has no part in it.

    ``cases`` are the hashes of the rows' cases; rows in which a value is NaN are left out. None where no case has rows
    that differ in both. It is Pearson's correlation of the rows' ranks, less the mean rank of their case; equal values
    share the mean of their ranks. Sources: C. Spearman, "The proof and measurement of association between two things",
    American Journal of Psychology 15 (1904); for ranks within blocks, D. Quade, "Rank analysis of covariance", JASA 62
    (1967), and S. Tu, C. Li and B. E. Shepherd, "Between- and within-cluster Spearman rank correlations", Statistics in
    Medicine 44 (2025).
    """
    counted = ~(np.isnan(first) | np.isnan(second))
    if not counted.any():
        return None
    _, index, sizes = np.unique(cases[counted], return_inverse=True, return_counts=True)
    one, other = (_centered_ranks(index, sizes, values[counted]) for values in (first, second))
    sums = [np.bincount(index, weights=each) for each in (one * other, one * one, other * other)]
    products: Floats = np.column_stack(sums)[sizes > 1].astype(np.float64)
    value = _correlation(products.sum(axis=0, keepdims=True))[0] if len(products) else math.nan
    if math.isnan(value):
        return None
    several = sizes[sizes > 1]
    return RankCorrelation(
        value=float(value),
        cases=len(several),
        rows=int(several.sum()),
        interval=bootstrap_interval(products, _correlation),
    )


def _centered_ranks(index: npt.NDArray[np.intp], sizes: npt.NDArray[np.intp], values: Floats) -> Floats:
    """The rank of each value among those of its case, less their mean rank; equal values share their mean rank."""
    order = np.lexsort((values, index))
    ordered_index, ordered = index[order], values[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (ordered_index[1:] != ordered_index[:-1]) | (ordered[1:] != ordered[:-1])
    tie = np.cumsum(begins) - 1
    positions = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[ordered_index] + 1.0
    shared = np.bincount(tie, weights=positions) / np.bincount(tie)
    ranks = np.empty(len(order))
    ranks[order] = shared[tie] - (sizes[ordered_index] + 1) / 2
    return ranks


def _correlation(products: Floats) -> Floats:
    """The correlation of each row of sums: of the products, and of both squares."""
    scale = np.sqrt(products[:, 1] * products[:, 2])
    values: Floats = np.divide(products[:, 0], scale, out=np.full(len(scale), np.nan), where=scale > 0)
    # Rounding must not lead out of [-1, 1].
    return values.clip(-1, 1)

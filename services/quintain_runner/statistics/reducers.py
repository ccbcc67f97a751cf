"""Reduces the repeats of each case to one value: mean, median, majority, pass@k and pass^k. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quintain_runner.spec.grader_options import required_repeats
from quintain_runner.statistics.inference import Clusters, Floats


@dataclass(frozen=True, slots=True, eq=False)
class ReducedCases:
    """One value for each case. ``left_out`` counts the cases with fewer graded repeats than the reducer needs."""

    values: Clusters
    left_out: int = 0


def reduce_cases(reducer: str, cases: npt.NDArray[np.uint64], scores: Floats, passes: Floats) -> ReducedCases:
    """Reduce graded rows, given by the hash of their case, their score and their pass (1 or 0), to a value per case."""
    _, index, counts = np.unique(cases, return_inverse=True, return_counts=True)
    passed = np.bincount(index, weights=passes, minlength=len(counts)).astype(np.int64)
    k = required_repeats(reducer)
    enough = counts >= k
    if reducer == "mean":
        values = np.bincount(index, weights=scores, minlength=len(counts)) / counts
    elif reducer == "median":
        values = _medians(index, scores, counts)
    elif reducer == "majority":
        values = (2 * passed > counts).astype(np.float64)
    else:
        estimate = pass_at_k if "@" in reducer else pass_hat_k
        pairs = zip(counts[enough], passed[enough], strict=True)
        values = np.array([estimate(int(count), int(good), k) for count, good in pairs], dtype=np.float64)
        return ReducedCases(Clusters(values, np.ones(len(values))), int(np.count_nonzero(~enough)))
    return ReducedCases(Clusters(values, np.ones(len(values))))


def pass_at_k(count: int, passed: int, k: int) -> float:
    """The probability that at least one of ``k`` answers passes, if ``passed`` of ``count`` did; unbiased.

    It is 1 - C(n - c, k) / C(n, k). Source: M. Chen et al., "Evaluating large language models trained on code",
    arXiv:2107.03374 (2021), §2.1.
    """
    return 1.0 - math.comb(count - passed, k) / math.comb(count, k)


def pass_hat_k(count: int, passed: int, k: int) -> float:
    """The probability that all of ``k`` answers pass, if ``passed`` of ``count`` did; unbiased.

    It is C(c, k) / C(n, k). Source: S. Yao et al., "τ-bench: a benchmark for tool-agent-user interaction in real-world
    domains", arXiv:2406.12045 (2024), §3.
    """
    return math.comb(passed, k) / math.comb(count, k)


def _medians(index: npt.NDArray[np.intp], scores: Floats, counts: npt.NDArray[np.intp]) -> Floats:
    """The median of each case: of an even number of scores, the mean of the middle two."""
    ordered = scores[np.lexsort((scores, index))]
    starts = np.cumsum(counts) - counts
    medians: Floats = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2
    return medians

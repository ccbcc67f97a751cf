"""The scores and passes of a run as NumPy arrays: 25 bytes for each row and 9 for each grader on it. No I/O.

A case is held as the hash of its id, so that a run of a million rows fits in memory.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from quintain_runner.results.fingerprint import fingerprint
from quintain_runner.results.row import Row, RowStatus
from quintain_runner.statistics.intervals import Clusters, Floats

#: 64 of a fingerprint's bits: two of a million cases are taken for one with a probability below 1 in 10⁷.
_HASH_MASK = (1 << 64) - 1

#: From one repeat's name to the next: odd and wide, so that no two trials meet (Knuth's multiplier of 64 bits).
_REPEAT_STRIDE = 0x9E3779B97F4A7C15

#: Sums are rounded here, so that the order in which they were added up makes no case another.
_ROUND_DIGITS = 12

Hashes = npt.NDArray[np.uint64]


class Measure(NamedTuple):
    """What is measured: the score or the pass of one grader, or, without a grader, of the row."""

    kind: Literal["score", "pass"]
    grader: str | None = None


ROW_SCORE, ROW_PASS = Measure("score"), Measure("pass")


@dataclass(frozen=True, slots=True, eq=False)
class TargetFrame:
    """One target's rows: one entry per case and repeat, each trial with a name of its own.

    Of a measure there is a number per trial; where there is none, as on rows that erred, it is not a number, or, for a
    pass, which takes a byte, below zero.
    """

    trial_hashes: Hashes
    case_hashes: Hashes
    values_by_measure: dict[Measure, npt.NDArray[np.float64 | np.int8]]

    def values(self, measure: Measure) -> Floats:
        """A number per trial; not a number where there is none."""
        values = self.values_by_measure.get(measure)
        if values is None:
            return np.full(len(self.trial_hashes), math.nan)
        return np.where(values < 0, math.nan, values)

    def clusters(self, measure: Measure) -> Clusters:
        """This measure by case, of the trials that have it."""
        values = self.values(measure)
        has_value = ~np.isnan(values)
        return _clusters_by_case(self.case_hashes[has_value], values[has_value])

    def grader_names(self) -> list[str]:
        """The graders that looked at this target."""
        return list(dict.fromkeys(measure.grader for measure in self.values_by_measure if measure.grader is not None))


@dataclass(frozen=True, slots=True, eq=False)
class PairedDifferences:
    """Two columns on the trials of both: by how much the first is above the second, by case.

    ``base`` is the second's own value by case, and ``differing_trials`` names those whose values differ.
    """

    differences: Clusters
    base: Clusters
    differing_trials: Hashes


def pair_frames(first: TargetFrame, second: TargetFrame, measure: Measure) -> PairedDifferences:
    """The trials that both have a value of, and how they differ."""
    _, first_indices, second_indices = np.intersect1d(
        first.trial_hashes, second.trial_hashes, assume_unique=True, return_indices=True
    )
    base = second.values(measure)[second_indices]
    differences = first.values(measure)[first_indices] - base
    has_value = ~np.isnan(differences)
    differing = has_value & (np.abs(differences) > 10.0**-_ROUND_DIGITS)
    case_hashes = first.case_hashes[first_indices][has_value]
    return PairedDifferences(
        _clusters_by_case(case_hashes, differences[has_value]),
        _clusters_by_case(case_hashes, base[has_value]),
        first.trial_hashes[first_indices][differing],
    )


def trial_hash(case_id: str, repeat: int) -> int:
    """The name of a case's repeat, whatever the target."""
    return _combined_hash(_case_hash(case_id), repeat)


def build_frames(
    rows: Iterable[Row], targets: Collection[str], *, repeats: int | None = None
) -> dict[str, TargetFrame]:
    """A column for each of these targets, of the rows that count, up to this repeat."""
    builders = {target: _FrameBuilder() for target in targets}
    for row in rows:
        if row.target in builders and (repeats is None or row.repeat <= repeats):
            builders[row.target].add(row)
    return {target: builder.build() for target, builder in builders.items()}


class _MeasureBuilder:
    """Scores and passes, a number and a byte per row."""

    def __init__(self, preceding_rows: int = 0) -> None:
        self._scores, self._passes = array("d", [math.nan]) * preceding_rows, array("b", [-1]) * preceding_rows

    def add(self, score: float | None, *, passed: bool) -> None:
        self._scores.append(math.nan if score is None else score)
        self._passes.append(-1 if score is None else passed)

    def arrays(self, grader: str | None) -> dict[Measure, npt.NDArray[np.float64 | np.int8]]:
        return {
            Measure("score", grader): np.frombuffer(self._scores, dtype=np.float64),
            Measure("pass", grader): np.frombuffer(self._passes, dtype=np.int8),
        }


class _FrameBuilder:
    def __init__(self) -> None:
        self._trials, self._cases = array("Q"), array("Q")
        self._row_measures, self._grader_measures = _MeasureBuilder(), dict[str, _MeasureBuilder]()

    def add(self, row: Row) -> None:
        for name in row.graders:
            if name not in self._grader_measures:
                self._grader_measures[name] = _MeasureBuilder(len(self._trials))
        case = _case_hash(row.case_id)
        self._cases.append(case)
        self._trials.append(_combined_hash(case, row.repeat))
        graded = row.status is RowStatus.GRADED
        self._row_measures.add(row.score if graded else None, passed=row.passed)
        for name, measures in self._grader_measures.items():
            grader = row.graders.get(name) if graded else None
            measures.add(None if grader is None else grader.score, passed=grader is not None and bool(grader.passed))

    def build(self) -> TargetFrame:
        """The rows that count: of a trial with several the first graded one, or else the last."""
        trials = np.frombuffer(self._trials, dtype=np.uint64)
        cases = np.frombuffer(self._cases, dtype=np.uint64)
        values_by_measure = self._row_measures.arrays(None)
        for name, measures in self._grader_measures.items():
            values_by_measure.update(measures.arrays(name))
        if not _has_duplicates(trials):
            # As most are: what counts is everything, and nothing is copied.
            return TargetFrame(trials, cases, values_by_measure)
        positions, ungraded = np.arange(len(trials)), np.isnan(values_by_measure[ROW_SCORE])
        order = np.lexsort((np.where(ungraded, -positions, positions), ungraded, trials))
        first = np.ones(len(order), dtype=bool)
        first[1:] = trials[order][1:] != trials[order][:-1]
        chosen = order[first]
        return TargetFrame(
            trials[chosen], cases[chosen], {measure: values[chosen] for measure, values in values_by_measure.items()}
        )


def _case_hash(case_id: str) -> int:
    return fingerprint(case_id) & _HASH_MASK


def _combined_hash(case: int, repeat: int) -> int:
    return (case + repeat * _REPEAT_STRIDE) & _HASH_MASK


def _clusters_by_case(cases: Hashes, values: Floats) -> Clusters:
    if not _has_duplicates(cases):
        return Clusters(np.round(values, _ROUND_DIGITS), np.ones(len(values)))
    _, index = np.unique(cases, return_inverse=True)
    return Clusters(np.round(np.bincount(index, weights=values), _ROUND_DIGITS), np.bincount(index).astype(np.float64))


def _has_duplicates(names: Hashes) -> bool:
    ordered = np.sort(names)
    return bool(np.any(ordered[1:] == ordered[:-1]))

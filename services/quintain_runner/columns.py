"""What the rows of a run measured, as columns of numbers: 25 bytes per row, and 9 more per grader. Pure.

The runs of a million rows go through here, so what is held of a case is its fingerprint, and never a text.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from quintain_runner.fingerprint import fingerprint
from quintain_runner.intervals import Clusters, Floats
from quintain_runner.rows import Row, Status

#: 64 of a fingerprint's bits: two of a million cases are taken for one with a probability below 1 in 10⁷.
_BITS = (1 << 64) - 1

#: From one repeat's name to the next: odd and wide, so that no two trials meet (Knuth's multiplier of 64 bits).
_STRIDE = 0x9E3779B97F4A7C15

#: Sums are rounded here, so that the order in which they were added up makes no case another.
_DIGITS = 12

Names = npt.NDArray[np.uint64]


class Measure(NamedTuple):
    """What is measured: the score or the pass of one grader, or, without a grader, of the row."""

    what: Literal["score", "pass"]
    grader: str | None = None


ROW_SCORE, ROW_PASS = Measure("score"), Measure("pass")


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One target's rows: one entry per case and repeat, each trial with a name of its own.

    Of a measure there is a number per trial; where there is none, as on rows that erred, it is not a number, or, for a
    pass, which takes a byte, below zero.
    """

    trials: Names
    cases: Names
    measured: dict[Measure, npt.NDArray[np.float64 | np.int8]]

    def values(self, measure: Measure) -> Floats:
        """A number per trial; not a number where there is none."""
        values = self.measured.get(measure)
        if values is None:
            return np.full(len(self.trials), math.nan)
        return np.where(values < 0, math.nan, values)

    def clusters(self, measure: Measure) -> Clusters:
        """This measure by case, of the trials that have it."""
        values = self.values(measure)
        there = ~np.isnan(values)
        return _clustered(self.cases[there], values[there])

    def graders(self) -> list[str]:
        """The graders that looked at this target."""
        return list(dict.fromkeys(measure.grader for measure in self.measured if measure.grader is not None))


@dataclass(frozen=True, slots=True, eq=False)
class Paired:
    """Two columns on the trials of both: by how much the first is above the second, by case.

    ``base`` is the second's own value by case, and ``trials`` names those whose values differ.
    """

    clusters: Clusters
    base: Clusters
    trials: Names


def paired(first: Column, second: Column, measure: Measure) -> Paired:
    """The trials that both have a value of, and how they differ."""
    _, ours, theirs = np.intersect1d(first.trials, second.trials, assume_unique=True, return_indices=True)
    base = second.values(measure)[theirs]
    differences = first.values(measure)[ours] - base
    there = ~np.isnan(differences)
    differing = there & (np.abs(differences) > 10.0**-_DIGITS)
    cases = first.cases[ours][there]
    return Paired(_clustered(cases, differences[there]), _clustered(cases, base[there]), first.trials[ours][differing])


def trial_name(case_id: str, repeat: int) -> int:
    """The name of a case's repeat, whatever the target."""
    return _trial(_case(case_id), repeat)


def columns_of(rows: Iterable[Row], targets: Collection[str], *, repeats: int | None = None) -> dict[str, Column]:
    """A column for each of these targets, of the rows that count, up to this repeat."""
    growing = {target: _Growing() for target in targets}
    for row in rows:
        if row.target in growing and (repeats is None or row.repeat <= repeats):
            growing[row.target].add(row)
    return {target: rows_so_far.column() for target, rows_so_far in growing.items()}


class _Marks:
    """Scores and passes, a number and a byte per row."""

    def __init__(self, rows_before: int = 0) -> None:
        self._scores, self._passes = array("d", [math.nan]) * rows_before, array("b", [-1]) * rows_before

    def add(self, score: float | None, *, passed: bool) -> None:
        self._scores.append(math.nan if score is None else score)
        self._passes.append(-1 if score is None else passed)

    def columns(self, grader: str | None) -> dict[Measure, npt.NDArray[np.float64 | np.int8]]:
        return {
            Measure("score", grader): np.frombuffer(self._scores, dtype=np.float64),
            Measure("pass", grader): np.frombuffer(self._passes, dtype=np.int8),
        }


class _Growing:
    def __init__(self) -> None:
        self._trials, self._cases = array("Q"), array("Q")
        self._row, self._graders = _Marks(), dict[str, _Marks]()

    def add(self, row: Row) -> None:
        for name in row.graders:
            if name not in self._graders:
                self._graders[name] = _Marks(len(self._trials))
        case = _case(row.case_id)
        self._cases.append(case)
        self._trials.append(_trial(case, row.repeat))
        graded = row.status is Status.GRADED
        self._row.add(row.score if graded else None, passed=row.passed)
        for name, marks in self._graders.items():
            grader = row.graders.get(name) if graded else None
            marks.add(None if grader is None else grader.score, passed=grader is not None and bool(grader.passed))

    def column(self) -> Column:
        """The rows that count: of a trial with several the first graded one, or else the last."""
        trials = np.frombuffer(self._trials, dtype=np.uint64)
        cases = np.frombuffer(self._cases, dtype=np.uint64)
        measured = self._row.columns(None)
        for name, marks in self._graders.items():
            measured.update(marks.columns(name))
        if not _any_twice(trials):
            # As most are: what counts is everything, and nothing is copied.
            return Column(trials, cases, measured)
        place, ungraded = np.arange(len(trials)), np.isnan(measured[ROW_SCORE])
        order = np.lexsort((np.where(ungraded, -place, place), ungraded, trials))
        first = np.ones(len(order), dtype=bool)
        first[1:] = trials[order][1:] != trials[order][:-1]
        chosen = order[first]
        return Column(trials[chosen], cases[chosen], {measure: column[chosen] for measure, column in measured.items()})


def _case(case_id: str) -> int:
    return fingerprint(case_id) & _BITS


def _trial(case: int, repeat: int) -> int:
    return (case + repeat * _STRIDE) & _BITS


def _clustered(cases: Names, values: Floats) -> Clusters:
    if not _any_twice(cases):
        return Clusters(np.round(values, _DIGITS), np.ones(len(values)))
    _, index = np.unique(cases, return_inverse=True)
    return Clusters(np.round(np.bincount(index, weights=values), _DIGITS), np.bincount(index).astype(np.float64))


def _any_twice(names: Names) -> bool:
    ordered = np.sort(names)
    return bool(np.any(ordered[1:] == ordered[:-1]))

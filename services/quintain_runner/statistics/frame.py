"""The scores and passes of a run as NumPy arrays: 25 bytes for each row and 9 for each grader of a row. No I/O.

A case is stored as the hash of its id, so that a run of a million rows fits in memory.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from quintain_runner.results.row import Row, RowStatus
from quintain_runner.results.store import key_hash
from quintain_runner.statistics.arrays import np, npt
from quintain_runner.statistics.inference import Clusters, Floats
from quintain_runner.statistics.judge_agreement import VoteFrame, VoteTable

#: Hashes have 64 bits: the probability that two of a million cases have the same hash is below 1 in 10⁷.
_HASH_MASK = (1 << 64) - 1

#: Added to a case's hash for each repeat: odd and large, so that the hashes of two trials practically never collide
#: (Knuth's 64-bit multiplier).
_REPEAT_STRIDE = 0x9E3779B97F4A7C15

#: Sums are rounded to this many decimal places, so that the order of the additions does not make equal sums differ.
_ROUND_DIGITS = 12

Hashes: TypeAlias = "npt.NDArray[np.uint64]"


class Measure(NamedTuple):
    """A measured quantity: the score or the pass of a grader or a criterion, or of the whole row if it is None."""

    kind: Literal["score", "pass"]
    grader: str | None = None


Measures: TypeAlias = "dict[Measure, npt.NDArray[np.float64 | np.int8]]"


#: The most tags of one field that are counted apart; the rows of all others are counted together as `OTHER_TAGS`.
MAX_TAGS = 100
OTHER_TAGS = "(others)"

ROW_SCORE, ROW_PASS = Measure("score"), Measure("pass")


@dataclass(frozen=True, slots=True, eq=False)
class TargetFrame:
    """The rows of one target as arrays with one entry per trial (case and repeat).

    ``trial_hashes`` and ``case_hashes`` (uint64) identify the trial and its case. ``values_by_measure`` has one array
    per measure; where a trial has no value, as in error rows, it holds NaN for a score (float64) and -1 for a pass
    (int8). ``judges`` are the graders that asked a judge, and of ``self_judged`` ones that was this target.
    """

    trial_hashes: Hashes
    case_hashes: Hashes
    values_by_measure: Measures
    judges: frozenset[str] = frozenset()
    self_judged: frozenset[str] = frozenset()

    def values(self, measure: Measure) -> Floats:
        """The values of a measure, one per trial, as float64; NaN where a trial has no value."""
        values = self.values_by_measure.get(measure)
        if values is None:
            return np.full(len(self.trial_hashes), math.nan)
        return np.where(values < 0, math.nan, values)

    def clusters(self, measure: Measure) -> Clusters:
        """The values of a measure, grouped by case; trials without a value are left out."""
        values = self.values(measure)
        has_value = ~np.isnan(values)
        return clusters_by_case(self.case_hashes[has_value], values[has_value])

    def grader_names(self) -> list[str]:
        """The names of the graders with a result on any row of this target, and of the criteria of their rubrics, in
        the order of their first row."""
        return list(dict.fromkeys(measure.grader for measure in self.values_by_measure if measure.grader is not None))


@dataclass(frozen=True, slots=True, eq=False)
class PairedDifferences:
    """The differences of a measure between two frames, on the trials that both have a value for.

    ``differences`` (first minus second) and ``base`` (the second's values) are grouped by case. ``differing_trials``
    holds the hashes of the trials whose values differ.
    """

    differences: Clusters
    base: Clusters
    differing_trials: Hashes


def pair_frames(first: TargetFrame, second: TargetFrame, measure: Measure) -> PairedDifferences:
    """Pair the trials that both frames have a value of ``measure`` for."""
    _, first_indices, second_indices = np.intersect1d(
        first.trial_hashes, second.trial_hashes, assume_unique=True, return_indices=True
    )
    base = second.values(measure)[second_indices]
    differences = first.values(measure)[first_indices] - base
    has_value = ~np.isnan(differences)
    differing = has_value & (np.abs(differences) > 10.0**-_ROUND_DIGITS)
    case_hashes = first.case_hashes[first_indices][has_value]
    return PairedDifferences(
        clusters_by_case(case_hashes, differences[has_value]),
        clusters_by_case(case_hashes, base[has_value]),
        first.trial_hashes[first_indices][differing],
    )


def trial_hash(case_id: str, repeat: int) -> int:
    """The 64-bit hash of a case and repeat; it does not depend on the target."""
    return _combined_hash(case_hash(case_id), repeat)


#: Frames by field, tag and column.
FramesByTag = dict[str, dict[str, dict[str, TargetFrame]]]


@dataclass(frozen=True, slots=True, eq=False)
class TaggedFrames:
    """The frame of each column, those of the rows with each tag, and the votes of each jury, by its grader's name."""

    columns: dict[str, TargetFrame]
    by_tag: FramesByTag
    votes: dict[str, VoteFrame]


def build_frames(rows: Iterable[Row], targets: Collection[str]) -> dict[str, TargetFrame]:
    """Build the frame of each column; ``targets`` are the columns' names.

    Of several rows of one trial, the first graded one is used, or else the last.
    """
    builders = {target: _FrameBuilder() for target in targets}
    for row in rows:
        if row.column in builders:
            builders[row.column].add(row)
    return _build_all(builders)


def build_tagged_frames(rows: Iterable[Row], targets: Collection[str], *, repeats: int) -> TaggedFrames:
    """Build the frame of each column, as `build_frames` does, those of the rows with each tag, and the juries' votes.

    ``repeats`` leaves out rows with a higher repeat.
    """
    builders = {target: _FrameBuilder() for target in targets}
    tagged: dict[str, dict[str, dict[str, _FrameBuilder]]] = {}
    votes: dict[str, VoteTable] = {}
    for row in rows:
        if row.column not in builders or row.repeat > repeats:
            continue
        builders[row.column].add(row)
        for name, verdict in row.graders.items():
            if verdict.votes:
                votes.setdefault(name, VoteTable()).add(verdict)
        for field, tags in (row.tags or {}).items():
            by_tag = tagged.setdefault(field, {})
            for tag in dict.fromkeys(tag if tag in by_tag or len(by_tag) < MAX_TAGS else OTHER_TAGS for tag in tags):
                by_tag.setdefault(tag, {}).setdefault(row.column, _FrameBuilder()).add(row)
    return TaggedFrames(
        _build_all(builders),
        {
            field: {
                tag: _build_all({column: by_column[column] for column in targets if column in by_column})
                for tag, by_column in sorted(by_tag.items())
            }
            for field, by_tag in tagged.items()
        },
        {name: table.build() for name, table in votes.items()},
    )


def _build_all(builders: dict[str, _FrameBuilder]) -> dict[str, TargetFrame]:
    return {name: builder.build() for name, builder in builders.items()}


class _MeasureBuilder:
    """Collects scores (8 bytes per row) and passes (1 byte per row) of a grader or of the rows.

    ``preceding_rows`` is the number of earlier rows without a value, for a grader that first appears later.
    """

    def __init__(self, preceding_rows: int = 0) -> None:
        self._scores, self._passes = array("d", [math.nan]) * preceding_rows, array("b", [-1]) * preceding_rows

    def add(self, score: float | None, *, passed: bool) -> None:
        """Append the values of one row; ``score`` is None if it has none."""
        self._scores.append(math.nan if score is None else score)
        self._passes.append(-1 if score is None else passed)

    def arrays(self, grader: str | None) -> Measures:
        """The collected values as arrays, by measure."""
        return {
            Measure("score", grader): np.frombuffer(self._scores, dtype=np.float64),
            Measure("pass", grader): np.frombuffer(self._passes, dtype=np.int8),
        }


class _FrameBuilder:
    """Collects the rows of one target into a `TargetFrame`."""

    def __init__(self) -> None:
        self._trials, self._cases = array("Q"), array("Q")
        self._judges, self._self_judged = set[str](), set[str]()
        self._row_measures, self._grader_measures = _MeasureBuilder(), dict[str, _MeasureBuilder]()

    def add(self, row: Row) -> None:
        """Append the values of one row."""
        verdicts = row.verdicts
        for name in verdicts:
            if name not in self._grader_measures:
                self._grader_measures[name] = _MeasureBuilder(len(self._trials))
        case = case_hash(row.case_id)
        self._cases.append(case)
        self._trials.append(_combined_hash(case, row.repeat))
        for name, grader in row.graders.items():
            used = [one.judge for one in (grader, *grader.votes.values()) if one.judge is not None]
            if used:
                self._judges.add(name)
            if any(judge.target == row.target for judge in used):
                self._self_judged.add(name)
        graded = row.status is RowStatus.GRADED
        self._row_measures.add(row.score if graded else None, passed=row.passed)
        for name, measures in self._grader_measures.items():
            verdict = verdicts.get(name) if graded else None
            measures.add(
                None if verdict is None else verdict.score, passed=verdict is not None and bool(verdict.passed)
            )

    def build(self) -> TargetFrame:
        """The frame of the collected rows, one entry per trial: the first graded row of a trial, or else its last."""
        trials = np.frombuffer(self._trials, dtype=np.uint64)
        cases = np.frombuffer(self._cases, dtype=np.uint64)
        values_by_measure = self._row_measures.arrays(None)
        judges, self_judged = frozenset(self._judges), frozenset(self._self_judged)
        for name, measures in self._grader_measures.items():
            values_by_measure.update(measures.arrays(name))
        if not _has_duplicates(trials):
            # The usual case: every trial has one row, so nothing is copied.
            return TargetFrame(trials, cases, values_by_measure, judges, self_judged)
        positions, ungraded = np.arange(len(trials)), np.isnan(values_by_measure[ROW_SCORE])
        order = np.lexsort((np.where(ungraded, -positions, positions), ungraded, trials))
        first = np.ones(len(order), dtype=bool)
        first[1:] = trials[order][1:] != trials[order][:-1]
        chosen = order[first]
        values_by_measure = {measure: values[chosen] for measure, values in values_by_measure.items()}
        return TargetFrame(trials[chosen], cases[chosen], values_by_measure, judges, self_judged)


def case_hash(case_id: str) -> int:
    """The 64-bit hash of a case id."""
    return key_hash(case_id) & _HASH_MASK


def _combined_hash(case: int, repeat: int) -> int:
    """The hash of a trial from the hash of its case and its repeat."""
    return (case + repeat * _REPEAT_STRIDE) & _HASH_MASK


def clusters_by_case(cases: Hashes, values: Floats) -> Clusters:
    """Sum the values of each case and count its rows."""
    if not _has_duplicates(cases):
        return Clusters(np.round(values, _ROUND_DIGITS), np.ones(len(values)))
    _, index = np.unique(cases, return_inverse=True)
    return Clusters(np.round(np.bincount(index, weights=values), _ROUND_DIGITS), np.bincount(index).astype(np.float64))


def _has_duplicates(hashes: Hashes) -> bool:
    """Whether a hash occurs more than once."""
    ordered = np.sort(hashes)
    return bool(np.any(ordered[1:] == ordered[:-1]))

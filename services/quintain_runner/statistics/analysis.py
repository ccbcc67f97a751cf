"""The statistics of a run: each target, each grader, and paired differences between targets, with intervals. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import AliasChoices, Field

from quintain.contracts.message import Message
from quintain_runner.statistics.frame import ROW_PASS, ROW_SCORE, Measure, TargetFrame, pair_frames
from quintain_runner.statistics.intervals import CONFIDENCE, Clusters, Interval, mean_interval, share_interval
from quintain_runner.statistics.significance import SIGNIFICANCE_LEVEL, holm, sign_flip_p_value

#: With more targets than this, the pairs of targets are not compared in the run record; use `quintain compare`.
MAX_COMPARED_TARGETS = 12

#: The field is ``pass`` in JSON, which is a reserved word in Python.
_PASS = AliasChoices("pass", "passed")


class MeanEstimate(Message):
    """A mean over graded rows: its value, the number of cases and rows, and its confidence interval.

    ``interval`` is None if every case has the same value.
    """

    value: float
    cases: int
    rows: int
    interval: Interval | None = None


class PassAndScore(Message):
    """The pass rate and the mean score of one target or one grader."""

    passed: MeanEstimate = Field(validation_alias=_PASS, serialization_alias="pass")
    score: MeanEstimate


class TargetStatistics(Message):
    """The statistics of one target: of its rows, and of each grader. ``row`` is None if no row was graded."""

    row: PassAndScore | None = None
    graders: dict[str, PassAndScore] = Field(default_factory=dict)


class Difference(Message):
    """The mean difference of one measure between two targets (first minus second), on the cases that both answered.

    ``base`` is the second target's mean on these cases. ``better`` and ``worse`` count the cases on which the first is
    higher and lower. ``p`` is the two-sided p-value, ``adjusted_p`` is Holm's adjustment for all differences of this
    measure in the same table, and ``significant`` says whether the adjusted value is below `SIGNIFICANCE_LEVEL`.
    """

    estimate: MeanEstimate
    base: float
    better: int
    worse: int
    p: float
    adjusted_p: float
    significant: bool


class TargetPair(Message):
    """The paired differences between two targets, on the cases that both answered."""

    first: str
    second: str
    passed: Difference = Field(validation_alias=_PASS, serialization_alias="pass")
    score: Difference


class Analysis(Message):
    """The statistics of a run, as stored in ``run.json``. ``confidence`` is the confidence level of all intervals."""

    confidence: float = CONFIDENCE
    targets: dict[str, TargetStatistics] = Field(default_factory=dict)
    pairs: list[TargetPair] = Field(default_factory=list)


def analyse(frames: Mapping[str, TargetFrame]) -> Analysis:
    """Compute the statistics of each target and each pair of targets; no pairs above `MAX_COMPARED_TARGETS` targets."""
    targets = {name: _target_statistics(frame) for name, frame in frames.items()}
    graded = [name for name, statistics in targets.items() if statistics.row is not None]
    pairs = list(itertools.combinations(graded, 2)) if len(graded) <= MAX_COMPARED_TARGETS else []
    score_differences = paired_differences([(frames[a], frames[b]) for a, b in pairs], ROW_SCORE)
    pass_differences = paired_differences([(frames[a], frames[b]) for a, b in pairs], ROW_PASS)
    differences_by_pair = zip(pairs, pass_differences, score_differences, strict=True)
    return Analysis(
        targets=targets,
        pairs=[
            TargetPair(first=a, second=b, passed=passed, score=score)
            for (a, b), passed, score in differences_by_pair
            if passed and score
        ],
    )


def paired_differences(pairs: Sequence[tuple[TargetFrame, TargetFrame]], measure: Measure) -> list[Difference | None]:
    """The difference of ``measure`` for each pair of frames, or None for a pair without a common graded case.

    The p-values come from a sign-flip test (see `sign_flip_p_value`) and are adjusted by Holm's method over all pairs.
    """
    unadjusted = [_paired_difference(first, second, measure) for first, second in pairs]
    present = [difference for difference in unadjusted if difference is not None]
    adjusted_p_values = iter(holm([difference.p for difference in present]))
    return [
        None if difference is None else _with_adjusted_p(difference, next(adjusted_p_values))
        for difference in unadjusted
    ]


def _paired_difference(first: TargetFrame, second: TargetFrame, measure: Measure) -> Difference | None:
    """The difference of one pair, its p-value not yet adjusted."""
    pair = pair_frames(first, second, measure)
    clusters = pair.differences
    if not len(clusters):
        return None
    p = sign_flip_p_value(clusters.sums)
    better, worse = int(np.count_nonzero(clusters.sums > 0)), int(np.count_nonzero(clusters.sums < 0))
    estimate = _mean_estimate(clusters, mean_interval(clusters))
    return Difference(
        estimate=estimate,
        base=pair.base.mean,
        better=better,
        worse=worse,
        p=p,
        adjusted_p=p,
        significant=p < SIGNIFICANCE_LEVEL,
    )


def _with_adjusted_p(difference: Difference, p: float) -> Difference:
    """The difference with its adjusted p-value ``p``."""
    return difference.model_copy(update={"adjusted_p": p, "significant": p < SIGNIFICANCE_LEVEL})


def _target_statistics(frame: TargetFrame) -> TargetStatistics:
    """The statistics of one target's rows and of its graders."""
    graders = {name: _pass_and_score(frame, name) for name in frame.grader_names()}
    return TargetStatistics(
        row=_pass_and_score(frame, None),
        graders={name: measured for name, measured in graders.items() if measured is not None},
    )


def _pass_and_score(frame: TargetFrame, grader: str | None) -> PassAndScore | None:
    """The pass rate and mean score of a grader, or of the rows if ``grader`` is None; None if nothing was graded."""
    passed, score = frame.clusters(Measure("pass", grader)), frame.clusters(Measure("score", grader))
    if not len(passed) or not len(score):
        return None
    return PassAndScore(
        passed=_mean_estimate(passed, share_interval(passed)), score=_mean_estimate(score, mean_interval(score))
    )


def _mean_estimate(clusters: Clusters, interval: Interval | None) -> MeanEstimate:
    """The mean of clusters, with the given interval."""
    return MeanEstimate(value=clusters.mean, cases=len(clusters), rows=int(clusters.rows.sum()), interval=interval)

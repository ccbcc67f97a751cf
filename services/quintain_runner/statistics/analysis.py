"""Statistics of a run: each target, each grader, and paired differences between targets, with intervals. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import AliasChoices, Field

from quintain.contracts.message import Message
from quintain_runner.statistics.frame import ROW_PASS, ROW_SCORE, Measure, TargetFrame, pair_frames
from quintain_runner.statistics.intervals import CONFIDENCE, Clusters, Interval, mean_interval, share_interval
from quintain_runner.statistics.significance import SIGNIFICANCE_LEVEL, holm, sign_flip_p_value

#: More targets than so many are not compared each with each: their results are, with `quintain compare`.
MAX_COMPARED_TARGETS = 12

#: ``pass`` on the wire is a word that Python keeps for itself.
_PASS = AliasChoices("pass", "passed")


class MeanEstimate(Message):
    """A mean over the graded rows of so many cases. No interval can be had where all cases are alike."""

    value: float
    cases: int
    rows: int
    interval: Interval | None = None


class PassAndScore(Message):
    """A pass rate and a mean score."""

    passed: MeanEstimate = Field(validation_alias=_PASS, serialization_alias="pass")
    score: MeanEstimate


class TargetStatistics(Message):
    """One target: over its rows, and of each grader. ``row`` is None where no row was graded."""

    row: PassAndScore | None = None
    graders: dict[str, PassAndScore] = Field(default_factory=dict)


class Difference(Message):
    """How much more the first has than the second, over the cases of both; ``base`` is what the second has there.

    ``better`` and ``worse`` count the cases where it has more, and less. ``adjusted_p`` is Holm's, for all the
    differences of this measure that are told together; ``significant`` where chance alone would seldom do it.
    """

    estimate: MeanEstimate
    base: float
    better: int
    worse: int
    p: float
    adjusted_p: float
    significant: bool


class TargetPair(Message):
    """Two targets on the cases that both answered."""

    first: str
    second: str
    passed: Difference = Field(validation_alias=_PASS, serialization_alias="pass")
    score: Difference


class Analysis(Message):
    """What a run's rows say, as ``run.json`` keeps it."""

    confidence: float = CONFIDENCE
    targets: dict[str, TargetStatistics] = Field(default_factory=dict)
    pairs: list[TargetPair] = Field(default_factory=list)


def analyse(frames: Mapping[str, TargetFrame]) -> Analysis:
    """The analysis of these targets' columns."""
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
    """How each first column differs from its second; None for a pair that shares no graded case."""
    unadjusted = [_paired_difference(first, second, measure) for first, second in pairs]
    present = [one for one in unadjusted if one is not None]
    adjusted_p_values = iter(holm([one.p for one in present]))
    return [None if one is None else _with_adjusted_p(one, next(adjusted_p_values)) for one in unadjusted]


def _paired_difference(first: TargetFrame, second: TargetFrame, measure: Measure) -> Difference | None:
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


def _with_adjusted_p(one: Difference, p: float) -> Difference:
    return one.model_copy(update={"adjusted_p": p, "significant": p < SIGNIFICANCE_LEVEL})


def _target_statistics(frame: TargetFrame) -> TargetStatistics:
    graders = {name: _pass_and_score(frame, name) for name in frame.grader_names()}
    return TargetStatistics(
        row=_pass_and_score(frame, None), graders={name: one for name, one in graders.items() if one is not None}
    )


def _pass_and_score(frame: TargetFrame, grader: str | None) -> PassAndScore | None:
    passed, score = frame.clusters(Measure("pass", grader)), frame.clusters(Measure("score", grader))
    if not len(passed) or not len(score):
        return None
    return PassAndScore(
        passed=_mean_estimate(passed, share_interval(passed)), score=_mean_estimate(score, mean_interval(score))
    )


def _mean_estimate(clusters: Clusters, interval: Interval | None) -> MeanEstimate:
    return MeanEstimate(value=clusters.mean, cases=len(clusters), rows=int(clusters.rows.sum()), interval=interval)

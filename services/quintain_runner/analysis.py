"""What a run's rows say, with how sure that is: per target, per grader, and between targets case by case. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import AliasChoices, Field

from quintain.contracts.message import Message
from quintain_runner.columns import ROW_PASS, ROW_SCORE, Column, Measure, paired
from quintain_runner.intervals import CONFIDENCE, Clusters, Interval, mean_interval, share_interval
from quintain_runner.paired import SIGNIFICANT, holm, sign_flip_p

#: More targets than so many are not compared each with each: their results are, with `quintain compare`.
MOST_COMPARED = 12

#: ``pass`` on the wire is a word that Python keeps for itself.
_PASS = AliasChoices("pass", "passed")


class Estimate(Message):
    """A mean over the graded rows of so many cases. No interval can be had where all cases are alike."""

    value: float
    cases: int
    rows: int
    interval: Interval | None = None


class Measured(Message):
    """A pass rate and a mean score."""

    passed: Estimate = Field(validation_alias=_PASS, serialization_alias="pass")
    score: Estimate


class TargetStatistics(Message):
    """One target: over its rows, and of each grader. ``row`` is None where no row was graded."""

    row: Measured | None = None
    graders: dict[str, Measured] = Field(default_factory=dict)


class Difference(Message):
    """How much more the first has than the second, over the cases of both; ``base`` is what the second has there.

    ``better`` and ``worse`` count the cases where it has more, and less. ``adjusted_p`` is Holm's, for all the
    differences of this measure that are told together; ``significant`` where chance alone would seldom do it.
    """

    estimate: Estimate
    base: float
    better: int
    worse: int
    p: float
    adjusted_p: float
    significant: bool


class Pair(Message):
    """Two targets on the cases that both answered."""

    first: str
    second: str
    passed: Difference = Field(validation_alias=_PASS, serialization_alias="pass")
    score: Difference


class Analysis(Message):
    """What a run's rows say, as ``run.json`` keeps it."""

    confidence: float = CONFIDENCE
    targets: dict[str, TargetStatistics] = Field(default_factory=dict)
    pairs: list[Pair] = Field(default_factory=list)


def analyse(columns: Mapping[str, Column]) -> Analysis:
    """The analysis of these targets' columns."""
    targets = {name: _target(column) for name, column in columns.items()}
    graded = [name for name, said in targets.items() if said.row is not None]
    pairs = list(itertools.combinations(graded, 2)) if len(graded) <= MOST_COMPARED else []
    scores = differences([(columns[a], columns[b]) for a, b in pairs], ROW_SCORE)
    passes = differences([(columns[a], columns[b]) for a, b in pairs], ROW_PASS)
    told = zip(pairs, passes, scores, strict=True)
    return Analysis(
        targets=targets,
        pairs=[
            Pair(first=a, second=b, passed=passed, score=score) for (a, b), passed, score in told if passed and score
        ],
    )


def differences(pairs: Sequence[tuple[Column, Column]], measure: Measure) -> list[Difference | None]:
    """How each first column differs from its second; None for a pair that shares no graded case."""
    told = [_difference(first, second, measure) for first, second in pairs]
    there = [one for one in told if one is not None]
    adjusted = iter(holm([one.p for one in there]))
    return [None if one is None else _adjusted(one, next(adjusted)) for one in told]


def _difference(first: Column, second: Column, measure: Measure) -> Difference | None:
    pair = paired(first, second, measure)
    clusters = pair.clusters
    if not len(clusters):
        return None
    p = sign_flip_p(clusters.sums)
    better, worse = int(np.count_nonzero(clusters.sums > 0)), int(np.count_nonzero(clusters.sums < 0))
    estimate = _estimate(clusters, mean_interval(clusters))
    return Difference(
        estimate=estimate,
        base=pair.base.mean,
        better=better,
        worse=worse,
        p=p,
        adjusted_p=p,
        significant=p < SIGNIFICANT,
    )


def _adjusted(one: Difference, p: float) -> Difference:
    return one.model_copy(update={"adjusted_p": p, "significant": p < SIGNIFICANT})


def _target(column: Column) -> TargetStatistics:
    graders = {name: _measured(column, name) for name in column.graders()}
    return TargetStatistics(
        row=_measured(column, None), graders={name: one for name, one in graders.items() if one is not None}
    )


def _measured(column: Column, grader: str | None) -> Measured | None:
    passed, score = column.clusters(Measure("pass", grader)), column.clusters(Measure("score", grader))
    if not len(passed) or not len(score):
        return None
    return Measured(passed=_estimate(passed, share_interval(passed)), score=_estimate(score, mean_interval(score)))


def _estimate(clusters: Clusters, interval: Interval | None) -> Estimate:
    return Estimate(value=clusters.mean, cases=len(clusters), rows=int(clusters.rows.sum()), interval=interval)

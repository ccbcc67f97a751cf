"""The statistics of a run: targets, graders, paired differences with intervals, and how they are written. No I/O."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pydantic import AliasChoices, Field

from quintain.contracts.message import Message
from quintain_runner.results.row import Row
from quintain_runner.spec.grader_options import Reducers, required_repeats
from quintain_runner.statistics.arrays import np, npt
from quintain_runner.statistics.choice_positions import ChoiceCollector, ChoiceStatistics
from quintain_runner.statistics.frame import (
    ROW_PASS,
    ROW_SCORE,
    FramesByTag,
    Measure,
    TargetFrame,
    build_tagged_frames,
    pair_frames,
)
from quintain_runner.statistics.inference import (
    CONFIDENCE,
    Clusters,
    Floats,
    MeanEstimate,
    mean_estimate,
    mean_interval,
    share_interval,
)
from quintain_runner.statistics.judge_agreement import JuryStatistics, VoteFrame
from quintain_runner.statistics.pairwise import ComparisonCollector, PairwiseStatistics
from quintain_runner.statistics.significance import SIGNIFICANCE_LEVEL, Difference, SignificanceTest, differences_of

#: With more targets than this, the pairs of targets are not compared in the run record; use `quintain compare`.
MAX_COMPARED_TARGETS = 12

#: The field is ``pass`` in JSON, which is a reserved word in Python.
_PASS = AliasChoices("pass", "passed")


class ReducedValue(Message):
    """The mean over cases of what a reducer makes of each case's repeats.

    ``left_out`` counts the cases with fewer graded repeats than the reducer needs.
    """

    reducer: str
    estimate: MeanEstimate
    left_out: int = 0


class PassAndScore(Message):
    """The pass rate and the mean score of one target or one grader, and its repeats reduced."""

    passed: MeanEstimate = Field(validation_alias=_PASS, serialization_alias="pass")
    score: MeanEstimate
    reduced: ReducedValue | None = None


class TargetStatistics(Message):
    """The statistics of one target: of its rows, and of each grader. ``row`` is None if no row was graded."""

    row: PassAndScore | None = None
    graders: dict[str, PassAndScore] = Field(default_factory=dict)


class TargetPair(Message):
    """The paired differences between two targets, on the cases that both answered."""

    first: str
    second: str
    passed: Difference = Field(validation_alias=_PASS, serialization_alias="pass")
    score: Difference


class JudgeStatistics(Message):
    """What is to be known of a judge before it is believed: ``own`` are the columns of which it is the target."""

    own: list[str] = Field(default_factory=list)


class Analysis(Message):
    """The statistics of a run, as stored in ``run.json``. ``confidence`` is the confidence level of all intervals.

    ``targets`` are those of each column: of a target, under each prompt. ``by`` are those of rows with one tag: by
    field, tag and column. ``judges`` are the graders that asked one, and ``juries`` the votes of those that asked
    several, on answers of all columns. ``pairwise`` are those of the comparisons of each pairwise grader, and
    ``choices`` the answers to multiple choice, by grader and column.
    """

    confidence: float = CONFIDENCE
    targets: dict[str, TargetStatistics] = Field(default_factory=dict)
    pairs: list[TargetPair] = Field(default_factory=list)
    by: dict[str, dict[str, dict[str, PassAndScore]]] = Field(default_factory=dict)
    judges: dict[str, JudgeStatistics] = Field(default_factory=dict, exclude_if=operator.not_)
    juries: dict[str, JuryStatistics] = Field(default_factory=dict, exclude_if=operator.not_)
    pairwise: dict[str, PairwiseStatistics] = Field(default_factory=dict, exclude_if=operator.not_)
    choices: dict[str, dict[str, ChoiceStatistics]] = Field(default_factory=dict, exclude_if=operator.not_)


def analyse_run(
    read_rows: Callable[[], Iterable[Row]], columns: Collection[str], repeats: int, reducers: Reducers
) -> Analysis:
    """Compute the statistics of a run from its rows; ``repeats`` leaves out rows with a higher repeat.

    The rows are read twice where answers were compared.
    """
    collector, choices = ComparisonCollector(columns), ChoiceCollector(columns, repeats)
    rows = choices.passed_through(collector.passed_through(read_rows()))
    tagged = build_tagged_frames(rows, columns, repeats=repeats)
    if collector.has_comparisons:
        collector.add_answers(read_rows())
    analysis = analyse(tagged.columns, reducers, tagged.by_tag, tagged.votes)
    return analysis.with_fields(pairwise=collector.statistics(), choices=choices.statistics())


def analyse(
    frames: Mapping[str, TargetFrame],
    reducers: Reducers | None = None,
    by_tag: FramesByTag | None = None,
    votes: Mapping[str, VoteFrame] = MappingProxyType({}),
) -> Analysis:
    """Compute the statistics of each column, each tag, each jury and each pair of columns; no pairs above
    `MAX_COMPARED_TARGETS` columns."""
    reducers = reducers or Reducers()
    targets = {name: _target_statistics(frame, reducers) for name, frame in frames.items()}
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
        by={
            field: {tag: dict(_graded(by_column, reducers)) for tag, by_column in tags.items()}
            for field, tags in (by_tag or {}).items()
        },
        judges=_judge_statistics(frames),
        juries={grader: frame.statistics() for grader, frame in votes.items()},
    )


def _judge_statistics(frames: Mapping[str, TargetFrame]) -> dict[str, JudgeStatistics]:
    """The statistics of each grader that asked a judge."""
    judges = sorted({name for frame in frames.values() for name in frame.judges})
    return {
        name: JudgeStatistics(own=[column for column, frame in frames.items() if name in frame.self_judged])
        for name in judges
    }


def paired_differences(pairs: Sequence[tuple[TargetFrame, TargetFrame]], measure: Measure) -> list[Difference | None]:
    """The difference of ``measure`` for each pair of frames, or None for a pair without a common graded case.

    The p-values and intervals are adjusted by Holm's method over all pairs.
    """
    paired = [pair_frames(first, second, measure) for first, second in pairs]
    present = iter(differences_of([(one.differences, one.base.mean) for one in paired if len(one.differences)]))
    return [next(present) if len(one.differences) else None for one in paired]


def _graded(frames: Mapping[str, TargetFrame], reducers: Reducers) -> Iterator[tuple[str, PassAndScore]]:
    """The statistics of the rows of each frame with a graded row."""
    for name, frame in frames.items():
        measured = _pass_and_score(frame, None, reducers.row)
        if measured is not None:
            yield name, measured


def _target_statistics(frame: TargetFrame, reducers: Reducers) -> TargetStatistics:
    """The statistics of one target's rows and of its graders."""
    graders = {
        name: _pass_and_score(frame, name, reducers.graders.get(name, reducers.row)) for name in frame.grader_names()
    }
    return TargetStatistics(
        row=_pass_and_score(frame, None, reducers.row),
        graders={name: measured for name, measured in graders.items() if measured is not None},
    )


def _pass_and_score(frame: TargetFrame, grader: str | None, reducer: str | None) -> PassAndScore | None:
    """The pass rate and mean score of a grader, or of the rows if ``grader`` is None; None if nothing was graded."""
    passed, score = frame.clusters(Measure("pass", grader)), frame.clusters(Measure("score", grader))
    if not len(passed) or not len(score):
        return None
    return PassAndScore(
        passed=mean_estimate(passed, share_interval(passed)),
        score=mean_estimate(score, mean_interval(score)),
        reduced=None if reducer is None else _reduced(frame, grader, reducer),
    )


def _reduced(frame: TargetFrame, grader: str | None, reducer: str) -> ReducedValue | None:
    """The value of a reducer; None if no case has as many graded repeats as it needs."""
    scores, passes = frame.values(Measure("score", grader)), frame.values(Measure("pass", grader))
    graded = ~np.isnan(scores)
    reduced = reduce_cases(reducer, frame.case_hashes[graded], scores[graded], passes[graded])
    if not len(reduced.values):
        return None
    estimate = mean_estimate(reduced.values, mean_interval(reduced.values))
    return ReducedValue(reducer=reducer, estimate=estimate, left_out=reduced.left_out)


#: Shown in place of a missing number.
MISSING = "-"

#: Smaller p-values are shown as "< 0.001".
_MIN_SHOWN_P = 0.001

_TEST_NAMES: Final[Mapping[SignificanceTest, str]] = {
    "mcnemar": "McNemar's exact test",
    "sign_flip": "random signs",
    "normal": "random signs, by their normal approximation",
}


def format_score(mean: float | None) -> str:
    """A mean score with three decimal places, or a dash for None."""
    return MISSING if mean is None else f"{mean:.3f}"


def format_score_interval(measured: PassAndScore | None) -> str:
    """The confidence interval of a mean score, such as ``0.71-0.83``, or a dash if there is none."""
    return MISSING if measured is None else format_interval(measured.score)


def format_interval(estimate: MeanEstimate) -> str:
    """The confidence interval of a mean, such as ``0.71-0.83``, or a dash if there is none."""
    interval = estimate.interval
    return MISSING if interval is None else f"{interval.low:.2f}-{interval.high:.2f}"


def format_share(estimate: MeanEstimate) -> str:
    """A pass rate in percent, such as ``87 %``."""
    return f"{100 * estimate.value:.0f} %"


def format_share_interval(measured: PassAndScore | None) -> str:
    """The confidence interval of a pass rate in percent, such as ``71-83 %``, or a dash if there is none."""
    interval = None if measured is None else measured.passed.interval
    return MISSING if interval is None else f"{100 * interval.low:.0f}-{100 * interval.high:.0f} %"


def format_score_difference(difference: Difference) -> tuple[str, str, str, str]:
    """Four table cells about a difference of mean scores.

    They are the difference, its confidence interval, the numbers of better and worse cases, and the p-value.
    """
    interval = difference.estimate.interval
    range_text = MISSING if interval is None else f"{interval.low:+.2f} to {interval.high:+.2f}"
    return f"{difference.estimate.value:+.3f}", range_text, _format_flips(difference), format_p_value(difference)


def format_share_difference(difference: Difference) -> tuple[str, str, str, str]:
    """Four table cells about a difference of pass rates, in percentage points.

    They are the difference, its confidence interval, the numbers of better and worse cases, and the p-value.
    """
    interval = difference.estimate.interval
    range_text = MISSING if interval is None else f"{100 * interval.low:+.0f} to {100 * interval.high:+.0f} %"
    return (
        f"{100 * difference.estimate.value:+.0f} %",
        range_text,
        _format_flips(difference),
        format_p_value(difference),
    )


def format_p_value(difference: Difference) -> str:
    """The adjusted p-value, with a star if the difference is significant."""
    shown = format_p(difference.adjusted_p)
    return f"{shown} *" if difference.significant else shown


def format_p(p: float) -> str:
    """A p-value with three decimal places; it is never shown as 0."""
    return f"< {_MIN_SHOWN_P}" if p < _MIN_SHOWN_P else f"{p:.3f}"


def p_note(passed: Iterable[Difference | None], scores: Iterable[Difference | None], compared: str) -> str:
    """The note below a table of differences: the tests of p-values and intervals, and their adjustment."""
    names = [
        " or ".join(dict.fromkeys(_TEST_NAMES[one.test] for one in differences if one is not None))
        for differences in (passed, scores)
    ]
    tests = names[0] if names[0] == names[1] else "; for scores ".join(filter(None, names))
    return f"p and interval: {tests}{compared}; * below {SIGNIFICANCE_LEVEL}"


def _format_flips(difference: Difference) -> str:
    """The numbers of better and worse cases, such as ``5 / 2``."""
    return f"{difference.better} / {difference.worse}"


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

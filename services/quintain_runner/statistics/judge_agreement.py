"""How far judges agree: the votes of a jury with each other, and a judge with a person's labels. No I/O."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from quintain.contracts.message import Message
from quintain_runner.results.answer import is_none
from quintain_runner.results.row import GraderRow
from quintain_runner.statistics.arrays import np
from quintain_runner.statistics.inference import Clusters, Floats, Interval, bootstrap_interval, share_interval
from quintain_runner.statistics.significance import Difference, differences_of


def krippendorff_alpha(ratings: Floats, metric: Literal["nominal", "interval"]) -> float | None:
    """Krippendorff's alpha of ratings, a row for each rater and a column for each unit; NaN where one is missing.

    It is 1 for full agreement and 0 for as much as chance gives. None where all ratings that can be compared are of one
    value, or there are none. Source: K. Krippendorff, "Computing Krippendorff's alpha-reliability" (2011), sections C
    and D: 1 less the observed disagreement within units divided by the one expected among all ratings.
    """
    counts = np.count_nonzero(~np.isnan(ratings), axis=0)
    values, sizes = ratings[:, counts > 1], counts[counts > 1].astype(np.float64)
    total = sizes.sum()
    if not total or np.nanmin(values) == np.nanmax(values):
        return None
    if metric == "nominal":
        chosen = [np.count_nonzero(values == value, axis=0) for value in np.unique(values[~np.isnan(values)])]
        within = sizes**2 - sum(np.square(each, dtype=np.float64) for each in chosen)
        among = total**2 - sum(float(each.sum()) ** 2 for each in chosen)
    else:
        # The squares of all differences, from centered values, whose sums lose no digits.
        centered = values - np.nanmean(values)
        within = 2 * (sizes * np.nansum(centered**2, axis=0) - np.nansum(centered, axis=0) ** 2)
        among = 2 * (total * np.nansum(centered**2) - np.nansum(centered) ** 2)
    observed = (within / (sizes - 1)).sum() / total
    return float(1 - observed / (among / (total * (total - 1))))


class JudgeVotes(Message):
    """The votes of one judge of a jury.

    ``lean_pass`` and ``lean_score`` say how much higher its passes and scores are than the mean of the other judges' on
    the same answers; None where no other judge voted with it.
    """

    votes: int = 0
    missing: int = 0
    pass_rate: float | None = None
    mean_score: float | None = None
    lean_pass: float | None = None
    lean_score: float | None = None


class JuryStatistics(Message):
    """The votes of one jury on all answers of a run.

    ``alpha_pass`` is Krippendorff's nominal alpha of their passes, ``alpha_score`` the interval alpha of their scores;
    None where all are of one value. ``tied`` answers were passed by as many judges as failed them.
    """

    answers: int = 0
    tied: int = 0
    alpha_pass: float | None = None
    alpha_score: float | None = None
    judges: dict[str, JudgeVotes] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _with_null_alphas(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {"alphaPass": None, "alphaScore": None, **serialize(self)}


@dataclass(frozen=True, slots=True, eq=False)
class VoteFrame:
    """The votes of one jury: a row of scores and one of passes for each judge, with NaN where a vote is missing."""

    judges: list[str]
    scores: Floats
    passes: Floats
    tied: int = 0

    def statistics(self) -> JuryStatistics:
        """The agreement of the judges and how each of them leans."""
        return JuryStatistics(
            answers=self.scores.shape[1],
            tied=self.tied,
            alpha_pass=krippendorff_alpha(self.passes, "nominal"),
            alpha_score=krippendorff_alpha(self.scores, "interval"),
            judges=dict(self._judges()),
        )

    def _judges(self) -> Iterator[tuple[str, JudgeVotes]]:
        lean_passes, lean_scores = _leans(self.passes), _leans(self.scores)
        for number, judge in enumerate(self.judges):
            given = ~np.isnan(self.scores[number])
            yield (
                judge,
                JudgeVotes(
                    votes=int(given.sum()),
                    missing=int((~given).sum()),
                    pass_rate=_mean(self.passes[number][given]),
                    mean_score=_mean(self.scores[number][given]),
                    lean_pass=lean_passes[number],
                    lean_score=lean_scores[number],
                ),
            )


class VoteTable:
    """Collects the votes of one jury in constant memory for each vote: a score in 8 bytes and a pass in 1."""

    def __init__(self) -> None:
        self._scores: dict[str, array[float]] = {}
        self._passes: dict[str, array[int]] = {}
        self._answers = self._tied = 0

    def add(self, verdict: GraderRow) -> None:
        """Add the votes on one answer."""
        for judge in verdict.votes:
            if judge not in self._scores:
                self._scores[judge] = array("d", [math.nan]) * self._answers
                self._passes[judge] = array("b", [-1]) * self._answers
        for judge, scores in self._scores.items():
            vote = verdict.votes.get(judge)
            is_missing = vote is None or vote.score is None
            scores.append(math.nan if vote is None or vote.score is None else vote.score)
            self._passes[judge].append(-1 if is_missing or vote is None else bool(vote.passed))
        self._answers += 1
        self._tied += verdict.tied

    def build(self) -> VoteFrame:
        """The collected votes."""
        passes = np.array([*self._passes.values()], dtype=np.float64)
        return VoteFrame(
            judges=list(self._scores),
            scores=np.array([*self._scores.values()], dtype=np.float64),
            passes=np.where(passes < 0, math.nan, passes),
            tied=self._tied,
        )


def _leans(values: Floats) -> list[float | None]:
    """How much higher the values of each row are, in the mean, than the mean of the other rows' in the same column."""
    counts, sums = np.count_nonzero(~np.isnan(values), axis=0), np.nansum(values, axis=0)
    shared = counts > 1
    others = (sums[shared] - values[:, shared]) / (counts[shared] - 1)
    return [_mean(row[~np.isnan(row)]) for row in values[:, shared] - others]


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


class LabeledVerdict(NamedTuple):
    """A person's label of one answer to a case, and a judge's verdict on it: whether each says that it passes."""

    case_id: str
    label: bool
    verdict: bool


class Rate(Message):
    """A statistic of labels and verdicts, with its 95 % interval.

    ``value`` is None where it is not defined, such as the precision of a judge that never said "fail". ``interval`` is
    None where it has no value, and of a kappa that is the same whichever cases are drawn.
    """

    value: float | None = None
    interval: Interval | None = Field(default=None, exclude_if=is_none)


class LabelAgreement(Message):
    """The agreement of one judge with labels.

    ``labels`` answers of ``cases`` cases have a label and a verdict. ``kappa`` is 1 for full agreement and 0 for as
    much as chance gives. ``fail_precision`` is the share of "fail" among the labels of answers that the judge failed,
    ``fail_recall`` the share that the judge failed of the answers that are labeled "fail".
    """

    labels: int = 0
    cases: int = 0
    agreement: Rate = Rate()
    kappa: Rate = Rate()
    fail_precision: Rate = Rate()
    fail_recall: Rate = Rate()


def label_agreement(verdicts: Iterable[LabeledVerdict]) -> LabelAgreement:
    """The agreement over labels and verdicts: the interval of kappa by a bootstrap over cases, others as of pass rates.

    Example::

        label_agreement([LabeledVerdict("1", True, True), LabeledVerdict("2", False, True)]).agreement.value  # 0.5
    """
    counts = _counts_by_case(verdicts)
    if not len(counts):
        return LabelAgreement()
    agreed, failed = counts[:, _PASS_PASS] + counts[:, _FAIL_FAIL], counts[:, _FAIL_FAIL]
    return LabelAgreement(
        labels=int(counts.sum()),
        cases=len(counts),
        agreement=_share(agreed, counts.sum(axis=1)),
        kappa=_kappa_rate(counts),
        fail_precision=_share(failed, failed + counts[:, _PASS_FAIL]),
        fail_recall=_share(failed, failed + counts[:, _FAIL_PASS]),
    )


#: The columns of a table of counts: what the label says, and what the verdict says.
_PASS_PASS, _PASS_FAIL, _FAIL_PASS, _FAIL_FAIL = range(4)


def _counts_by_case(verdicts: Iterable[LabeledVerdict]) -> Floats:
    """A row of counts for each case."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for case_id, label, verdict in verdicts:
        counts[case_id][2 * (not label) + (not verdict)] += 1
    return np.array(list(counts.values()), dtype=np.float64).reshape(len(counts), 4)


def _share(parts: Floats, wholes: Floats) -> Rate:
    """The share of these parts by case, with the interval of a pass rate."""
    counted = wholes > 0
    if not counted.any():
        return Rate()
    clusters = Clusters(parts[counted], wholes[counted])
    return Rate(value=clusters.mean, interval=share_interval(clusters))


def _kappa_rate(counts: Floats) -> Rate:
    value = float(_kappa(counts.sum(axis=0, keepdims=True))[0])
    return Rate() if np.isnan(value) else Rate(value=value, interval=bootstrap_interval(counts, _kappa))


def _ratio(part: Floats, whole: Floats) -> Floats:
    ratio: Floats = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole != 0)
    return ratio


def _kappa(tables: Floats) -> Floats:
    """Cohen's kappa of each table: (p_o - p_e) / (1 - p_e), not defined where chance alone gives full agreement.

    Source: J. Cohen, "A coefficient of agreement for nominal scales", Educational and Psychological Measurement 20
    (1960).
    """
    count = tables.sum(axis=1)
    label = _ratio(tables[:, _PASS_PASS] + tables[:, _PASS_FAIL], count)
    verdict = _ratio(tables[:, _PASS_PASS] + tables[:, _FAIL_PASS], count)
    agreed = _ratio(tables[:, _PASS_PASS] + tables[:, _FAIL_FAIL], count)
    by_chance = label * verdict + (1 - label) * (1 - verdict)
    return _ratio(agreed - by_chance, 1 - by_chance)


class JudgePair(NamedTuple):
    """A label of an answer to a case, and the verdicts of two judges on that answer."""

    case_id: str
    label: bool
    first: bool
    second: bool


def agreement_differences(comparisons: Sequence[Sequence[JudgePair]]) -> list[Difference | None]:
    """How much more often the first judge of each pair agrees with the labels than the second; None without labels.

    The p-values come from a sign-flip test over cases, adjusted by Holm's method for the number of pairs.
    """
    present = iter(differences_of([_agreement_by_case(pairs) for pairs in comparisons if pairs]))
    return [next(present) if pairs else None for pairs in comparisons]


def _agreement_by_case(pairs: Sequence[JudgePair]) -> tuple[Clusters, float]:
    """The differences of agreement by case, and the second judge's agreement."""
    cases, index = np.unique([pair.case_id for pair in pairs], return_inverse=True)
    first = np.array([pair.first == pair.label for pair in pairs], dtype=np.float64)
    second = np.array([pair.second == pair.label for pair in pairs], dtype=np.float64)
    rows = np.bincount(index, minlength=len(cases)).astype(np.float64)
    sums: Floats = np.bincount(index, weights=first - second, minlength=len(cases)).astype(np.float64)
    return Clusters(sums, rows), float(second.mean())

"""Statistics of pairwise comparisons: win rates, the order of the targets, the judge's position bias. No I/O."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import Field

from quintain.contracts.message import Message
from quintain_runner.results.labels import answer_sha256
from quintain_runner.results.row import Row
from quintain_runner.statistics.arrays import np, npt
from quintain_runner.statistics.frame import case_hash, clusters_by_case, trial_hash
from quintain_runner.statistics.inference import Clusters, Floats, Interval, MeanEstimate, mean_estimate, share_interval
from quintain_runner.statistics.significance import SignificanceTest, differences_of

#: The prior of the Bradley-Terry order: so many ties of each target with an average one.
PRIOR_TIES: Final = 1.0

#: The iteration ends when no strength changes by more than this, in natural logarithms of odds.
_TOLERANCE = 1e-10
_MAX_ITERATIONS = 1_000

#: Added to a trial's hash for each column: odd and large, as the stride of repeats, and another one.
_COLUMN_STRIDE = 0xC2B2AE3D27D4EB4F
_HASH_MASK = (1 << 64) - 1

#: The position of a comparison of equal answers.
_NOT_ASKED = 3


class ComparedColumn(Message):
    """One column in the comparisons of a grader: its wins, ties and losses, and its win rate, a tie as half a win.

    ``strength`` is its place in the Bradley-Terry order: the natural logarithm of the odds that it wins against an
    average target.
    """

    wins: int
    ties: int
    losses: int
    rate: MeanEstimate
    strength: float


class ComparedPair(Message):
    """The comparisons of two columns: the wins of the first, the ties and its losses, and its win rate.

    ``p`` is the two-sided p-value of a win rate of ½, by random signs over cases; ``adjusted_p`` is Holm's adjustment
    for all pairs of the grader, and ``significant`` says whether that is below `SIGNIFICANCE_LEVEL`. The interval of
    ``rate`` comes from the same test and adjustment: it excludes ½ exactly where the rate is significant.
    """

    first: str
    second: str
    wins: int
    ties: int
    losses: int
    rate: MeanEstimate
    p: float
    adjusted_p: float
    significant: bool
    test: SignificanceTest


class PositionBias(Message):
    """In how many of the asked ``pairs`` the judge chose one place in both orders: the first, or the second."""

    pairs: int
    first: int
    second: int

    @property
    def share(self) -> float:
        """The part of the pairs that the place decided; 0 if none was asked."""
        return (self.first + self.second) / max(1, self.pairs)


class PairwiseStatistics(Message):
    """The statistics of one pairwise grader: its columns, the strongest first, and its pairs."""

    columns: dict[str, ComparedColumn]
    pairs: list[ComparedPair]
    position_bias: PositionBias
    prior_ties: float = Field(default=PRIOR_TIES)


@dataclass(slots=True)
class _GraderComparisons:
    """The comparisons of one grader as arrays: 38 bytes for each. ``opponents`` are the columns of the other answers,
    and ``answers`` the beginnings of these answers' hashes.
    """

    trials: array[int] = field(default_factory=lambda: array("Q"))
    cases: array[int] = field(default_factory=lambda: array("Q"))
    first: array[int] = field(default_factory=lambda: array("H"))
    second: array[int] = field(default_factory=lambda: array("H"))
    scores: array[float] = field(default_factory=lambda: array("f"))
    positions: array[int] = field(default_factory=lambda: array("b"))
    opponents: array[int] = field(default_factory=lambda: array("H"))
    answers: array[int] = field(default_factory=lambda: array("Q"))


class ComparisonCollector:
    """Collects the comparisons in rows, and computes their statistics.

    A comparison stands in the rows of both its columns, and counts once.
    """

    def __init__(self, columns: Iterable[str] = ()) -> None:
        self._numbers = {name: number for number, name in enumerate(columns)}
        self._own_columns = len(self._numbers)
        self._graders: dict[str, _GraderComparisons] = {}
        #: The rows of the run's columns, and the beginnings of their answers' hashes.
        self._answered, self._answers = array("Q"), array("Q")

    @property
    def has_comparisons(self) -> bool:
        """Whether any row had a comparison."""
        return bool(self._graders)

    def passed_through(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows as they come; those of the run's columns are added on the way."""
        columns = set(self._numbers)
        for row in rows:
            if row.column in columns:
                self.add(row)
            yield row

    def add(self, row: Row) -> None:
        """Add the comparisons of a row that have both votes."""
        for name, verdict in row.graders.items():
            for one in verdict.comparisons or ():
                if (score := one.score) is None:
                    continue
                own, other = self._number(row.column), self._number(one.opponent)
                found = self._graders.setdefault(name, _GraderComparisons())
                found.opponents.append(other)
                found.answers.append(_answer_number(one.answer))
                own, other, score = (own, other, score) if own < other else (other, own, 1.0 - score)
                found.trials.append(trial_hash(row.case_id, row.repeat))
                found.cases.append(case_hash(row.case_id))
                found.first.append(own)
                found.second.append(other)
                found.scores.append(score)
                found.positions.append({None: 0, "first": 1, "second": 2}[one.position] if one.is_asked else _NOT_ASKED)

    def add_answers(self, rows: Iterable[Row]) -> None:
        """Add the answers of the run's columns: comparisons with others than these are outdated, and count no more."""
        for row in rows:
            if row.column in self._numbers and (answer := answer_sha256(row)) is not None:
                trial, number = trial_hash(row.case_id, row.repeat), self._numbers[row.column]
                self._answered.append((trial + number * _COLUMN_STRIDE) & _HASH_MASK)
                self._answers.append(_answer_number(answer))

    def statistics(self) -> dict[str, PairwiseStatistics]:
        """The statistics of each grader that compared anything, as far as the answers are those of now."""
        names = list(self._numbers)
        current = {name: self._current(found) for name, found in self._graders.items()}
        return {
            name: _grader_statistics(names, self._graders[name], kept) for name, kept in current.items() if kept.any()
        }

    def _current(self, found: _GraderComparisons) -> npt.NDArray[np.bool_]:
        """Which comparisons are with the answers that the rows have now; those of other runs do not change."""
        opponents = np.frombuffer(found.opponents, np.uint16)
        trials, answers = (np.frombuffer(values, np.uint64) for values in (found.trials, found.answers))
        is_other_run = opponents >= self._own_columns
        if not self._answered:
            return is_other_run
        answered = np.frombuffer(self._answered, np.uint64)
        order = np.argsort(answered)
        keys = trials + opponents.astype(np.uint64) * np.uint64(_COLUMN_STRIDE)
        places = order[np.minimum(np.searchsorted(answered, keys, sorter=order), len(order) - 1)]
        known = np.frombuffer(self._answers, np.uint64)
        is_current: npt.NDArray[np.bool_] = is_other_run | ((answered[places] == keys) & (known[places] == answers))
        return is_current

    def _number(self, column: str) -> int:
        return self._numbers.setdefault(column, len(self._numbers))


def _answer_number(answer: str) -> int:
    """The beginning of an answer's hash, as a number of 64 bits."""
    return int(answer[:16], 16)


def _grader_statistics(
    names: Sequence[str], found: _GraderComparisons, is_current: npt.NDArray[np.bool_]
) -> PairwiseStatistics:
    pairs = np.frombuffer(found.first, np.uint16).astype(np.int64) * len(names) + np.frombuffer(found.second, np.uint16)
    trials = np.frombuffer(found.trials, np.uint64)
    order = np.lexsort((trials, pairs))
    order = order[is_current[order]]
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (pairs[order][1:] != pairs[order][:-1]) | (trials[order][1:] != trials[order][:-1])
    chosen = order[is_new]
    pairs, cases = pairs[chosen], np.frombuffer(found.cases, np.uint64)[chosen]
    scores = np.frombuffer(found.scores, np.float32)[chosen].astype(np.float64)
    positions = np.frombuffer(found.positions, np.int8)[chosen]
    first, second = pairs // len(names), pairs % len(names)
    wins = np.zeros((len(names), len(names)))
    np.add.at(wins, (first, second), scores)
    np.add.at(wins, (second, first), 1.0 - scores)
    strengths = bradley_terry(wins)
    columns: dict[str, ComparedColumn] = {}
    for number in sorted(set(first.tolist()) | set(second.tolist()), key=lambda number: (-strengths[number], number)):
        is_first, is_in = first == number, (first == number) | (second == number)
        own = np.where(is_first, scores, 1.0 - scores)[is_in]
        won, tied, lost = _outcomes(own)
        columns[names[number]] = ComparedColumn(
            wins=won, ties=tied, losses=lost, rate=_rate(cases[is_in], own), strength=float(strengths[number])
        )
    return PairwiseStatistics(
        columns=columns,
        pairs=_pairs(names, pairs, cases, scores),
        position_bias=PositionBias(
            pairs=int(np.count_nonzero(positions != _NOT_ASKED)),
            first=int(np.count_nonzero(positions == 1)),
            second=int(np.count_nonzero(positions == 2)),
        ),
    )


def _pairs(
    names: Sequence[str], pairs: npt.NDArray[np.int64], cases: npt.NDArray[np.uint64], scores: Floats
) -> list[ComparedPair]:
    numbers = np.unique(pairs).tolist()
    # A win rate is ½ and the mean of what each comparison is above it.
    above = [clusters_by_case(cases[pairs == pair], scores[pairs == pair] - 0.5) for pair in numbers]
    compared: list[ComparedPair] = []
    for pair, one in zip(numbers, differences_of([(clusters, 0.5) for clusters in above], limit=0.5), strict=True):
        won, tied, lost = _outcomes(scores[pairs == pair])
        rate, interval = one.estimate.with_fields(value=0.5 + one.estimate.value), one.estimate.interval
        if interval is not None:
            rate = rate.with_fields(interval=Interval(0.5 + interval.low, 0.5 + interval.high, interval.method))
        compared.append(
            ComparedPair(
                first=names[pair // len(names)],
                second=names[pair % len(names)],
                wins=won,
                ties=tied,
                losses=lost,
                rate=rate,
                p=one.p,
                adjusted_p=one.adjusted_p,
                significant=one.significant,
                test=one.test,
            )
        )
    return compared


def _outcomes(scores: Floats) -> tuple[int, int, int]:
    """The wins, ties and losses."""
    counts = [int(np.count_nonzero(scores == score)) for score in (1.0, 0.5, 0.0)]
    return counts[0], counts[1], counts[2]


def _rate(cases: npt.NDArray[np.uint64], scores: Floats) -> MeanEstimate:
    clusters: Clusters = clusters_by_case(cases, scores)
    return mean_estimate(clusters, share_interval(clusters))


def bradley_terry(wins: Floats, prior_ties: float = PRIOR_TIES) -> Floats:
    """The strengths of the Bradley-Terry model, as natural logarithms of odds against an average target.

    ``wins[i, j]`` is how often i won against j, a tie as half a win for each. ``prior_ties`` are ties of each with a
    target of strength 0, without which one that never lost has no finite strength; without them the strengths have
    mean 0, and must exist. The likelihood is concave; its maximum is found by Newton's method, with shorter steps
    where a whole one does not raise it. Source: R. A. Bradley and M. E. Terry, "Rank analysis of incomplete block
    designs", Biometrika 39 (1952).
    """
    games, count = wins + wins.T, len(wins)
    strengths: Floats = np.zeros(count)
    best = _log_likelihood(strengths, wins, prior_ties)
    for _ in range(_MAX_ITERATIONS):
        shares = _sigmoid(strengths[:, None] - strengths[None, :])
        prior_shares = _sigmoid(strengths)
        gradient = wins.sum(axis=1) - (games * shares).sum(axis=1) + prior_ties * (0.5 - prior_shares)
        weights = games * shares * (1.0 - shares)
        curvature = np.diag(weights.sum(axis=1) + prior_ties * prior_shares * (1.0 - prior_shares)) - weights
        # Differences alone have a likelihood: without a prior the mean is held.
        step: Floats = np.linalg.solve(curvature + (0.0 if prior_ties else 1.0 / count), gradient)
        while np.abs(step).max(initial=0.0) > _TOLERANCE:
            raised = _log_likelihood(strengths + step, wins, prior_ties)
            if raised >= best:
                break
            step = step / 2
        else:
            break
        strengths, best = strengths + step, raised
    return strengths


def _sigmoid(values: Floats) -> Floats:
    shares: Floats = 0.5 * (1.0 + np.tanh(values / 2))
    return shares


def _log_likelihood(strengths: Floats, wins: Floats, prior_ties: float) -> float:
    """The logarithm of the likelihood of these strengths."""
    lost = np.logaddexp(0.0, strengths[None, :] - strengths[:, None])
    prior = np.logaddexp(0.0, strengths) + np.logaddexp(0.0, -strengths)
    return -float((wins * lost).sum() + prior_ties / 2 * prior.sum())

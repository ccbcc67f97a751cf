"""Counts of rows, and of the calls and tokens in them, in constant memory. No I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from quintain.contracts.money import picodollars, to_dollars
from quintain_runner.results.row import Row, RowStatus


def count_most_calls(most_calls: Counter[str], row: Row) -> None:
    """Update the most calls that one execution of each grader made; one that failed says nothing about it."""
    for name, verdict in row.graders.items():
        if verdict.error is None:
            most_calls[name] = max(most_calls[name], verdict.calls)


#: The statuses of rows whose answers have the verdict of each grader but those that compare.
ANSWERED = frozenset({RowStatus.GRADED, RowStatus.UNCOMPARED})

#: Why the answer of an uncompared row has no score.
UNCOMPARED_TEXT = "not compared yet: no opponent has an answer"


def has_cut_answer(row: Row) -> bool:
    """Whether the answer of a row, or one to a turn of its conversation, ended at a limit of tokens."""
    return any(one is not None and one.cut for one in (row.answer, *(turn.answer for turn in row.turns())))


class RowTally:
    """The counts of one target's rows. ``trials`` is the number of rows that the complete run has."""

    def __init__(self, trials: int) -> None:
        self.trials = trials
        self.by_status = dict.fromkeys(RowStatus, 0)
        self.passed = self.calls = self.input_tokens = self.output_tokens = 0
        #: The number of rows with a score: one that only comparisons score has none before it is compared.
        self.scored = 0
        #: The turns of conversations that were lost with the workers that held them.
        self.lost_turns = 0
        #: The number of rows with an answer that ended at a limit of tokens.
        self.cut = 0
        #: The number of answers that the cache had, and what they cost when they were given, in picodollars.
        self.cached = self._saved = 0
        #: The numbers of rows whose jury is tied, and of graded rows whose jury lacks votes.
        self.tied = self.lacks_votes = 0
        # The exact sum of the scores, so that the order in which cases end does not change it: numerators by
        # denominator (a power of two).
        self._scores: dict[int, int] = {}

    def add(self, row: Row, *, times: int = 1) -> None:
        """Count a row. ``times=-1`` subtracts a row that a newer one supersedes."""
        self.by_status[row.status] += times
        self.passed += times * row.passed
        self.tied += times * row.tied
        self.lacks_votes += times * (row.open_status is not row.status)
        self.cut += times * has_cut_answer(row)
        self.cached += times * row.cached
        self._saved += times * picodollars(row.saved_usd)
        self.lost_turns += 0 if row.conversation is None else times * row.conversation.lost_turns
        self.calls += times * row.calls
        self.input_tokens += times * row.token_usage.input
        self.output_tokens += times * row.token_usage.output
        if row.status is RowStatus.GRADED and row.score is not None:
            self.scored += times
            numerator, denominator = row.score.as_integer_ratio()
            self._scores[denominator] = self._scores.get(denominator, 0) + times * numerator

    def __iadd__(self, other: RowTally) -> RowTally:
        """Add the counts of another tally; ``trials`` does not change."""
        for status, count in other.by_status.items():
            self.by_status[status] += count
        self.passed += other.passed
        self.scored += other.scored
        self.calls += other.calls
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.tied += other.tied
        self.lacks_votes += other.lacks_votes
        self.lost_turns += other.lost_turns
        self.cut += other.cut
        self.cached += other.cached
        self._saved += other._saved
        for denominator, numerator in other._scores.items():
            self._scores[denominator] = self._scores.get(denominator, 0) + numerator
        return self

    @property
    def saved_usd(self) -> float:
        """What the answers of the cache cost when they were given, in US dollars."""
        return to_dollars(self._saved)

    @property
    def graded(self) -> int:
        """The number of rows with a verdict of each of their graders."""
        return self.by_status[RowStatus.GRADED]

    @property
    def unscored(self) -> int:
        """The number of rows that wait for an opponent's answer, and have no score."""
        return self.by_status[RowStatus.UNCOMPARED]

    @property
    def errors(self) -> int:
        """The number of error rows; they are executed again when the run is resumed."""
        return self.by_status[RowStatus.ERROR]

    @property
    def in_doubt(self) -> int:
        """The number of rows with a call that has no answer and may have been charged."""
        return self.by_status[RowStatus.IN_DOUBT]

    @property
    def done(self) -> int:
        """The number of rows with any status."""
        return sum(self.by_status.values())

    @property
    def score_sum(self) -> Fraction:
        """The exact sum of the scores of the graded rows."""
        return sum((Fraction(numerator, denominator) for denominator, numerator in self._scores.items()), Fraction())

    @property
    def mean_score(self) -> float | None:
        """The mean score of the rows with a score, or None if there are none; errors never count as a score of 0."""
        return float(self.score_sum / self.scored) if self.scored else None


#: The safety margin in standard deviations: the sum of many varying numbers of calls stays below it in 999 of 1000
#: runs.
_SAFETY_DEVIATIONS = 3.0


@dataclass(frozen=True, slots=True)
class NeededCalls:
    """What one trial needs: the calls without its graders, at most, the votes that a jury lacks, and the graders that
    have to run besides.
    """

    asks: int = 0
    votes: int = 0
    graders: tuple[str, ...] = ()


class GraderCallSamples:
    """How many calls the executions of each grader made, of each column: their number, sum and sum of squares."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], tuple[int, int, int]] = {}

    def add_row(self, row: Row, *, times: int = 1) -> None:
        """Count the verdicts of a graded row; one that failed for lack of budget made fewer calls than it needs.

        ``times=-1`` takes it back.
        """
        if row.status is not RowStatus.GRADED:
            return
        for name, verdict in row.graders.items():
            number, calls, squares = self._sums.get((row.column, name), (0, 0, 0))
            more = times * verdict.calls
            self._sums[row.column, name] = (number + times, calls + more, squares + more * verdict.calls)

    def mean_and_variance(self, column: str, grader: str) -> tuple[float, float] | None:
        """Of the calls of one execution: in this column, else in all columns; None if none is known."""
        sums = self._sums.get((column, grader), (0, 0, 0))
        if not sums[0]:
            others = [other for (_, name), other in self._sums.items() if name == grader]
            sums = (sum(one[0] for one in others), sum(one[1] for one in others), sum(one[2] for one in others))
        number, calls, squares = sums
        mean = calls / number if number else 0.0
        return (mean, max(0.0, squares / number - mean**2)) if number else None


class CallsLeft:
    """The answers and the executions of graders that the open trials need; ``limits`` are the most calls that one
    execution of each grader can make.
    """

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        self._limits = limits or {}
        #: The calls of targets, and of simulated users.
        self.answers = 0
        #: The missing votes of juries: each is a call.
        self._votes = 0
        self._executions: Counter[tuple[str, str]] = Counter()

    def copy(self) -> CallsLeft:
        """The same numbers, to be changed without these."""
        other = CallsLeft(self._limits)
        other.answers, other._votes, other._executions = self.answers, self._votes, self._executions.copy()
        return other

    def add(self, column: str, needed: NeededCalls, *, times: int = 1) -> None:
        """Add what a trial needs; ``times=-1`` takes it out."""
        self.answers += times * needed.asks
        self._votes += times * needed.votes
        for name in needed.graders:
            self._executions[column, name] += times

    @property
    def most(self) -> int:
        """The most calls: each grader uses its limit."""
        limits = self._limits
        graders = sum(count * limits.get(name, 0) for (_, name), count in self._executions.items())
        return self.answers + self._votes + graders

    def estimate(self, made: GraderCallSamples, *, deviations: float = _SAFETY_DEVIATIONS) -> int:
        """The calls by what the graders took so far, with a margin of so many standard deviations; a grader of which
        nothing is known takes its limit."""
        mean, variance = float(self.answers + self._votes), 0.0
        for (column, name), count in self._executions.items():
            each, spread = made.mean_and_variance(column, name) or (float(self._limits.get(name, 0)), 0.0)
            mean += count * each
            variance += count * spread
        # Rounded before taking the ceiling, because a floating-point error must not add a call.
        return min(self.most, math.ceil(round(mean + deviations * math.sqrt(variance), 6)))


class ResumeState:
    """The counts of the latest row of each case, target, prompt and repeat."""

    def __init__(self) -> None:
        #: The counts of each column and repeat.
        self.tallies: dict[tuple[str, int], RowTally] = {}
        #: What all rows were charged.
        self.calls_in_rows = 0
        #: How many rows do not hold their answer, so that they cannot be graded again.
        self.rows_without_content = 0
        #: The most calls that one execution of each grader made.
        self.most_grader_calls: Counter[str] = Counter()
        #: The calls of the graders.
        self.grader_calls = GraderCallSamples()

    def add_row(self, row: Row, *, times: int = 1) -> None:
        """Count a row; ``times=-1`` takes it back, when another supersedes it."""
        self.calls_in_rows += times * row.calls
        self.rows_without_content += times * (row.has_answer and not row.is_gradable)
        count_most_calls(self.most_grader_calls, row)
        self.grader_calls.add_row(row, times=times)
        self.tallies.setdefault((row.column, row.repeat), RowTally(0)).add(row, times=times)

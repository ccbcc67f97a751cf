"""The state of a running evaluation that the progress display shows. No I/O.

Counts rows for each target, trials in flight, latencies, grader results, the call budget and unshown errors, in
constant memory. Latencies and rates cover this invocation only; counts include rows of earlier ones.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence

from quintain.contracts.fleet_figures import Percentiles, percentiles
from quintain.contracts.service_card import bucket_of
from quintain.contracts.session import CostUsage, is_at
from quintain.errors import Overloaded, QuintainError, Throttled
from quintain_runner.plan.trials import Trial
from quintain_runner.results.bill import Bill, dollars, is_priced, money_text
from quintain_runner.results.counts import CallsLeft, NeededCalls, ResumeState, RowTally
from quintain_runner.results.row import GraderRow, Row, RowKey, column_name, split_column

#: The codes of faults that mean that a service is overloaded.
_OVERLOAD_CODES = frozenset({Throttled.code, Overloaded.code})

#: So many kinds of errors are shown during a run; the results have all.
MAX_SHOWN_ERRORS = 10


class ErrorLines:
    """The first kinds of errors of a run, one line each, with how often each occurred."""

    def __init__(self) -> None:
        #: Of each text, where it occurred first and how often, since the last `take_lines`.
        self._seen: dict[str, tuple[str, int]] = {}
        self._left, self._has_more, self._is_more_said = MAX_SHOWN_ERRORS, False, False

    def add(self, where: str, text: str) -> None:
        """Count an error of a row."""
        first, count = self._seen.get(text, (where, 0))
        if count or len(self._seen) < self._left:
            self._seen[text] = first, count + 1
        else:
            self._has_more = True

    def lines(self) -> Iterator[str]:
        """The errors since the last `take_lines`."""
        for text, (where, count) in self._seen.items():
            yield f"error: {where}: {text}" if count == 1 else f"error: {text} × {count:,}, first at {where}"
        if self._has_more and not self._is_more_said:
            yield "error: there are more errors; all are in the results"

    def take_lines(self) -> list[str]:
        """Return the errors since the last call."""
        lines = list(self.lines())
        self._left -= len(self._seen)
        self._seen.clear()
        self._is_more_said = self._has_more
        return lines


class TargetProgress:
    """The progress of one target in this invocation. ``overload_count`` counts overload errors, with and without a
    retry.
    """

    def __init__(self) -> None:
        self.in_flight = self.rows_written = self.overload_count = 0
        #: No more of its trials are begun: too many of them failed.
        self.is_parked = False
        #: How many answers took how long: a histogram, in constant memory.
        self._latencies: Counter[int] = Counter()

    @property
    def times(self) -> Percentiles | None:
        """How long answers took; None before there is one."""
        return percentiles(self._latencies)

    def add_row(self, row: Row) -> None:
        """Count a written row."""
        self.rows_written += 1
        if row.output is not None:
            self._latencies[bucket_of(row.duration_ms)] += 1
        if row.error is not None and row.error.code in _OVERLOAD_CODES:
            self.overload_count += 1

    def record_retry(self, error: QuintainError) -> None:
        """Count a retry of a call to this target after ``error``."""
        self.overload_count += isinstance(error, Throttled | Overloaded)


class GraderProgress:
    """The progress of one grader in this invocation."""

    def __init__(self) -> None:
        self.graded = self.passed = self.errors = self.calls = 0
        self.score_sum = 0.0

    def add_row(self, row: GraderRow) -> None:
        """Count a verdict or an error of the grader."""
        self.calls += row.calls
        if row.error is not None or row.score is None:
            self.errors += 1
            return
        self.graded += 1
        self.passed += bool(row.passed)
        self.score_sum += row.score

    @property
    def mean_score(self) -> float | None:
        """The mean score of the grader, or None without scores."""
        return self.score_sum / self.graded if self.graded else None


class BudgetProgress:
    """The call budget of the run, as last read from the ledger."""

    def __init__(self) -> None:
        self.calls = self.max_calls = 0
        #: The calls at the first read of this invocation, from which the rate is computed.
        self.initial_calls: int | None = None

    def update(self, calls: int, max_calls: int) -> None:
        """Store the counters that were read from the ledger."""
        self.calls, self.max_calls = calls, max_calls
        if self.initial_calls is None:
            self.initial_calls = calls


class MoneyProgress:
    """What the session of the run cost, as last read from the ledger.

    ``warn_at`` is the part of its limit at which a line says so, once, when so much is spent or held.
    """

    def __init__(self, warn_at: float | None = None) -> None:
        self.warn_at = warn_at
        self.limit_usd: float | None = None
        self.cost: CostUsage | None = None
        self._calls = 0
        self._is_warned = False

    def update(self, calls: int, cost: CostUsage | None, limit_usd: float | None) -> str | None:
        """Store the amounts, and for how many calls they are; returns a warning, if one is due."""
        self._calls, self.cost, self.limit_usd = calls, cost, limit_usd
        if self._is_warned or cost is None or limit_usd is None or not is_at(cost, limit_usd, self.warn_at):
            return None
        self._is_warned = True
        return f"{money_text(cost, limit_usd)} (warn_at: {self.warn_at})"

    def text(self, calls_left: int) -> str | None:
        """The amounts, and the total to expect with so many calls more; None where nothing is known of them."""
        if self.cost is None or not (is_priced(self.cost) or self.limit_usd):
            return None
        final = self.cost.known_usd + self.cost.held_usd
        projected = f", about {dollars(final + final / self._calls * calls_left)} in total" if self._calls else ""
        return f"{money_text(self.cost, self.limit_usd)}{projected if is_priced(self.cost) else ''}"


class ProgressState:
    """The progress of a run.

    ``targets`` are the columns: each target, under each prompt. ``tallies`` count the rows of all invocations;
    ``target_gauges`` and ``grader_gauges`` count this
    invocation only.
    """

    def __init__(
        self,
        targets: Sequence[str],
        *,
        cases: int,
        repeats: int,
        resume_state: ResumeState,
        pending: Mapping[str, int] | None = None,
        calls_left: CallsLeft | None = None,
    ) -> None:
        self.cases = cases
        #: The calls that the same command would need now: its own trials that have not ended, and those that failed.
        self.calls_left = calls_left or CallsLeft()
        #: The calls of those trials of this invocation that have not ended.
        self.calls_open = self.calls_left.copy()
        self._grader_calls = resume_state.grader_calls
        self.tallies = {target: RowTally(cases * repeats) for target in targets}
        for (column, repeat), tally in resume_state.tallies.items():
            if column in self.tallies and repeat <= repeats:
                self.tallies[column] += tally
        #: The number of trials that this invocation executes, by column; without ``pending`` those without a row.
        self.pending = {
            column: tally.trials - tally.done if pending is None else pending.get(column, 0)
            for column, tally in self.tallies.items()
        }
        #: The calls in all rows of the folder, also rows of targets and repeats that this run does not include.
        self.calls_in_rows = resume_state.calls_in_rows
        self.target_gauges = {target: TargetProgress() for target in targets}
        self.grader_gauges: dict[str, GraderProgress] = {}
        #: The rows that this invocation compares with others, and those of them that are compared.
        self.rows_to_compare = self.compared_rows = 0
        self.budget = BudgetProgress()
        self.money = MoneyProgress()
        #: What is to be shown once.
        self.warnings: deque[str] = deque()
        #: The bill when it was last read, or None.
        self.bill: Bill | None = None
        #: When each running trial started, the oldest first.
        self.running: dict[RowKey, float] = {}
        #: What calls wait for at present, a line for each quota.
        self.waits: tuple[str, ...] = ()
        self.errors = ErrorLines()

    @property
    def calls(self) -> int:
        """The calls that are known to be made: as last read from the ledger, or those of the rows if more."""
        return max(self.budget.calls, self.calls_in_rows)

    @property
    def money_text(self) -> str | None:
        """What the run cost so far, and about what it will; None where nothing is known of it."""
        return self.money.text(self.projected_calls - self.calls)

    @property
    def projected_calls(self) -> int:
        """The projected number of calls when this invocation is complete: those of rows, and those of trials that have
        not ended, some of whose calls the ledger counts already."""
        left = self.calls_open.estimate(self._grader_calls, deviations=0)
        return max(self.calls, self.calls_in_rows + left)

    @property
    def estimated_calls_left(self) -> int:
        """The calls that the open trials will take, estimated from what the graders of graded rows took."""
        return self.calls_left.estimate(self._grader_calls)

    @property
    def comparisons_text(self) -> str:
        """How many rows are compared with others, for a line; empty where none are."""
        if not self.rows_to_compare:
            return ""
        return f" compared {self.compared_rows:,}/{self.rows_to_compare:,} rows"

    @property
    def pending_trials(self) -> int:
        """The number of trials that this invocation executes."""
        return sum(self.pending.values())

    def unfinished_trials(self, target: str) -> int:
        """The number of trials of this target, under all prompts, that this invocation has still to end."""
        return sum(
            self.pending[column] - gauge.rows_written
            for column, gauge in self.target_gauges.items()
            if split_column(column)[0] == target
        )

    def trial_started(self, key: RowKey, at: float) -> None:
        """Record that a trial has started, at this time in seconds."""
        self.target_gauges[column_name(key.target, key.prompt)].in_flight += 1
        self.running[key] = at

    def trial_ended(self, key: RowKey) -> None:
        """Record that a trial has ended, successfully or not."""
        self.target_gauges[column_name(key.target, key.prompt)].in_flight -= 1
        del self.running[key]

    def add_row(self, row: Row, superseded: Row | None = None) -> None:
        """Count a row of this run; ``superseded`` is the row that it supersedes, if any."""
        tally = self.tallies[row.column]
        if superseded is not None:
            tally.add(superseded, times=-1)
        tally.add(row)
        self._grader_calls.add_row(row)
        self.calls_in_rows += row.calls - (0 if superseded is None else superseded.calls)
        self.target_gauges[row.column].add_row(row)
        for name, grader in row.graders.items():
            self.grader_gauges.setdefault(name, GraderProgress()).add_row(grader)
        if row.error is not None:
            self.errors.add(f"{row.case_id} · {row.column}", row.error.error)

    def add_comparisons(self, row: Row, compared: Trial) -> None:
        """Count a row that supersedes the one that was compared, and the comparisons that its trial made."""
        before = compared.previous
        if before is not None:
            self.tallies[row.column].add(before, times=-1)
        self.tallies[row.column].add(row)
        self.calls_in_rows += row.calls - compared.earlier_calls
        self.compared_rows += 1
        for name, opponents in compared.opponents.items():
            needed = NeededCalls(graders=(name,) * len(opponents))
            self.calls_left.add(row.column, needed, times=-1)
            self.calls_open.add(row.column, needed, times=-1)
            if (verdict := row.graders.get(name)) is not None:
                self.grader_gauges.setdefault(name, GraderProgress()).add_row(verdict)
        if row.error is not None:
            self.errors.add(f"{row.case_id} · {row.column}", row.error.error)

    @property
    def steps(self) -> int:
        """The rows that the complete run has, and those that this invocation compares."""
        return self.trials + self.rows_to_compare

    @property
    def steps_done(self) -> int:
        """The trials with a row, and the rows that are compared."""
        return self.done + self.compared_rows

    @property
    def trials(self) -> int:
        """The number of rows that the complete run has."""
        return sum(tally.trials for tally in self.tallies.values())

    @property
    def done(self) -> int:
        """The number of trials with a row."""
        return sum(tally.done for tally in self.tallies.values())

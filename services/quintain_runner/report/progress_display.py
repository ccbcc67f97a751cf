"""Shows the progress of a run: a live table on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from quintain.contracts.session import Usage
from quintain.fleet.tables import amount, duration, format_count
from quintain_runner.report.progress import ProgressState, TargetProgress
from quintain_runner.report.tables import LineUsage, column_usage
from quintain_runner.results.bill import cost_text
from quintain_runner.results.counts import RowTally
from quintain_runner.results.row import column_name
from quintain_runner.statistics.analysis import format_score
from quintain_runner.untrusted import plain_text

#: A trial that runs for so long is named, of several the oldest, with its time in lines and at the provider.
LONG_TRIAL_SECONDS, MAX_NAMED_TRIALS = 60.0, 3

#: The width of the budget's bar, in characters.
_BAR_WIDTH = 30

#: No end time is projected before this many seconds have passed.
_MIN_PROJECTION_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class _TargetLine:
    """The data of one target's row in the table."""

    tally: RowTally
    pending: int
    progress: TargetProgress
    elapsed_seconds: float
    billed: Usage | None

    @property
    def usage(self) -> LineUsage:
        """The calls and tokens of the line: those that its cost counts or, without a cost, those of the rows."""
        tally = self.tally
        in_rows = LineUsage(tally.calls, tally.input_tokens, tally.output_tokens)
        return in_rows if self.billed is None else LineUsage.of(self.billed)

    @property
    def queued(self) -> int:
        """The number of trials of this command that have not started."""
        return max(0, self.pending - self.progress.rows_written - self.progress.in_flight)

    @property
    def trials_per_minute(self) -> str:
        """The number of trials per minute in this invocation, formatted."""
        return f"{60 * self.progress.rows_written / self.elapsed_seconds:,.0f}" if self.elapsed_seconds > 0 else "-"

    @property
    def seconds_left(self) -> float | None:
        """The estimated seconds until the last trial ends, at the rate of this invocation; None while the rate is
        unknown.
        """
        remaining = self.progress.in_flight + (0 if self.progress.is_parked else self.queued)
        if not remaining:
            return 0.0
        if not self.progress.rows_written or self.elapsed_seconds < _MIN_PROJECTION_SECONDS:
            return None
        return remaining * self.elapsed_seconds / self.progress.rows_written


@dataclass(frozen=True, slots=True)
class _TableColumn:
    """A column of the table: its heading, the function for its cells, and its place among those that a narrow terminal
    shows, of which the lowest comes first.
    """

    heading: str
    cell: Callable[[_TargetLine], str]
    rank: int


_COLUMNS = (
    _TableColumn("done", lambda line: f"{line.tally.done:,}/{line.tally.trials:,}", 0),
    _TableColumn("in flight", lambda line: f"{line.progress.in_flight:,}", 2),
    _TableColumn("queued", lambda line: f"{line.queued:,}", 8),
    _TableColumn("per min", lambda line: line.trials_per_minute, 5),
    _TableColumn("p50", lambda line: duration(line.progress.times.p50 if line.progress.times else None), 10),
    _TableColumn("p95", lambda line: duration(line.progress.times.p95 if line.progress.times else None), 6),
    _TableColumn("mean", lambda line: format_score(line.tally.mean_score), 3),
    _TableColumn("errors", lambda line: f"{line.tally.errors:,}", 1),
    _TableColumn("in doubt", lambda line: f"{line.tally.in_doubt:,}", 9),
    _TableColumn("throttled", lambda line: f"{line.progress.overload_count:,}", 11),
    _TableColumn("calls", lambda line: f"{line.usage.calls:,}", 12),
    _TableColumn(
        "tokens in/out", lambda line: f"{amount(line.usage.input_tokens)}/{amount(line.usage.output_tokens)}", 7
    ),
    # Of the target's calls, as its tokens; the cost of judges is in the budget's line.
    _TableColumn("cost", lambda line: "-" if line.billed is None else cost_text(line.billed.cost), 4),
)


def render_progress(
    progress_state: ProgressState, *, elapsed_seconds: float, clock_seconds: float, width: int, now: datetime
) -> RenderableType:
    """Render the progress of a run.

    ``elapsed_seconds`` is the time since the run started, ``clock_seconds`` what the clock says by which trials
    started, ``width`` the terminal's width in characters, and ``now`` the current local time.
    """
    billed = column_usage(progress_state.bill, progress_state.tallies)
    lines = {
        name: _TargetLine(
            tally, progress_state.pending[name], progress_state.target_gauges[name], elapsed_seconds, billed.get(name)
        )
        for name, tally in progress_state.tallies.items()
    }
    parts: list[RenderableType] = [_targets_table(lines, width)]
    if progress_state.grader_gauges:
        parts.append(_graders_table(progress_state))
    parts += _budget_lines(progress_state, lines, elapsed_seconds, now)
    if compared := progress_state.comparisons_text:
        parts.append(Text(f"pairs  {compared}"))
    parts += _long_trials(progress_state, clock_seconds)
    parts += (plain_text(f"waits   {wait}") for wait in progress_state.waits)
    for line in progress_state.errors.lines():
        shown = plain_text(line, "red")
        shown.truncate(width, overflow="ellipsis")
        parts.append(shown)
    return Group(*parts)


def _long_trials(progress_state: ProgressState, clock_seconds: float) -> Iterator[Text]:
    """The trials that run for long, if there are any: the oldest ones by name, with the time since they started."""
    started = ((key, clock_seconds - at) for key, at in progress_state.running.items())
    long = list(itertools.takewhile(lambda each: each[1] >= LONG_TRIAL_SECONDS, started))
    if long:
        named = (
            f"{key.case_id} of {column_name(key.target, key.prompt)} {duration(seconds * 1000)}"
            for key, seconds in long[:MAX_NAMED_TRIALS]
        )
        more = f", and {len(long) - MAX_NAMED_TRIALS:,} more" if len(long) > MAX_NAMED_TRIALS else ""
        yield plain_text(f"longest {', '.join(named)}{more}")


def _targets_table(lines: Mapping[str, _TargetLine], width: int) -> Table:
    """The table of the targets, with as many columns as fit beside their whole names."""
    names = {name: f"{name} (parked)" if line.progress.is_parked else name for name, line in lines.items()}
    has_cost = any(line.billed is not None for line in lines.values())
    left, shown = width - max(map(len, ["target", *names.values()])), set[str]()
    for column in sorted(_COLUMNS, key=lambda column: column.rank):
        if column.heading == "cost" and not has_cost:
            continue
        # Two characters part two columns.
        left -= 2 + max(len(column.heading), *(len(column.cell(line)) for line in lines.values()))
        if left < 0 and shown:
            break
        shown.add(column.heading)
    columns = [column for column in _COLUMNS if column.heading in shown]
    table = Table("target", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for name, line in lines.items():
        table.add_row(plain_text(names[name]), *(column.cell(line) for column in columns))
    return table


def _graders_table(progress_state: ProgressState) -> Table:
    """The table of the graders."""
    table = Table("grader", box=None, pad_edge=False)
    for heading in ("graded", "passed", "mean", "errors", "calls"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, progress in progress_state.grader_gauges.items():
        counts = (progress.graded, progress.passed)
        cells = (
            *(f"{count:,}" for count in counts),
            format_score(progress.mean_score),
            f"{progress.errors:,}",
            f"{progress.calls:,}",
        )
        table.add_row(plain_text(name), *cells)
    return table


def _budget_lines(
    progress_state: ProgressState, lines: dict[str, _TargetLine], elapsed_seconds: float, now: datetime
) -> Iterator[Text]:
    """The lines with the budget and the expected end of the run."""
    budget = progress_state.budget
    if budget.max_calls:
        filled = min(_BAR_WIDTH, _BAR_WIDTH * progress_state.calls // budget.max_calls)
        bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
        calls = f"{progress_state.calls:,}/{budget.max_calls:,} calls"
        yield Text(f"budget  {bar} {calls}{_budget_projection(progress_state, elapsed_seconds, now)}")
    if (money := progress_state.money_text) is not None:
        yield Text(f"money   {money}")
    seconds_left = {name: line.seconds_left for name, line in lines.items()}
    known = {name: left for name, left in seconds_left.items() if left is not None}
    if len(known) == len(seconds_left) and any(known.values()):
        last = max(known, key=lambda name: known[name])
        target_note = f" ({plain_text(last)})" if len(known) > 1 else ""
        yield Text(f"ends    about {_format_end_time(now, known[last])}{target_note}")


def _budget_projection(progress_state: ProgressState, elapsed_seconds: float, now: datetime) -> str:
    """The projected use of the budget: the total calls of the run, or when the budget will be spent."""
    budget = progress_state.budget
    if not any(tally.graded for tally in progress_state.tallies.values()):
        return ""
    projected_calls = progress_state.projected_calls
    if projected_calls <= budget.max_calls:
        return f", about {projected_calls:,} in total"
    when = ""
    calls_made = progress_state.calls - (budget.initial_calls or 0)
    if calls_made > 0 and elapsed_seconds >= _MIN_PROJECTION_SECONDS:
        left = (budget.max_calls - progress_state.calls) * elapsed_seconds / calls_made
        when = f" about {_format_end_time(now, left)}"
    return f", spent{when} before the run ends: the run needs about {projected_calls:,}"


def _format_end_time(now: datetime, seconds: float) -> str:
    """The time of day in ``seconds`` from now, with the weekday if it is not today."""
    end = now + timedelta(seconds=seconds)
    return f"{end:%H:%M}" if end.date() == now.date() else f"{end:%a %H:%M}"


#: The interval between two calls of `ProgressDisplay.tick`, in seconds.
TICK_SECONDS = 0.25

#: Without a terminal, a line is written after this many seconds, or after this fraction of all trials.
_LINE_SECONDS = 10.0
_LINE_FRACTION = 0.1

Clock = Callable[[], float]


class ProgressDisplay(Protocol):
    """Shows the progress of a run. The run calls `tick` every `TICK_SECONDS`."""

    def start(self, progress_state: ProgressState) -> None:
        """Show the beginning of the run; ``progress_state`` changes while it runs."""

    def tick(self) -> None:
        """Update the display if the progress has changed."""

    def stop(self) -> None:
        """End the display when the run ends or is interrupted, and restore the terminal."""


class NoProgressDisplay:
    """Shows nothing; used with ``--json``."""

    def start(self, progress_state: ProgressState) -> None:
        """Show nothing at the start of the run."""

    def tick(self) -> None:
        """Show nothing while the run goes on."""

    def stop(self) -> None:
        """Show nothing at the end of the run."""


def _print_warnings(console: Console, progress_state: ProgressState) -> None:
    while progress_state.warnings:
        console.print(plain_text(f"warning  {progress_state.warnings.popleft()}"), soft_wrap=True)


def _print_errors(console: Console, progress_state: ProgressState) -> None:
    """Print the errors since the last time, equal ones in one line."""
    for line in progress_state.errors.take_lines():
        console.print(plain_text(line, "red"), soft_wrap=True)


class Lines:
    """Prints a line of progress every ten seconds, or after every tenth of the trials, and what calls wait for.

    ``clock`` returns seconds.
    """

    def __init__(self, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._progress_state: ProgressState | None = None
        self._printed_at, self._printed_done = 0.0, 0

    def start(self, progress_state: ProgressState) -> None:
        """Print the line about the planned trials."""
        self._progress_state, self._printed_at = progress_state, self._clock()
        self._printed_done = progress_state.steps_done
        self._print(start_line(progress_state))

    def tick(self) -> None:
        """Print new warnings, and the errors and a line of progress if one is due."""
        progress_state = self._progress_state
        if progress_state is None:
            return
        _print_warnings(self._console, progress_state)
        new = progress_state.steps_done - self._printed_done
        is_step_reached, is_news = new >= max(1, progress_state.steps * _LINE_FRACTION), new > 0
        is_due = self._clock() - self._printed_at >= _LINE_SECONDS and (is_news or progress_state.waits)
        if is_step_reached or is_due:
            self._printed_at, self._printed_done = self._clock(), progress_state.steps_done
            _print_errors(self._console, progress_state)
            if is_news:
                self._print(progress_line(progress_state))
            for wait in progress_state.waits:
                self._print(f"waits  {wait}")

    def stop(self) -> None:
        """Print the errors and the progress that are not yet printed."""
        if self._progress_state is not None:
            _print_warnings(self._console, self._progress_state)
            _print_errors(self._console, self._progress_state)
            if self._progress_state.steps_done > self._printed_done:
                self._print(progress_line(self._progress_state))

    def _print(self, line: str) -> None:
        """Print one line, without wrapping."""
        self._console.print(plain_text(line), soft_wrap=True)


class LiveTable:
    """A table, and the errors, that are redrawn in place; the errors stay at the end. ``clock`` returns seconds."""

    def __init__(self, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._progress_state: ProgressState | None = None
        self._live: Live | None = None
        self._started = 0.0

    def start(self, progress_state: ProgressState) -> None:
        """Print the line about the planned trials, and draw the table."""
        self._progress_state, self._started = progress_state, self._clock()
        self._console.print(plain_text(start_line(progress_state)), soft_wrap=True)
        self._live = Live(self._render(progress_state), console=self._console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)

    def tick(self) -> None:
        """Print new warnings and redraw the table."""
        if self._progress_state is not None and self._live is not None:
            _print_warnings(self._console, self._progress_state)
            self._live.update(self._render(self._progress_state), refresh=True)

    def stop(self) -> None:
        """Print the errors and remove the table."""
        if self._progress_state is not None and self._live is not None:
            _print_warnings(self._console, self._progress_state)
            self._live.stop()
            _print_errors(self._console, self._progress_state)

    def _render(self, progress_state: ProgressState) -> RenderableType:
        """The table at this moment."""
        now, clock_seconds = datetime.now().astimezone(), self._clock()
        return render_progress(
            progress_state,
            elapsed_seconds=clock_seconds - self._started,
            clock_seconds=clock_seconds,
            width=self._console.width,
            now=now,
        )


def progress_display(console: Console, env: Mapping[str, str]) -> ProgressDisplay:
    """The display for a console: a live table on a capable terminal; lines in a pipe, in CI, and on a dumb terminal."""
    if console.is_terminal and not console.is_dumb_terminal and not env.get("CI"):
        return LiveTable(console)
    return Lines(console)


def start_line(progress_state: ProgressState) -> str:
    """The number of trials, the targets, and how many of the trials this command executes, if not all."""
    pending = progress_state.pending_trials
    executed = "" if pending == progress_state.trials else f", {pending} to execute"
    targets = ", ".join(progress_state.tallies)
    trials, cases = format_count(progress_state.trials, "trial"), format_count(progress_state.cases, "case")
    return f"{trials}: {cases} for {targets}{executed}"


def progress_line(progress_state: ProgressState) -> str:
    """The progress of all targets as one line."""
    targets = "; ".join(
        f"{name} {_target_text(tally, progress_state.target_gauges[name])}"
        for name, tally in progress_state.tallies.items()
    )
    budget = (
        f" calls {progress_state.calls}/{progress_state.budget.max_calls}" if progress_state.budget.max_calls else ""
    )
    return f"{progress_state.done}/{progress_state.trials} {targets}{progress_state.comparisons_text}{budget}"


def _target_text(tally: RowTally, progress: TargetProgress) -> str:
    """The progress of one target."""
    errors = f", {tally.errors} errors" if tally.errors else ""
    parked = ", parked" if progress.is_parked else ""
    in_doubt = f", {tally.in_doubt} in doubt" if tally.in_doubt else ""
    return f"{tally.done}/{tally.trials} mean {format_score(tally.mean_score)}{errors}{in_doubt}{parked}"

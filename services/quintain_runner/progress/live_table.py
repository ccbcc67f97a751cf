"""Renders the live progress table: a row for each target and grader, and the budget with a projection. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from quintain_runner.cost import LineUsage, TargetCost, dollars
from quintain_runner.escaping import plain_text
from quintain_runner.progress.state import ProgressState, TargetProgress
from quintain_runner.results.counts import RowTally
from quintain_runner.statistics.formatting import format_score

#: Terminals with fewer characters per line show only the most important columns.
WIDE_COLUMNS = 112

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
    cost: TargetCost | None

    @property
    def usage(self) -> LineUsage:
        """The calls and tokens of the line: those that its cost counts or, without a cost, those of the rows."""
        tally = self.tally
        return self.cost.usage if self.cost else LineUsage(tally.calls, tally.input_tokens, tally.output_tokens)

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
    """A column of the table: its heading, the function for its cells, and whether narrow terminals show it."""

    heading: str
    cell: Callable[[_TargetLine], str]
    shown_when_narrow: bool = True


_COLUMNS = (
    _TableColumn("done", lambda line: f"{line.tally.done:,}/{line.tally.trials:,}"),
    _TableColumn("in flight", lambda line: f"{line.progress.in_flight:,}"),
    _TableColumn("queued", lambda line: f"{line.queued:,}", shown_when_narrow=False),
    _TableColumn("per min", lambda line: line.trials_per_minute),
    _TableColumn("p50", lambda line: _format_latency(line.progress.latencies.quantile(0.5)), shown_when_narrow=False),
    _TableColumn("p95", lambda line: _format_latency(line.progress.latencies.quantile(0.95))),
    _TableColumn("mean", lambda line: format_score(line.tally.mean_score)),
    _TableColumn("errors", lambda line: f"{line.tally.errors:,}"),
    _TableColumn("in doubt", lambda line: f"{line.tally.in_doubt:,}", shown_when_narrow=False),
    _TableColumn("throttled", lambda line: f"{line.progress.overload_count:,}", shown_when_narrow=False),
    _TableColumn("calls", lambda line: f"{line.usage.calls:,}", shown_when_narrow=False),
    _TableColumn(
        "tokens in/out",
        lambda line: f"{format_compact(line.usage.input_tokens)}/{format_compact(line.usage.output_tokens)}",
    ),
)

#: The cost of the target's calls, as its tokens; the cost of judges is included in the budget line.
_COST_COLUMN = _TableColumn(
    "cost", lambda line: "-" if line.cost is None else dollars(line.cost.usd, at_least=line.cost.at_least)
)


def render_progress(
    progress_state: ProgressState, *, elapsed_seconds: float, width: int, now: datetime
) -> RenderableType:
    """Render the progress of a run.

    ``elapsed_seconds`` is the time since the run started, ``width`` the terminal's width in characters, and ``now`` the
    current local time.
    """
    costs = {} if progress_state.cost is None else progress_state.cost.targets
    lines = {
        name: _TargetLine(
            tally, progress_state.pending[name], progress_state.target_gauges[name], elapsed_seconds, costs.get(name)
        )
        for name, tally in progress_state.tallies.items()
    }
    parts: list[RenderableType] = [_targets_table(lines, wide=width >= WIDE_COLUMNS)]
    if progress_state.grader_gauges:
        parts.append(_graders_table(progress_state))
    parts += _budget_lines(progress_state, lines, elapsed_seconds, now)
    return Group(*parts)


def format_compact(number: int) -> str:
    """A large number in few characters, such as ``9.1M``."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number)


def _targets_table(lines: dict[str, _TargetLine], *, wide: bool) -> Table:
    """The table of the targets."""
    columns = [column for column in _COLUMNS if wide or column.shown_when_narrow]
    if any(line.cost is not None for line in lines.values()):
        columns.append(_COST_COLUMN)
    table = Table("target", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for name, line in lines.items():
        shown_name = f"{name} (parked)" if line.progress.is_parked else name
        table.add_row(plain_text(shown_name), *(column.cell(line) for column in columns))
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
        cost = ""
        if progress_state.cost is not None and progress_state.cost.usd is not None:
            cost = f", {dollars(progress_state.cost.usd, at_least=progress_state.cost.at_least)}"
        calls = f"{progress_state.calls:,}/{budget.max_calls:,} calls{cost}"
        yield Text(f"budget  {bar} {calls}{_budget_projection(progress_state, elapsed_seconds, now)}")
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


def _format_latency(latency_ms: float | None) -> str:
    """A latency in ms or s, or a dash for None."""
    if latency_ms is None:
        return "-"
    return f"{latency_ms:.0f}ms" if latency_ms < 1000 else f"{latency_ms / 1000:.1f}s"


def _format_end_time(now: datetime, seconds: float) -> str:
    """The time of day in ``seconds`` from now, with the weekday if it is not today."""
    end = now + timedelta(seconds=seconds)
    return f"{end:%H:%M}" if end.date() == now.date() else f"{end:%a %H:%M}"

"""The live table: a row per target, a row per grader, and the budget with its projected end. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from quintain_runner.board import Board
from quintain_runner.cost import TargetCost, dollars
from quintain_runner.figures import score
from quintain_runner.gauges import TargetGauge
from quintain_runner.tally import Tally
from quintain_runner.terminal import shown

#: A terminal that is narrower than this, in characters, is shown the columns that matter most.
WIDE = 112

#: How many characters the budget's bar has.
_BAR = 30

#: Nothing is projected from less than this, in seconds.
_TOO_EARLY_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class _Line:
    """One target, and how long it has been at it."""

    tally: Tally
    gauge: TargetGauge
    seconds: float
    cost: TargetCost | None

    @property
    def queued(self) -> int:
        """Trials that nobody has begun."""
        return max(0, self.tally.trials - self.tally.done - self.gauge.in_flight)

    @property
    def pace(self) -> str:
        """Trials per minute, in this invocation."""
        return f"{60 * self.gauge.ended / self.seconds:,.0f}" if self.seconds > 0 else "-"

    @property
    def seconds_left(self) -> float | None:
        """Until the last one ends, at the pace of this invocation; None where there is no pace yet."""
        left = self.queued + self.gauge.in_flight
        if not left:
            return 0.0
        if not self.gauge.ended or self.seconds < _TOO_EARLY_SECONDS:
            return None
        return left * self.seconds / self.gauge.ended


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: its heading, its cell, and whether a narrow terminal has it too."""

    heading: str
    cell: Callable[[_Line], str]
    narrow: bool = True


_COLUMNS = (
    _Column("done", lambda line: f"{line.tally.done:,}/{line.tally.trials:,}"),
    _Column("in flight", lambda line: f"{line.gauge.in_flight:,}"),
    _Column("queued", lambda line: f"{line.queued:,}", narrow=False),
    _Column("per min", lambda line: line.pace),
    _Column("p50", lambda line: _took(line.gauge.latencies.quantile(0.5)), narrow=False),
    _Column("p95", lambda line: _took(line.gauge.latencies.quantile(0.95))),
    _Column("mean", lambda line: score(line.tally.mean_score)),
    _Column("errors", lambda line: f"{line.tally.errors:,}"),
    _Column("in doubt", lambda line: f"{line.tally.in_doubt:,}", narrow=False),
    _Column("throttled", lambda line: f"{line.gauge.throttled:,}", narrow=False),
    _Column("calls", lambda line: f"{line.tally.calls:,}", narrow=False),
    _Column("tokens in/out", lambda line: f"{short(line.tally.input_tokens)}/{short(line.tally.output_tokens)}"),
)

#: What this target's own calls cost; those of judges are in the budget's line.
_COST = _Column("cost", lambda line: "-" if line.cost is None else dollars(line.cost.usd, at_least=line.cost.at_least))


def live_view(board: Board, *, seconds: float, width: int, now: datetime) -> RenderableType:
    """The board as it is drawn: ``seconds`` since the run began, ``width`` of the terminal in characters."""
    costs = {} if board.cost is None else board.cost.targets
    lines = {name: _Line(tally, board.gauges[name], seconds, costs.get(name)) for name, tally in board.tallies.items()}
    parts: list[RenderableType] = [_targets(lines, wide=width >= WIDE)]
    if board.graders:
        parts.append(_graders(board))
    parts += _budget(board, lines, seconds, now)
    return Group(*parts)


def short(number: int) -> str:
    """A large number in few characters: 9.1M."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number)


def _targets(lines: dict[str, _Line], *, wide: bool) -> Table:
    columns = [column for column in _COLUMNS if wide or column.narrow]
    if any(line.cost is not None for line in lines.values()):
        columns.append(_COST)
    table = Table("target", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for name, line in lines.items():
        table.add_row(shown(name), *(column.cell(line) for column in columns))
    return table


def _graders(board: Board) -> Table:
    table = Table("grader", box=None, pad_edge=False)
    for heading in ("graded", "passed", "mean", "errors", "calls"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, gauge in board.graders.items():
        counts = (gauge.graded, gauge.passed)
        cells = (*(f"{count:,}" for count in counts), score(gauge.mean_score), f"{gauge.errors:,}", f"{gauge.calls:,}")
        table.add_row(shown(name), *cells)
    return table


def _budget(board: Board, lines: dict[str, _Line], seconds: float, now: datetime) -> Iterator[Text]:
    budget = board.budget
    if budget.max_calls:
        full = min(_BAR, _BAR * budget.calls // budget.max_calls)
        bar = "█" * full + "░" * (_BAR - full)
        cost = ""
        if board.cost is not None and board.cost.usd is not None:
            cost = f", {dollars(board.cost.usd, at_least=board.cost.at_least)}"
        calls = f"{budget.calls:,}/{budget.max_calls:,} calls{cost}"
        yield Text(f"budget  {bar} {calls}{_outlook(board, seconds, now)}")
    ends = {name: line.seconds_left for name, line in lines.items()}
    known = {name: left for name, left in ends.items() if left is not None}
    if len(known) == len(ends) and any(known.values()):
        last = max(known, key=lambda name: known[name])
        whose = f" ({shown(last)})" if len(known) > 1 else ""
        yield Text(f"ends    about {_clock(now, known[last])}{whose}")


def _outlook(board: Board, seconds: float, now: datetime) -> str:
    """Whether the budget lasts: how much the run will take, or when the budget is spent."""
    budget = board.budget
    if not any(tally.graded for tally in board.tallies.values()):
        return ""
    wanted = board.wanted
    if wanted <= budget.max_calls:
        return f", about {wanted:,} in the end"
    when = ""
    if budget.made > 0 and seconds >= _TOO_EARLY_SECONDS:
        left = (budget.max_calls - budget.calls) * seconds / budget.made
        when = f" about {_clock(now, left)}"
    return f", spent{when} and before the end: that takes about {wanted:,}"


def _took(took_ms: float | None) -> str:
    if took_ms is None:
        return "-"
    return f"{took_ms:.0f}ms" if took_ms < 1000 else f"{took_ms / 1000:.1f}s"


def _clock(now: datetime, seconds: float) -> str:
    then = now + timedelta(seconds=seconds)
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%a %H:%M}"

"""The figures of a fleet as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group
from rich.table import Table
from rich.text import Text

from quintain.monitor.fleet_figures import BudgetFigures, FleetFigures, TargetCondition, TargetFigures, WorkerFigures
from quintain.monitor.words import NOTHING, amount, ends_in, errors, share, time_of_day, times
from quintain_cli.console import escape_for_terminal

_TARGET_WORDS = {TargetCondition.READY: "ready", TargetCondition.UNSERVED: "no worker"}


def fleet_tables(figures: FleetFigures, *, max_rows: int | None = None) -> Group:
    """Return the tables; ``max_rows`` bounds the rows of each, and says how many are left out."""
    head = (
        f"{amount(figures.calls_per_minute)} calls/min · {amount(figures.running)} in flight · "
        f"{amount(figures.queued)} waiting · {len(figures.targets)} targets · {len(figures.workers)} workers"
    )
    problems = [Text(f"problem  {escape_for_terminal(problem)}") for problem in figures.problems]
    tables = (
        _table(
            (
                *("target", "state", "queue", "in flight", "workers", "calls/min"),
                *("wait p50/p95", "service p50/p95", "errors", "tokens in/out", "cost"),
            ),
            map(_target_cells, figures.targets),
            max_rows,
        ),
        _table(("worker", "state", "in flight", "slots", "version"), map(_worker_cells, figures.workers), max_rows),
        _table(
            ("budget", "session", "used", "of", "share", "calls/min", "ends"),
            map(_budget_cells, figures.budgets),
            max_rows,
        ),
    )
    return Group(Text(head), *problems, *(part for table in tables for part in (Text(), table)))


def _target_cells(target: TargetFigures) -> tuple[str, ...]:
    paused = "" if target.paused_until is None else f"paused until {time_of_day(target.paused_until)}"
    return (
        target.name,
        paused or _TARGET_WORDS.get(target.condition, NOTHING),
        amount(target.queued),
        f"{target.running} of {target.limit}",
        amount(target.workers),
        amount(target.calls_per_minute),
        times(target.wait),
        times(target.service),
        errors(target.faults),
        f"{amount(target.input_tokens)} / {amount(target.output_tokens)}",
        f"${target.cost_usd:.4f}" if target.cost_usd else NOTHING,
    )


def _worker_cells(worker: WorkerFigures) -> tuple[str, ...]:
    condition = {"silent": "does not answer"}.get(worker.condition, worker.condition.value)
    return worker.worker_id, condition, str(worker.running), amount(worker.slots), worker.version or NOTHING


def _budget_cells(budget: BudgetFigures) -> tuple[str, ...]:
    return (
        budget.label or NOTHING,
        budget.session_id,
        str(budget.used),
        str(budget.max_calls),
        f"{share(budget.used, budget.max_calls)} %",
        amount(budget.calls_per_minute),
        ends_in(budget),
    )


def _table(columns: Iterable[str], rows: Iterable[tuple[str, ...]], max_rows: int | None) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    cells = list(rows)
    for row in cells[:max_rows]:
        # Names of workers and labels are untrusted.
        table.add_row(*(Text(escape_for_terminal(cell).replace("\n", "\\n").replace("\t", "\\t")) for cell in row))
    if max_rows is not None and len(cells) > max_rows:
        table.add_row(Text(f"and {len(cells) - max_rows} more: --once shows all"))
    return table

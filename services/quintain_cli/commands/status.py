"""``quintain status``: services, targets, workers and budgets of the running fleet, once or until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Annotated

import rich.table
import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from quintain.bus.base import Bus
from quintain.bus.connect import open_bus
from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.fleet.fleet_figures import LEASED_PROVIDER, FleetFigures, TargetFigures
from quintain.fleet.model import SILENT_SECONDS
from quintain.fleet.tables import NOTHING, Table, fleet_facts, fleet_tables
from quintain.fleet.watch import FleetWatch
from quintain.rpc.requests import RpcClient
from quintain.settings import Settings, environment, read_settings
from quintain.topology import CONSUMED_QUEUES, target_queue
from quintain_cli.console import (
    EXIT_ERRORS,
    EXIT_OK,
    EXIT_USAGE,
    PIPE_WIDTH,
    handle_stop_signals,
    print_result,
    print_stderr,
    run_command,
    single_line,
    stdout_console,
)
from quintain_cli.running_fleet import fleet_broker_url

#: How often the terminal is drawn again, in seconds.
REDRAW_SECONDS = 0.5


def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the tables until Ctrl-C; once if standard output is no terminal.")
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0.1, max=300, help="Seconds to wait for services; twice that if one is missing.")
    ] = 1.0,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for the broker and the metadata service.")
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the figures, once, as JSON.")] = False,
) -> None:
    """Show the running services, the targets that they serve, and the budgets of open sessions.

    The gateway's page /fleet shows the same. Reads QUINTAIN_BROKER_URL, and QUINTAIN_ADMIN_TOKEN for what the ledger
    knows. Exit codes: 0 no problem was found, or --watch was ended, 1 no metadata service or no worker answers, a
    target has no live worker, a queue has a consumer that does not answer, a worker is refused, clocks differ, or
    workers of a target have had different configurations for more than 10 minutes, 2 nobody could be asked.
    """
    settings = read_settings(environment())
    if watch and stdout_console().is_terminal and not as_json:
        run_command(_show_until_stopped(settings, timeout), as_json=False)
        return
    try:
        figures = run_command(_look(settings, wait, timeout), as_json=as_json)
    except typer.Exit as ended:  # nobody could be asked: that says nothing of the fleet
        raise typer.Exit(EXIT_USAGE if ended.exit_code == EXIT_ERRORS else ended.exit_code) from None
    code = EXIT_ERRORS if figures.problems else EXIT_OK
    if as_json:
        print_result(figures, code)
    else:
        console = stdout_console()
        if not console.is_terminal:
            console.width = PIPE_WIDTH
        console.print(_drawn(figures))
        for remark in _remarks(figures):
            print_stderr(remark)
    raise typer.Exit(code)


async def _look(settings: Settings, wait_seconds: float, timeout_seconds: float) -> FleetFigures:
    url = fleet_broker_url(settings)
    return await look_at_fleet_at(
        url, "status", settings.admin_token, wait_seconds=wait_seconds, timeout_seconds=timeout_seconds
    )


async def _show_until_stopped(settings: Settings, timeout_seconds: float) -> None:
    console, url, token = stdout_console(), fleet_broker_url(settings), settings.admin_token
    async with (
        handle_stop_signals() as stop,
        open_bus(url, "status", timeout_seconds=timeout_seconds) as bus,
        watch_fleet(bus, token, wait_seconds=SILENT_SECONDS, timeout_seconds=timeout_seconds) as watch,
    ):
        stopped = asyncio.create_task(stop.wait())
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while not stopped.done():
                max_rows = max(3, (console.height - 16) // 4)
                figures = watch.figures()
                live.update(Group(*map(Text, _remarks(figures)), _drawn(figures, max_rows)), refresh=True)
                await asyncio.wait([stopped], timeout=REDRAW_SECONDS)


def _drawn(figures: FleetFigures, max_rows: int | None = None) -> Group:
    """The tables; ``max_rows`` bounds the rows of each, and says how many are left out."""
    facts = Text(" · ".join(f"{title}: {value}" for title, value in fleet_facts(figures)))
    tables = [table for table in fleet_tables(figures) if table.rows]
    return Group(facts, *(part for table in tables for part in (Text(), _drawn_table(table, max_rows))))


def _drawn_table(table: Table, max_rows: int | None) -> rich.table.Table:
    texts = [[cell.line for cell in row.cells] for row in table.rows]
    # A column in which no row has a value takes width from the others.
    shown = [number for number in range(len(table.columns)) if any(row[number] not in _EMPTY for row in texts)]
    drawn = rich.table.Table(box=None, pad_edge=False)
    for number in shown:
        column = table.columns[number]
        drawn.add_column(column.title.lower(), overflow="fold", justify="left" if column.is_words else "right")
    for row in texts[:max_rows]:
        # Names of workers and labels are untrusted.
        drawn.add_row(*(Text(single_line(row[number])) for number in shown))
    if max_rows is not None and len(texts) > max_rows:
        drawn.add_row(Text(f"and {len(texts) - max_rows} more: without --watch all are shown"))
    return drawn


#: What the cells of a column say in which there is nothing.
_EMPTY = {NOTHING, "0 / 0"}


def _remarks(figures: FleetFigures) -> Iterator[str]:
    """The notes, warnings and problems, a line each."""
    kinds = (("note", figures.notes), ("warning", figures.warnings), ("problem", figures.problems))
    for kind, texts in kinds:
        for text in texts:
            yield f"{kind:8} {single_line(text)}"
    if not figures.problems:
        yield f"well     {figures.answering} services answer, and no target was found without a worker"


@contextlib.asynccontextmanager
async def watch_fleet(
    bus: Bus, admin_token: str | None, *, wait_seconds: float, timeout_seconds: float
) -> AsyncIterator[FleetWatch]:
    """Watch the fleet behind this bus; the ledger is read if ``admin_token`` is given, with ``timeout_seconds``."""
    async with RpcClient(bus) as rpc_client:
        admin = None
        if admin_token is not None:
            admin = Admin(AmqpTransport(rpc_client, admin_token), timeout_seconds=timeout_seconds)
        async with FleetWatch(bus, rpc_client, admin, answer_seconds=wait_seconds).running() as watch:
            yield watch


async def look_at_fleet(
    bus: Bus, admin_token: str | None, *, wait_seconds: float, timeout_seconds: float
) -> FleetFigures:
    """Return the figures of the fleet behind this bus after ``wait_seconds``, or twice that if one is missing.

    Raises `BusError` if services cannot be asked who they are.
    """
    async with watch_fleet(bus, admin_token, wait_seconds=wait_seconds, timeout_seconds=timeout_seconds) as watch:
        await watch.wait_asked(timeout_seconds)
        await asyncio.sleep(wait_seconds)
        await watch.wait_state(timeout_seconds)
        watch.raise_if_unasked()
        figures = watch.figures()
        consumed = (*CONSUMED_QUEUES, *(target_queue(target.name) for target in _called(figures)))
        queues = {queue.name for queue in consumed if any(one.service == "metadata" for one in figures.services)}
        consumers = await watch.count_consumers(queues, timeout_seconds)
        if figures.problems or figures.warnings or consumer_problems(figures, consumers):
            # A busy service may answer late, and one that has just started consumes its queues before it answers: only
            # who consumed them before a request and does not answer it is a problem.
            await asyncio.sleep(wait_seconds)
            figures = watch.figures()
            later = await watch.count_consumers((), timeout_seconds)
            consumers = {name: min(count, later.get(name, 0)) for name, count in consumers.items()}
    uncounted = [f"No metadata service told who consumes {name}" for name in sorted(queues - consumers.keys())]
    return figures.with_fields(
        problems=[*figures.problems, *consumer_problems(figures, consumers)], notes=[*figures.notes, *uncounted]
    )


async def look_at_fleet_at(
    url: str, purpose: str, admin_token: str | None, *, wait_seconds: float, timeout_seconds: float
) -> FleetFigures:
    """Return the figures of the fleet behind the broker at this URL, see `look_at_fleet`. Raises `BusError`."""
    async with open_bus(url, purpose, timeout_seconds=timeout_seconds) as bus:
        return await look_at_fleet(bus, admin_token, wait_seconds=wait_seconds, timeout_seconds=timeout_seconds)


def consumer_problems(figures: FleetFigures, consumers: Mapping[str, int]) -> list[str]:
    """Return what is wrong with the numbers of consumers, by queue: each is to be a service that answers."""
    problems = [
        f"The queue of target {target.name} has {count} consumers, and {target.workers or 0} of its workers answer: "
        f"{_STRANGER}"
        for target in _called(figures)
        if (count := consumers.get(target_queue(target.name).name, 0)) > (target.workers or 0)
    ]
    services = sum(one.service == "metadata" and not one.is_silent for one in figures.services)
    too_many = [queue.name for queue in CONSUMED_QUEUES if consumers.get(queue.name, 0) > services]
    if too_many:
        problems.append(
            f"{', '.join(too_many)} have more consumers than the {services} metadata services that answer: {_STRANGER}"
        )
    return problems


_STRANGER = (
    "a process that is stopped or cut off, or a program that is none of the fleet's, takes messages and does not "
    "answer them: find it with `rabbitmqctl list_consumers`, and end it"
)


def _called(figures: FleetFigures) -> Iterable[TargetFigures]:
    return (target for target in figures.targets if target.provider != LEASED_PROVIDER)

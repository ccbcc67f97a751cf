"""``quintain status``: services, targets, workers and budgets of the running fleet, once or until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import rich.table
import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from quintain.bus.connect import open_bus
from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.contracts.fleet_figures import FleetFigures
from quintain.errors import Unauthorized
from quintain.fleet.look import LOOK_SECONDS, FleetLook
from quintain.fleet.tables import NOTHING, Table, fleet_facts, fleet_tables
from quintain.rpc.requests import RpcClient
from quintain.runtime.concurrency import cancel_and_wait
from quintain.settings import Settings, environment, read_settings
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
from quintain_cli.running_fleet import fleet_broker_url, require_admin_token


def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the tables until Ctrl-C; once if standard output is no terminal.")
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0.1, max=300, help="Seconds before a second look, where one is missing.")
    ] = 1.0,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for the broker and the metadata service.")
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the figures, once, as JSON.")] = False,
) -> None:
    """Show the running services, the targets that they serve, and the budgets of open sessions.

    The gateway's page /fleet shows the same. Reads QUINTAIN_BROKER_URL and QUINTAIN_ADMIN_TOKEN. Exit codes: 0 no
    problem was found, or --watch was ended, 1 no metadata service or no worker answers, a target has no live worker, a
    queue has a consumer that does not answer, a worker is refused, clocks differ, or workers of a target have had
    different configurations for more than 10 minutes, 2 nobody could be asked.
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
    url, token = fleet_broker_url(settings), require_admin_token(settings)
    return await look_at_fleet(url, "status", token, wait_seconds=wait_seconds, timeout_seconds=timeout_seconds)


async def _show_until_stopped(settings: Settings, timeout_seconds: float) -> None:
    console, url, token = stdout_console(), fleet_broker_url(settings), require_admin_token(settings)
    async with (
        handle_stop_signals() as stop,
        _open_look(url, "status", token, timeout_seconds) as look,
    ):
        stopped = asyncio.create_task(stop.wait())
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while not stopped.done():
                looking = asyncio.create_task(take_look(look))
                await asyncio.wait([stopped, looking], return_when=asyncio.FIRST_COMPLETED)
                if looking.done():
                    max_rows = max(3, (console.height - 16) // 4)
                    figures = looking.result()
                    live.update(Group(*map(Text, _remarks(figures)), _drawn(figures, max_rows)), refresh=True)
                    await asyncio.wait([stopped], timeout=LOOK_SECONDS)
                else:
                    await cancel_and_wait(looking)


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
    """The warnings and problems, a line each."""
    kinds = (("warning", figures.warnings), ("problem", figures.problems))
    for kind, texts in kinds:
        for text in texts:
            yield f"{kind:8} {single_line(text)}"
    if not figures.problems:
        yield f"well     {figures.answering} services answer, and no target was found without a worker"


@contextlib.asynccontextmanager
async def _open_look(url: str, purpose: str, admin_token: str, timeout_seconds: float) -> AsyncIterator[FleetLook]:
    async with open_bus(url, purpose, timeout_seconds=timeout_seconds) as bus, RpcClient(bus) as rpc_client:
        yield FleetLook(Admin(AmqpTransport(rpc_client, admin_token), timeout_seconds=timeout_seconds))


async def take_look(look: FleetLook) -> FleetFigures:
    """Return the figures of a look; a token that is refused is a problem. Raises `BusError`."""
    try:
        return await look.take()
    except Unauthorized:
        return FleetFigures(problems=[_REFUSED])


_REFUSED = (
    "The fleet cannot be read: the metadata service refuses QUINTAIN_ADMIN_TOKEN: set it to the one that the service "
    "has"
)


async def look_at_fleet(
    url: str, purpose: str, admin_token: str, *, wait_seconds: float, timeout_seconds: float
) -> FleetFigures:
    """Return the figures of the fleet behind the broker at this URL; where something is missing, those a while later.

    Raises `BusError`.
    """
    async with _open_look(url, purpose, admin_token, timeout_seconds) as look:
        figures = await take_look(look)
        if figures.now and (figures.problems or figures.warnings):
            # One that has just started may consume its queues before its heartbeat is heard.
            await asyncio.sleep(wait_seconds)
            figures = await take_look(look)
    return figures

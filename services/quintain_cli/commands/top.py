"""``quintain top``: the Fleet page in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Annotated

import typer
from rich.live import Live

from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.errors import NoAnswer, Unauthorized
from quintain.monitor.fleet_figures import FleetFigures
from quintain.monitor.watch import FleetWatch
from quintain.rpc.client import RpcClient
from quintain.settings import Settings, environment, read_settings
from quintain_cli.console import EXIT_ERRORS, EXIT_OK, print_json, run_command, stdout_console
from quintain_cli.fleet import bootstrap
from quintain_cli.fleet.admin_client import fleet_broker_url
from quintain_cli.fleet.fleet_tables import fleet_tables
from quintain_cli.signals import handle_stop_signals
from quintain_cli.state_dir import require_admin_token

#: How often the terminal is drawn again, in seconds.
REDRAW_SECONDS = 0.5


def top(
    once: Annotated[bool, typer.Option("--once", help="Print the tables once, and exit.")] = False,
    wait: Annotated[
        float, typer.Option(min=0.1, max=300, help="Seconds to watch before --once and --json print.")
    ] = 2.0,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for the broker and the metadata service.")
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures once, as JSON.")] = False,
) -> None:
    """Watch targets, workers and budgets of the running fleet until Ctrl-C.

    Shows the figures of the gateway's page /fleet. Where standard output is no terminal, it prints once. Reads
    QUINTAIN_BROKER_URL and QUINTAIN_ADMIN_TOKEN. Exit codes: 0 no problem was found, 1 a problem was, or no metadata
    service answers.
    """
    settings = read_settings(environment())
    is_once = once or as_json or not stdout_console().is_terminal
    figures = run_command(
        _look_once(settings, wait, timeout) if is_once else _look_until_stopped(settings, timeout), as_json=as_json
    )
    code = EXIT_ERRORS if figures.problems else EXIT_OK
    if as_json:
        print_json({"exitCode": code, **json.loads(figures.to_wire())})
    elif is_once:
        stdout_console().print(fleet_tables(figures))
    raise typer.Exit(code if is_once else EXIT_OK)


@contextlib.asynccontextmanager
async def _watching(settings: Settings, timeout_seconds: float) -> AsyncIterator[FleetWatch]:
    """Watch the fleet of the environment. Raises `Unauthorized`, `NoAnswer` or a `BusError`."""
    url, token = fleet_broker_url(settings), require_admin_token(settings)
    async with bootstrap.open_bus(url, "top", None, timeout_seconds=timeout_seconds) as bus:
        rpc_client = RpcClient(bus)
        await rpc_client.start()
        try:
            admin = Admin(AmqpTransport(rpc_client, token), timeout_seconds=timeout_seconds)
            async with FleetWatch(bus, rpc_client, admin).running() as watch:
                is_known = await watch.wait_known(timeout_seconds)
                if watch.is_refused:
                    raise Unauthorized
                if not is_known:
                    raise NoAnswer("No metadata service answers: start one with `quintain serve metadata`")
                yield watch
        finally:
            await rpc_client.close()


async def _look_once(settings: Settings, wait_seconds: float, timeout_seconds: float) -> FleetFigures:
    async with _watching(settings, timeout_seconds) as watch:
        await asyncio.sleep(wait_seconds)
        return watch.figures()


async def _look_until_stopped(settings: Settings, timeout_seconds: float) -> FleetFigures:
    console = stdout_console()
    async with handle_stop_signals() as stop, _watching(settings, timeout_seconds) as watch:
        stopped = asyncio.create_task(stop.wait())
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while not stopped.done():
                max_rows = max(3, (console.height - 12) // 3)
                live.update(fleet_tables(watch.figures(), max_rows=max_rows), refresh=True)
                await asyncio.wait([stopped], timeout=REDRAW_SECONDS)
        return watch.figures()

"""``quintain status``: lists the running services, the targets and which services serve them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Annotated

import typer

from quintain.bus.base import Bus
from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.contracts.discovery import ServiceCard, TargetList
from quintain.discovery.query import discover_services
from quintain.errors import Fault, NoAnswer
from quintain.rpc.client import RpcClient
from quintain.settings import Settings, environment, read_settings
from quintain_cli.console import EXIT_ERRORS, EXIT_OK, print_json, run_command
from quintain_cli.fleet import bootstrap
from quintain_cli.fleet.admin_client import fleet_broker_url
from quintain_cli.fleet.fleet_view import FleetView, build_fleet_view, print_fleet_view

#: The note that is printed without an admin token.
NO_ADMIN_NOTE = (
    "targets that are registered and that no worker serves cannot be shown: set QUINTAIN_ADMIN_TOKEN to that of the "
    "metadata service"
)


def status(
    wait: Annotated[
        float, typer.Option(min=0.1, max=60, help="Seconds to wait for services; twice that if one is missing.")
    ] = 1.0,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for the broker and the metadata service.")
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the report, as JSON.")] = False,
) -> None:
    """List the running services and the targets that they serve.

    Reads QUINTAIN_BROKER_URL, and QUINTAIN_ADMIN_TOKEN for the registered targets. Exit codes: 0 no problem was found,
    1 no metadata service answers, a target has no live worker, or its workers have had different configurations for
    more than 10 minutes.
    """
    view = run_command(_view_environment_fleet(read_settings(environment()), wait, timeout), as_json=as_json)
    code = EXIT_ERRORS if view.problems else EXIT_OK
    if as_json:
        print_json({"exitCode": code, **json.loads(view.to_wire())})
    else:
        print_fleet_view(view)
    raise typer.Exit(code)


async def _view_environment_fleet(settings: Settings, wait_seconds: float, timeout_seconds: float) -> FleetView:
    async with bootstrap.open_bus(fleet_broker_url(settings), "status", None, timeout_seconds=timeout_seconds) as bus:
        rpc_client = RpcClient(bus)
        await rpc_client.start()
        try:
            return await view_fleet(
                bus, rpc_client, settings.admin_token, wait_seconds=wait_seconds, timeout_seconds=timeout_seconds
            )
        finally:
            await rpc_client.close()


async def view_fleet(
    bus: Bus, rpc_client: RpcClient, admin_token: str | None, *, wait_seconds: float, timeout_seconds: float
) -> FleetView:
    """Return the services and targets of the fleet behind this bus.

    ``wait_seconds`` is how long service cards are collected; the registered targets are read if ``admin_token`` is
    given, with ``timeout_seconds``. Raises `BusError`.
    """
    targets_task: asyncio.Task[TargetList] | None = None
    if admin_token is not None:
        admin = Admin(AmqpTransport(rpc_client, admin_token), timeout_seconds=timeout_seconds)
        targets_task = asyncio.get_running_loop().create_task(admin.targets(), name="targets")

    def is_complete(cards: Sequence[ServiceCard]) -> bool:
        # Until the registered targets are known, none of them is missing.
        finished_task = (
            targets_task
            if targets_task is not None and targets_task.done() and targets_task.exception() is None
            else None
        )
        return not build_fleet_view(cards, None if finished_task is None else finished_task.result()).problems

    try:
        cards = await discover_services(bus, rpc_client, wait_seconds=wait_seconds, is_complete=is_complete)
        registered, problem = await _registered_targets(targets_task)
    finally:
        if targets_task is not None:
            targets_task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Fault, NoAnswer):
                await targets_task
    if targets_task is None:
        return build_fleet_view(cards, None, [NO_ADMIN_NOTE])
    view = build_fleet_view(cards, registered)
    return view if problem is None else view.model_copy(update={"problems": [*view.problems, problem]})


async def _registered_targets(targets_task: asyncio.Task[TargetList] | None) -> tuple[TargetList | None, str | None]:
    """Return the registered targets, or None with the reason why they cannot be read."""
    if targets_task is None:
        return None, None
    try:
        return await targets_task, None
    except (Fault, NoAnswer) as error:
        return None, f"the registered targets cannot be shown: {error.message}"

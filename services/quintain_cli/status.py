"""``quintain status``: every service that answers, every target and who serves it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Annotated

import typer

from quintain.bus.base import Bus
from quintain.caller import Caller
from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.discovery import discovered
from quintain.contracts.discovery import ServiceCard, TargetList
from quintain.errors import ConfigError, Fault, NoAnswer
from quintain.settings import MEMORY_URL, Settings, environment, read_settings
from quintain_cli import compose
from quintain_cli.census import Census, census_of
from quintain_cli.screen import ERRORS, OK, print_json, run_command
from quintain_cli.status_tables import show

#: What is said where nobody may ask the ledger.
WITHOUT_ADMIN = (
    "targets that are registered and that nobody serves cannot be shown: set QUINTAIN_ADMIN_TOKEN, as the metadata "
    "service has it"
)


def status(
    wait: Annotated[
        float, typer.Option(min=0.1, max=60, help="Seconds to listen; twice where somebody is missed.")
    ] = 1.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for the broker and the ledger to answer.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print only what was found, as JSON.")] = False,
) -> None:
    """Who is there, and who serves which target. Reads QUINTAIN_BROKER_URL and, for what is registered,
    QUINTAIN_ADMIN_TOKEN.

    Exit codes: 0 all is well, 1 no metadata service answers or a target has no live worker.
    """
    found = run_command(_look(read_settings(environment()), wait, timeout), as_json=as_json)
    code = ERRORS if found.problems else OK
    if as_json:
        print_json({"exitCode": code, **json.loads(found.to_wire())})
    else:
        show(found)
    raise typer.Exit(code)


async def _look(settings: Settings, wait: float, timeout: float) -> Census:
    async with compose.connected(broker_url(settings), "status", None, timeout_seconds=timeout) as bus:
        caller = Caller(bus)
        await caller.start()
        try:
            return await look(bus, caller, settings.admin_token, wait_seconds=wait, timeout_seconds=timeout)
        finally:
            await caller.close()


async def look(
    bus: Bus, caller: Caller, admin_token: str | None, *, wait_seconds: float, timeout_seconds: float
) -> Census:
    """The fleet behind this bus. Raises what the bus raises."""
    asking: asyncio.Task[TargetList] | None = None
    if admin_token is not None:
        admin = Admin(AmqpTransport(caller, admin_token), timeout_seconds=timeout_seconds)
        asking = asyncio.get_running_loop().create_task(admin.targets(), name="targets")

    def enough(cards: Sequence[ServiceCard]) -> bool:
        # What the ledger has not said yet cannot be missed yet.
        said = asking if asking is not None and asking.done() and asking.exception() is None else None
        return not census_of(cards, None if said is None else said.result()).problems

    try:
        cards = await discovered(bus, caller, wait_seconds=wait_seconds, enough=enough)
        registered, problem = await _registered(asking)
    finally:
        if asking is not None:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError, Fault, NoAnswer):
                await asking
    if asking is None:
        return census_of(cards, None, [WITHOUT_ADMIN])
    found = census_of(cards, registered)
    return found if problem is None else found.model_copy(update={"problems": [*found.problems, problem]})


async def _registered(asking: asyncio.Task[TargetList] | None) -> tuple[TargetList | None, str | None]:
    """What the ledger says, or why it says nothing."""
    if asking is None:
        return None, None
    try:
        return await asking, None
    except (Fault, NoAnswer) as silence:
        return None, f"the registered targets cannot be shown: {silence.message}"


def broker_url(settings: Settings) -> str:
    """The broker to ask over. Raises `ConfigError` where there is none that could be asked."""
    if settings.broker_url is None and settings.gateway_url is not None:
        raise ConfigError(
            "This asks over the broker, and only QUINTAIN_GATEWAY_URL is set: set QUINTAIN_BROKER_URL too, "
            f"or ask the gateway alone with `curl {settings.gateway_url.rstrip('/')}/health/ready`"
        )
    url = settings.require_broker_url()
    if url.startswith(MEMORY_URL):
        raise ConfigError(
            "A fleet on memory:// (`quintain up` without a broker) lives in one process, and no other can ask over its "
            "broker: ask its gateway with `curl http://127.0.0.1:8787/health/ready`, or set QUINTAIN_BROKER_URL to amqp://…"
        )
    return url

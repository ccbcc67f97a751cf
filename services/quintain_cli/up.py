"""``quintain up``: every service in one process, over memory or a broker, until SIGTERM."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from quintain.bus.base import Bus
from quintain.bus.broker_url import shown
from quintain.bus.memory import MemoryBroker
from quintain.client.connect import connect_admin
from quintain.config import Config
from quintain.contracts.metadata import OpenSession, SessionOpened
from quintain.contracts.token import digest
from quintain.secret_files import without_variables
from quintain.settings import MEMORY_URL, environment, read_settings
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_cli import compose
from quintain_cli.config import configuration
from quintain_cli.metadata_process import metadata_process
from quintain_cli.screen import out, print_json, run_command, set_up_logging, tell
from quintain_cli.state import kept_admin_token, ledger_url
from quintain_cli.stop import stopping
from quintain_gateway import Address, Limits
from quintain_metadata import running_metadata
from quintain_worker import Worker

DEFAULT_PORT = 8787


@dataclass(frozen=True, slots=True)
class Fleet:
    """Every service, running in this process."""

    broker_url: str
    gateway_url: str
    admin_token: str
    memory: MemoryBroker | None
    bus: Bus

    async def open(self, ask: OpenSession) -> SessionOpened:
        """Open a session in this fleet."""
        async with connect_admin(self.broker_url, self.admin_token, memory=self.memory) as admin:
            return await admin.open(ask)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """What a fleet is made of. ``ledger_url`` of ``sqlite://`` is a ledger in memory.

    ``apart``: where there is no broker, the metadata service has a process of its own. ``place`` is a file or a folder
    where one fleet at a time can be: the calls that the last one was running when it was killed need not wait for its
    lease.
    """

    config: Config
    env: Mapping[str, str]
    broker_url: str
    ledger_url: str
    admin_token: str
    port: int = 0
    limits: Limits = field(default_factory=Limits)
    apart: bool = False
    place: str | None = None
    timings: Timings = DEFAULT_TIMINGS


@contextlib.asynccontextmanager
async def fleet(plan: FleetPlan) -> AsyncIterator[Fleet]:
    """Run every service. Raises `ConfigError`, `BrokerUnavailable`."""
    memory = MemoryBroker() if plan.broker_url.startswith(MEMORY_URL) else None
    async with contextlib.AsyncExitStack() as stack:

        async def bus(name: str) -> Bus:
            return await stack.enter_async_context(compose.connected(plan.broker_url, name, memory))

        # What cannot start says so before anything else is up.
        plan.config.resolved(plan.env)
        if memory is not None and plan.apart:
            await stack.enter_async_context(_metadata_apart(plan, memory))
        else:
            ledger = await stack.enter_async_context(compose.ledger(plan.ledger_url))
            metadata = running_metadata(await bus("metadata"), ledger, plan.admin_token, timings=plan.timings)
            await stack.enter_async_context(metadata)
        await stack.enter_async_context(_worker(plan, await bus("worker")))
        door = await bus("gateway")
        url = await stack.enter_async_context(compose.gateway(door, Address(port=plan.port), plan.limits))
        yield Fleet(plan.broker_url, url, plan.admin_token, memory, door)
    if memory is not None:
        memory.close()


def _worker(plan: FleetPlan, bus: Bus) -> contextlib.AbstractAsyncContextManager[Worker]:
    # Of a place on this machine; a hash of it, because an id is shown to the whole fleet.
    sole_id = None if plan.place is None else f"sole-{digest(f'{socket.gethostname()} {plan.place}').hex()[:16]}"
    return compose.worker(bus, plan.config, plan.env, sole_id=sole_id, timings=plan.timings)


def _metadata_apart(plan: FleetPlan, memory: MemoryBroker) -> contextlib.AbstractAsyncContextManager[None]:
    # A provider's keys are the workers' alone.
    env = without_variables(plan.env, plan.config.references)
    return metadata_process(memory, plan.ledger_url, plan.admin_token, env)


def up(
    config: Annotated[Path | None, typer.Option(help="The configuration, else quintain.yaml found upwards.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The gateway's port on 127.0.0.1.")] = DEFAULT_PORT,
    max_calls: Annotated[int, typer.Option(min=0, help="The limit of the session it opens for you.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when it is ready.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Run every service in this process. Without QUINTAIN_BROKER_URL no broker is needed (memory://)."""
    set_up_logging(verbose=verbose)
    run_command(_up(config, port, max_calls, as_json=as_json), as_json=as_json)


async def _up(path: Path | None, port: int, max_calls: int, *, as_json: bool) -> None:
    settings = read_settings(environment())
    config = configuration(settings, path)
    plan = FleetPlan(
        config=config,
        env=environment(),
        broker_url=settings.broker_url or MEMORY_URL,
        ledger_url=ledger_url(settings),
        admin_token=kept_admin_token(settings),
        port=port,
        place=None if settings.broker_url or settings.ledger_url else str(settings.state_dir.absolute()),
        timings=settings.timings,
    )
    async with stopping() as stop, fleet(plan) as running:
        first = next(iter(config.targets))
        ask = OpenSession(default_target=first, max_calls=max_calls, label="opened by quintain up")
        opened = await running.open(ask)
        _greet(running, config, opened, as_json=as_json)
        await stop.wait()


def _greet(running: Fleet, config: Config, opened: SessionOpened, *, as_json: bool) -> None:
    facts = {
        "gatewayUrl": running.gateway_url,
        "brokerUrl": shown(running.broker_url),
        "targets": list(config.targets),
        "sessionId": opened.session_id,
        "token": opened.token,
    }
    if as_json:
        print_json(facts)
        return
    curl = (
        f"curl -s {running.gateway_url}/invoke -H 'Authorization: Bearer {opened.token}' "
        '-d \'{"question": "Hello?"}\''
    )
    out().print(f"gateway  {running.gateway_url}\nbroker   {facts['brokerUrl']}", soft_wrap=True, markup=False)
    out().print(f"targets  {', '.join(config.targets)}\ntry      {curl}", soft_wrap=True, markup=False)
    tell("stop     ctrl-c")

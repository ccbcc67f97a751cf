"""Runs all services in one process, for ``quintain up`` and for runs without a broker."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from quintain.bus.base import Bus
from quintain.bus.memory import MemoryBroker
from quintain.client.connect import connect_admin
from quintain.config import Config
from quintain.contracts.session import OpenSession, SessionOpened
from quintain.contracts.token import digest
from quintain.secret_files import without_variables
from quintain.settings import MEMORY_URL, read_content_settings
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_cli.fleet import bootstrap
from quintain_cli.fleet.metadata_process import run_metadata_process
from quintain_gateway import BindAddress, GatewayLimits
from quintain_metadata import open_content_store, running_metadata
from quintain_worker import Worker


@dataclass(frozen=True, slots=True)
class Fleet:
    """All services, running in this process, and how to connect to them."""

    broker_url: str
    gateway_url: str
    admin_token: str
    memory: MemoryBroker | None
    bus: Bus

    async def open_session(self, request: OpenSession) -> SessionOpened:
        """Open a session in this fleet."""
        async with connect_admin(self.broker_url, self.admin_token, memory=self.memory) as admin:
            return await admin.open(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The settings of a fleet. A ``ledger_url`` of ``sqlite://`` is a ledger in memory.

    ``has_metadata_process`` runs the metadata service in a process of its own if the broker is in memory.
    ``exclusive_path`` is a file or folder that only one fleet uses at a time: its worker then takes over the calls of
    the previous one at once, without waiting for its lease to expire.
    """

    config: Config
    env: Mapping[str, str]
    broker_url: str
    ledger_url: str
    admin_token: str
    port: int = 0
    allowed_hosts: tuple[str, ...] = ()
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    has_metadata_process: bool = False
    exclusive_path: str | None = None
    timings: Timings = DEFAULT_TIMINGS


@contextlib.asynccontextmanager
async def run_fleet(plan: FleetPlan) -> AsyncIterator[Fleet]:
    """Run all services of a plan. Raises `ConfigError` or `BrokerUnavailable`."""
    memory = MemoryBroker() if plan.broker_url.startswith(MEMORY_URL) else None
    async with contextlib.AsyncExitStack() as stack:

        async def open_named_bus(name: str) -> Bus:
            return await stack.enter_async_context(bootstrap.open_bus(plan.broker_url, name, memory))

        # Errors in the configuration are raised before any service is started.
        plan.config.resolve(plan.env)
        if memory is not None and plan.has_metadata_process:
            await stack.enter_async_context(_run_separate_metadata(plan, memory))
        else:
            ledger = await stack.enter_async_context(bootstrap.open_ledger_or_wait(plan.ledger_url))
            metadata = running_metadata(
                await open_named_bus("metadata"),
                ledger,
                plan.admin_token,
                content_store=open_content_store(read_content_settings(plan.env), ledger),
                timings=plan.timings,
                start_window_seconds=0,
            )
            await stack.enter_async_context(metadata)
        await stack.enter_async_context(_run_fleet_worker(plan, await open_named_bus("worker")))
        gateway_bus = await open_named_bus("gateway")
        address = BindAddress(port=plan.port, allowed_hosts=plan.allowed_hosts)
        gateway_url = await stack.enter_async_context(bootstrap.run_gateway(gateway_bus, address, plan.limits))
        yield Fleet(plan.broker_url, gateway_url, plan.admin_token, memory, gateway_bus)
    if memory is not None:
        memory.close()


def _run_fleet_worker(plan: FleetPlan, bus: Bus) -> contextlib.AbstractAsyncContextManager[Worker]:
    # The worker id is derived from machine and path; hashed, because ids are visible to the whole fleet.
    sole_id = (
        None
        if plan.exclusive_path is None
        else f"sole-{digest(f'{socket.gethostname()} {plan.exclusive_path}').hex()[:16]}"
    )
    return bootstrap.run_worker(bus, plan.config, plan.env, sole_id=sole_id, timings=plan.timings)


def _run_separate_metadata(plan: FleetPlan, memory: MemoryBroker) -> contextlib.AbstractAsyncContextManager[None]:
    # Only workers get the keys of providers.
    env = without_variables(plan.env, plan.config.variable_names)
    return run_metadata_process(memory, plan.ledger_url, plan.admin_token, env)

"""Starts all services of a fleet in this process, by one plan."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quintain.bus.base import Bus
from quintain.bus.connect import open_bus
from quintain.bus.memory import MemoryBroker
from quintain.client.client import connect_admin
from quintain.config.loader import Config
from quintain.contracts.credentials import digest
from quintain.contracts.session import OpenSession, SessionOpened
from quintain.runtime.lazy_module import LazyModule
from quintain.settings import MEMORY_URL
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_metadata.replicas import leading
from quintain_metadata.service import MetadataService, running_metadata
from quintain_metadata.store.opening import open_ledger_or_wait
from quintain_worker.worker import Worker, run_worker

if TYPE_CHECKING:
    from quintain_gateway import server as gateway
    from quintain_gateway import settings as gateway_settings
else:
    gateway = LazyModule("quintain_gateway.server")
    gateway_settings = LazyModule("quintain_gateway.settings")


@dataclass(frozen=True, slots=True)
class Fleet:
    """All services, running in this process, and how to connect to them; ``gateway_url`` is None without a gateway."""

    broker_url: str
    gateway_url: str | None
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

    ``has_gateway`` says whether HTTP clients are served, on ``port`` for ``allowed_hosts`` within ``limits``.
    ``exclusive_path`` is a file or folder that only one fleet uses at a time: its worker then takes over the calls of
    the previous one at once, without waiting for its lease to expire. ``retention_days`` is for how long sessions that
    have ended are kept; None is for ever.
    """

    config: Config
    env: Mapping[str, str]
    broker_url: str
    ledger_url: str
    admin_token: str
    has_gateway: bool = True
    port: int = 0
    allowed_hosts: tuple[str, ...] = ()
    limits: gateway_settings.GatewayLimits | None = None
    exclusive_path: str | None = None
    timings: Timings = DEFAULT_TIMINGS
    retention_days: int | None = None


@contextlib.asynccontextmanager
async def run_fleet(plan: FleetPlan) -> AsyncIterator[Fleet]:
    """Run all services of a plan. Raises `ConfigError` or `BrokerUnavailable`."""
    memory = MemoryBroker() if plan.broker_url.startswith(MEMORY_URL) else None
    async with contextlib.AsyncExitStack() as stack:

        async def open_named_bus(name: str) -> Bus:
            return await stack.enter_async_context(open_bus(plan.broker_url, name, memory))

        # Errors in the configuration are raised before any service is started.
        plan.config.resolve(plan.env)
        ledger = await stack.enter_async_context(open_ledger_or_wait(plan.ledger_url))
        metadata_bus = await open_named_bus("metadata")
        await stack.enter_async_context(leading(metadata_bus, ledger))
        metadata = running_metadata(
            metadata_bus,
            ledger,
            plan.admin_token,
            timings=plan.timings,
            start_window_seconds=0,
            retention_days=plan.retention_days,
        )
        service = await stack.enter_async_context(metadata)
        # One that may lose its lead sends no answer then, which its bus sees to.
        port = service if ledger.leadership is None else None
        await stack.enter_async_context(_run_fleet_worker(plan, await open_named_bus("worker"), port))
        client_bus, gateway_url = await open_named_bus("gateway"), None
        if plan.has_gateway:
            address = gateway_settings.BindAddress(port=plan.port, allowed_hosts=plan.allowed_hosts)
            limits = plan.limits or gateway_settings.GatewayLimits()
            serving = gateway.run_gateway(client_bus, address, limits, timings=plan.timings)
            gateway_url = await stack.enter_async_context(serving)
        yield Fleet(plan.broker_url, gateway_url, plan.admin_token, memory, client_bus)
    if memory is not None:
        memory.close()


def _run_fleet_worker(
    plan: FleetPlan, bus: Bus, ledger: MetadataService | None
) -> contextlib.AbstractAsyncContextManager[Worker]:
    # The worker id is derived from machine and path; hashed, because ids are visible to the whole fleet.
    sole_id = (
        None
        if plan.exclusive_path is None
        else f"sole-{digest(f'{socket.gethostname()} {plan.exclusive_path}').hex()[:16]}"
    )
    return run_worker(
        bus,
        plan.config,
        plan.env,
        sole_id=sole_id,
        agent_gateway=lambda urls: gateway.run_agent_gateway(bus, urls),
        timings=plan.timings,
        ledger=ledger,
    )

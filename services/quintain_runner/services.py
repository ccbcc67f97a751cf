"""Finds the configuration, and starts services from it in this process; each is an async context manager."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from quintain.bus.base import Bus
from quintain.bus.connect import open_bus
from quintain.bus.memory import MemoryBroker
from quintain.client.client import connect_admin
from quintain.config.fingerprint import target_fingerprints
from quintain.config.loader import Config
from quintain.config.prices import target_price
from quintain.config.quotas import card_of
from quintain.contracts.credentials import digest
from quintain.contracts.session import OpenSession, SessionOpened
from quintain.errors import BudgetUnavailable
from quintain.fleet.announce import announce
from quintain.settings import CONSUMER_TIMEOUT_SECONDS, MEMORY_URL, read_trace_settings, without_variables
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_gateway.server import run_gateway
from quintain_gateway.settings import BindAddress, GatewayLimits
from quintain_metadata.service import running_metadata
from quintain_metadata.store.base import Ledger
from quintain_metadata.store.opening import open_ledger
from quintain_worker.cost_bound import CostRule
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import ProviderContext
from quintain_worker.target import WorkerMetrics, WorkerTarget
from quintain_worker.worker import Worker

#: The delay before an unavailable ledger is tried again; it doubles from the first to the second, in seconds.
INITIAL_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.2, 5.0


@contextlib.asynccontextmanager
async def open_ledger_or_wait(url: str, *, on_waiting: Callable[[str], None] | None = None) -> AsyncIterator[Ledger]:
    """Open the ledger at this URL.

    With ``on_waiting``, an unavailable ledger is tried again until it can be opened; the function is called once with
    the reason. Raises `ConfigError` if the URL or the ledger cannot be used, and `BudgetUnavailable` if it is
    unavailable and there is no ``on_waiting``.
    """
    ledger = await (open_ledger(url) if on_waiting is None else _open_ledger_with_retry(url, on_waiting))
    try:
        yield ledger
    finally:
        await ledger.close()


async def _open_ledger_with_retry(url: str, on_waiting: Callable[[str], None]) -> Ledger:
    delay_seconds = INITIAL_RETRY_SECONDS
    while True:
        try:
            return await open_ledger(url)
        except BudgetUnavailable as error:
            if delay_seconds == INITIAL_RETRY_SECONDS:
                on_waiting(error.message)
        await asyncio.sleep(delay_seconds)
        delay_seconds = min(2 * delay_seconds, MAX_RETRY_SECONDS)


@contextlib.asynccontextmanager
async def run_worker(
    bus: Bus,
    config: Config,
    env: Mapping[str, str],
    *,
    grace_seconds: float = 30.0,
    metrics: WorkerMetrics | None = None,
    sole_id: str | None = None,
    drain: Callable[[], object] | None = None,
    timings: Timings = DEFAULT_TIMINGS,
    consumer_timeout_seconds: float = CONSUMER_TIMEOUT_SECONDS,
) -> AsyncIterator[Worker]:
    """Run a worker for the targets of a configuration.

    ``grace_seconds`` is how long running calls may take on exit. ``sole_id``, ``drain`` and
    ``consumer_timeout_seconds`` are passed to `Worker`.
    Raises `ConfigError`.
    """
    resolved = config.resolve(env)
    # Commands of the configuration get the worker's environment, without what gives access to the ledger.
    command_env = without_variables(env, {"QUINTAIN_ADMIN_TOKEN", "QUINTAIN_LEDGER_URL"})
    provider_context = ProviderContext(folder=config.folder, env=command_env, bus=bus, timings=timings)
    fingerprints = target_fingerprints(resolved.targets, config.folder, command_env)
    trace_content = read_trace_settings(env).include_content
    prices = {name: target_price(target) for name, target in resolved.targets.items()}
    rules = {name: CostRule.of_target(name, target, prices[name]) for name, target in resolved.targets.items()}
    cards = [card_of(name, one, config.quotas, rules[name].terms()) for name, one in resolved.targets.items()]
    served_targets = {
        name: WorkerTarget(
            name=name,
            provider=build_provider(name, target, provider_context),
            max_tries=target.max_tries,
            timeout_seconds=target.timeout_seconds,
            trace_content=trace_content,
            ignore_unsupported=target.unsupported == "ignore",
            fingerprint=fingerprints[name].first,
            read_fingerprint=fingerprints[name].read,
            price=prices[name],
            cost_rule=rules[name],
        )
        for name, target in resolved.targets.items()
    }
    worker = Worker(
        bus,
        served_targets,
        cards,
        metrics,
        sole_id=sole_id,
        on_drain=drain,
        timings=timings,
        consumer_timeout_seconds=consumer_timeout_seconds,
    )
    try:
        await worker.start()
        async with announce(bus, worker.card):
            yield worker
    finally:
        await worker.stop(grace_seconds)


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

    ``exclusive_path`` is a file or folder that only one fleet uses at a time: its worker then takes over the calls of
    the previous one at once, without waiting for its lease to expire. ``retention_days`` is for how long sessions that
    have ended are kept; None is for ever.
    """

    config: Config
    env: Mapping[str, str]
    broker_url: str
    ledger_url: str
    admin_token: str
    port: int = 0
    allowed_hosts: tuple[str, ...] = ()
    limits: GatewayLimits | None = None
    exclusive_path: str | None = None
    timings: Timings = DEFAULT_TIMINGS
    consumer_timeout_seconds: float = CONSUMER_TIMEOUT_SECONDS
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
        metadata = running_metadata(
            await open_named_bus("metadata"),
            ledger,
            plan.admin_token,
            timings=plan.timings,
            start_window_seconds=0,
            retention_days=plan.retention_days,
        )
        await stack.enter_async_context(metadata)
        await stack.enter_async_context(_run_fleet_worker(plan, await open_named_bus("worker")))
        gateway_bus = await open_named_bus("gateway")
        address = BindAddress(port=plan.port, allowed_hosts=plan.allowed_hosts)
        gateway_url = await stack.enter_async_context(run_gateway(gateway_bus, address, plan.limits or GatewayLimits()))
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
    return run_worker(
        bus,
        plan.config,
        plan.env,
        sole_id=sole_id,
        timings=plan.timings,
        consumer_timeout_seconds=plan.consumer_timeout_seconds,
    )

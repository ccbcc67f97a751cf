"""Composition roots: from settings to running services. Each service is closed by whoever opened it.

Each service's modules are imported when it is composed, so that a command pays for no other service.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

import quintain_gateway
import quintain_metadata
import quintain_worker
from quintain.bus.base import Bus
from quintain.bus.connect import connect_bus
from quintain.bus.memory import MemoryBroker
from quintain.caller import Caller
from quintain.clock import Clock
from quintain.config import Config, card_of
from quintain.contracts.discovery import ServiceCard
from quintain.errors import BudgetUnavailable
from quintain.operations.presence import Identity, present
from quintain.secret_files import without_variables
from quintain.settings import read_trace_settings
from quintain.timings import DEFAULT_TIMINGS, Timings

#: The pause before a ledger that does not answer yet is tried again grows from the one to the other, in seconds.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0


@contextlib.asynccontextmanager
async def connected(
    url: str, name: str, memory: MemoryBroker | None, *, timeout_seconds: float = 30.0
) -> AsyncIterator[Bus]:
    """A bus of this URL."""
    bus = await connect_bus(url, name, memory=memory, timeout_seconds=timeout_seconds)
    try:
        yield bus
    finally:
        await bus.close()


@contextlib.asynccontextmanager
async def ledger(url: str, *, waiting: Callable[[str], None] | None = None) -> AsyncIterator[quintain_metadata.Ledger]:
    """The ledger of this URL. One that does not answer yet is waited for where there is somebody to be told so, once.

    Raises `ConfigError` where waiting does not help, and `BudgetUnavailable` where nobody waits.
    """
    opened = await (quintain_metadata.open_ledger(url) if waiting is None else _opened_in_time(url, waiting))
    try:
        yield opened
    finally:
        await opened.close()


async def _opened_in_time(url: str, waiting: Callable[[str], None]) -> quintain_metadata.Ledger:
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await quintain_metadata.open_ledger(url)
        except BudgetUnavailable as unavailable:
            if pause == FIRST_PAUSE_SECONDS:
                waiting(unavailable.message)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


@contextlib.asynccontextmanager
async def worker(
    bus: Bus,
    config: Config,
    env: Mapping[str, str],
    *,
    only: Iterable[str] | None = None,
    grace_seconds: float = 30.0,
    metrics: quintain_worker.WorkerMetrics | None = None,
    sole_id: str | None = None,
    drain: Callable[[], object] | None = None,
    timings: Timings = DEFAULT_TIMINGS,
) -> AsyncIterator[quintain_worker.Worker]:
    """A running worker for the configuration's targets, or some of them; ``sole_id`` and ``drain`` as of `Worker`.

    Raises `ConfigError`.
    """
    resolved = config.resolved(env)
    names = list(resolved.targets) if only is None else list(only)
    # A command is the operator's own and gets the worker's environment, but for what opens the ledger.
    programs = without_variables(env, {"QUINTAIN_ADMIN_TOKEN", "QUINTAIN_LEDGER_URL"})
    surroundings = quintain_worker.Surroundings(folder=config.folder, env=programs, bus=bus, timings=timings)
    cards = {name: card_of(name, resolved.targets[name]) for name in names}
    content = read_trace_settings(env).content
    served = {
        name: quintain_worker.Served(
            name=name,
            provider=quintain_worker.build_provider(name, resolved.targets[name], surroundings),
            most_tries=resolved.targets[name].max_tries,
            timeout_seconds=resolved.targets[name].timeout_seconds,
            trace_content=content,
        )
        for name in names
    }
    service = quintain_worker.Worker(
        bus, served, list(cards.values()), metrics, sole_id=sole_id, drain=drain, timings=timings
    )
    try:
        await service.start()
        async with present(bus, service.card):
            yield service
    finally:
        await service.stop(grace_seconds)


@contextlib.asynccontextmanager
async def gateway(bus: Bus, address: quintain_gateway.Address, limits: quintain_gateway.Limits) -> AsyncIterator[str]:
    """A running gateway; yields its base URL. Raises `ConfigError`."""
    caller, metrics = Caller(bus), quintain_gateway.GatewayMetrics()
    metrics.watch(bus)
    identity = Identity("gateway")

    def card() -> ServiceCard:
        return identity.card(in_flight=caller.in_flight, broker_reconnects=bus.reconnects)

    metrics.show(card)
    await caller.start()
    try:
        door = quintain_gateway.Door(caller, Clock(), limits, metrics)
        try:
            async with (
                quintain_gateway.serving(quintain_gateway.app_of(door), address, limits, metrics) as url,
                present(bus, card),
            ):
                yield url
        finally:
            await door.close()
    finally:
        await caller.close()

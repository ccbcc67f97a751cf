"""Composition roots: from settings to running services. Each service is closed by whoever opened it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping

from quintain.bus.base import Bus
from quintain.bus.connect import connect_bus
from quintain.bus.memory import MemoryBroker
from quintain.caller import Caller
from quintain.clock import Clock
from quintain.config import Config, card_of
from quintain.contracts.token import digest
from quintain_gateway.app import Gateway
from quintain_gateway.server import serving
from quintain_metadata.open_ledger import open_ledger
from quintain_metadata.service import MetadataService
from quintain_worker.handler import Served
from quintain_worker.providers.build import Surroundings, build_provider
from quintain_worker.worker import Worker


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
async def metadata(bus: Bus, ledger_url: str, admin_token: str | None) -> AsyncIterator[MetadataService]:
    """A running metadata service on its ledger."""
    ledger = await open_ledger(ledger_url)
    service = MetadataService(bus, ledger, None if admin_token is None else digest(admin_token))
    try:
        await service.start()
        yield service
    finally:
        await service.stop()
        await ledger.close()


@contextlib.asynccontextmanager
async def worker(
    bus: Bus, config: Config, env: Mapping[str, str], *, only: Iterable[str] | None = None, grace_seconds: float = 30.0
) -> AsyncIterator[Worker]:
    """A running worker for the configuration's targets, or some of them. Raises `ConfigError`."""
    resolved = config.resolved(env)
    names = list(resolved.targets) if only is None else list(only)
    # A command is the operator's own and gets the worker's environment, but for what opens the ledger.
    programs = {
        name: value for name, value in env.items() if name not in {"QUINTAIN_ADMIN_TOKEN", "QUINTAIN_LEDGER_URL"}
    }
    surroundings = Surroundings(folder=config.folder, env=programs)
    served = {
        name: Served(
            name=name,
            provider=build_provider(name, resolved.targets[name], surroundings),
            most_tries=resolved.targets[name].max_tries,
            timeout_seconds=resolved.targets[name].timeout_seconds,
        )
        for name in names
    }
    service = Worker(bus, served, [card_of(name, resolved.targets[name]) for name in names])
    try:
        await service.start()
        yield service
    finally:
        await service.stop(grace_seconds)


@contextlib.asynccontextmanager
async def gateway(bus: Bus, *, port: int = 0) -> AsyncIterator[str]:
    """A running gateway on loopback; yields its base URL."""
    caller = Caller(bus, user="gateway")
    await caller.start()
    try:
        async with serving(Gateway(caller, Clock()).app(), port=port) as url:
            yield url
    finally:
        await caller.close()

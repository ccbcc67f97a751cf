"""Where a run's calls are made: in its own process, by a fleet over RabbitMQ, or behind a gateway over HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from quintain.bus.memory import MemoryBroker
from quintain.config import load_config
from quintain.timings import DEFAULT_TIMINGS
from quintain_gateway import BindAddress, GatewayLimits, run_gateway
from quintain_metadata import running_metadata
from quintain_runner import services
from support.changing_evaluation import ChangingEvaluation

ADMIN_TOKEN = "the admin token of a test"


class Placement(Protocol):
    """Services, or none, that the command finds by its environment."""

    @property
    def env(self) -> dict[str, str]:
        """The variables that name the fleet."""

    async def serve_changes(self) -> None:
        """Bring what changed in the configuration and its files to the workers."""

    async def lose_ledger(self) -> None:
        """Start over with an empty ledger."""


@dataclass
class LocalPlacement:
    """Everything runs in the process of the run, and the ledger is in its results folder."""

    world: ChangingEvaluation
    env: dict[str, str] = field(default_factory=dict)

    async def serve_changes(self) -> None:
        pass

    async def lose_ledger(self) -> None:
        for path in self.world.output.glob("ledger.sqlite3*"):
            path.unlink()


class FleetPlacement:
    """A metadata service and a worker on a broker, each restarted where a test says so."""

    def __init__(self, world: ChangingEvaluation, broker_url: str, memory: MemoryBroker | None) -> None:
        self._world, self._url, self._memory = world, broker_url, memory
        self.env: dict[str, str] = {"QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        self._ledgers = 0
        self._metadata, self._worker = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()

    async def start(self) -> None:
        await self._start_metadata()
        await self._start_worker()

    async def stop(self) -> None:
        await self._worker.aclose()
        await self._metadata.aclose()

    async def serve_changes(self) -> None:
        await self._worker.aclose()
        await self._start_worker()

    async def lose_ledger(self) -> None:
        await self.stop()
        self._ledgers += 1
        await self.start()

    async def _start_metadata(self) -> None:
        url = f"sqlite://{self._world.folder / f'ledger-{self._ledgers}.sqlite3'}"
        ledger = await self._metadata.enter_async_context(services.open_ledger_or_wait(url))
        bus = await self._metadata.enter_async_context(services.open_bus(self._url, "metadata", self._memory))
        await self._metadata.enter_async_context(running_metadata(bus, ledger, ADMIN_TOKEN, timings=DEFAULT_TIMINGS))

    async def _start_worker(self) -> None:
        bus = await self._worker.enter_async_context(services.open_bus(self._url, "worker", self._memory))
        config = load_config(self._world.folder / "quintain.yaml")
        await self._worker.enter_async_context(services.run_worker(bus, config, self._world.env))


@contextlib.asynccontextmanager
async def fleet_placement(world: ChangingEvaluation, broker_url: str) -> AsyncIterator[FleetPlacement]:
    """A fleet on this broker, which the run reaches over AMQP."""
    placement = FleetPlacement(world, broker_url, None)
    placement.env["QUINTAIN_BROKER_URL"] = broker_url
    await placement.start()
    try:
        yield placement
    finally:
        await placement.stop()


@contextlib.asynccontextmanager
async def gateway_placement(world: ChangingEvaluation) -> AsyncIterator[FleetPlacement]:
    """A fleet behind a gateway, which the run reaches over HTTP alone."""
    memory = MemoryBroker()
    placement = FleetPlacement(world, "memory://", memory)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(memory.close)
        await placement.start()
        stack.push_async_callback(placement.stop)
        bus = await stack.enter_async_context(services.open_bus("memory://", "gateway", memory))
        url = await stack.enter_async_context(run_gateway(bus, BindAddress(), GatewayLimits()))
        placement.env["QUINTAIN_GATEWAY_URL"] = url
        yield placement

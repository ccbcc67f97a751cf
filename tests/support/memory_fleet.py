"""A whole fleet in the test's own process, over the memory transport unless a broker is named: real services."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from quintain.client.client import Client, connect
from quintain.config.loader import load_config
from quintain.contracts.session import OpenSession, SessionOpened
from quintain_gateway.settings import GatewayLimits
from quintain_runner.services import Fleet, FleetPlan, run_fleet

ADMIN_TOKEN = "the admin token of a test"


@dataclass(frozen=True)
class MemoryFleet:
    running: Fleet

    @property
    def gateway_url(self) -> str:
        return self.running.gateway_url

    async def open_session(self, default_target: str, max_calls: int = 50, **options: object) -> SessionOpened:
        fields = {"default_target": default_target, "max_calls": max_calls, **options}
        return await self.running.open_session(OpenSession.model_validate(fields))

    @contextlib.asynccontextmanager
    async def client(self, default_target: str, max_calls: int = 50, **options: object) -> AsyncIterator[Client]:
        async with self.client_of(await self.open_session(default_target, max_calls, **options)) as client:
            yield client

    @contextlib.asynccontextmanager
    async def client_of(self, session: SessionOpened) -> AsyncIterator[Client]:
        async with connect(self.running.broker_url, session.token, memory=self.running.memory) as client:
            yield client


@contextlib.asynccontextmanager
async def memory_fleet(
    folder: Path,
    config: str,
    env: dict[str, str] | None = None,
    *,
    broker_url: str = "memory://",
    limits: GatewayLimits | None = None,
) -> AsyncIterator[MemoryFleet]:
    path = folder / "quintain.yaml"
    path.write_text(config)
    plan = FleetPlan(
        config=load_config(path),
        env=env or {},
        broker_url=broker_url,
        ledger_url="sqlite://",
        admin_token=ADMIN_TOKEN,
        limits=limits or GatewayLimits(),
    )
    async with run_fleet(plan) as running:
        yield MemoryFleet(running)

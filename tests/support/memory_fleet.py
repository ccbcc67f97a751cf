"""A whole fleet in the test's own process, over the memory transport unless a broker is named: real services."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from quintain.client.client import Client
from quintain.client.connect import connect
from quintain.config import load_config
from quintain.contracts.metadata import OpenSession, SessionOpened
from quintain_cli.up import Fleet, FleetPlan, fleet
from quintain_gateway.limits import Limits

ADMIN_TOKEN = "the admin token of a test"


@dataclass(frozen=True)
class MemoryFleet:
    running: Fleet

    @property
    def gateway_url(self) -> str:
        return self.running.gateway_url

    async def open(self, default_target: str, max_calls: int = 50, **more: object) -> SessionOpened:
        ask = {"default_target": default_target, "max_calls": max_calls, **more}
        return await self.running.open(OpenSession.model_validate(ask))

    @contextlib.asynccontextmanager
    async def client(self, default_target: str, max_calls: int = 50, **more: object) -> AsyncIterator[Client]:
        session = await self.open(default_target, max_calls, **more)
        async with connect(self.running.broker_url, session.token, memory=self.running.memory) as client:
            yield client


@contextlib.asynccontextmanager
async def memory_fleet(
    folder: Path,
    config: str,
    env: dict[str, str] | None = None,
    *,
    broker_url: str = "memory://",
    limits: Limits | None = None,
) -> AsyncIterator[MemoryFleet]:
    path = folder / "quintain.yaml"
    path.write_text(config)
    plan = FleetPlan(
        config=load_config(path),
        env=env or {},
        broker_url=broker_url,
        ledger_url="sqlite://",
        admin_token=ADMIN_TOKEN,
        limits=limits or Limits(),
    )
    async with fleet(plan) as running:
        yield MemoryFleet(running)

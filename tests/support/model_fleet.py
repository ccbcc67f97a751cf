"""A whole fleet with targets of every manner, some of them models behind a scripted server; and workers that come and
go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from quintain.bus.connect import open_bus
from quintain.config.loader import load_config
from quintain_gateway.settings import GatewayLimits
from quintain_worker.worker import run_worker
from support.memory_fleet import MemoryFleet, memory_fleet
from support.model_server import ModelServer, model_server
from support.process_fleet import delete_protocol_queues

TARGETS = """
targets:
  echo: {provider: mock}
  fixed:
    provider: mock
    response: "A fixed answer"
    token_usage: {input: 10, output: 5}
    price: {input_per_million: 1, output_per_million: 2}
  mute: {provider: command, command: [printf, "no usage"]}
  silent: {provider: mock, response: "", price: {per_call: 0.01}}
  slow: {provider: mock, delay_ms: 2000}
  words: {provider: mock, response: "one two three four five", chunk_delay_ms: 100}
  endless: {provider: mock, response: "one two three four five", chunk_delay_ms: 10000}
  broken: {provider: mock, fail_rate: 1, max_tries: 1}
  model: {provider: openai, model: served, base_url: "{url}/v1"}
  limited: {provider: openai, model: served, base_url: "{url}/limited/v1"}
  claude: {provider: anthropic, model: served, base_url: "{url}"}
"""


@dataclass(frozen=True)
class ModelFleet:
    """``provider`` is the server behind the targets model, claude and limited; whoever is told there to slow down keeps
    the whole target waiting, which is what limited is for."""

    fleet: MemoryFleet
    provider: ModelServer
    folder: Path

    @property
    def url(self) -> str:
        return self.fleet.gateway_url

    async def token(self, max_calls: int = 50, **more: object) -> str:
        """A new session's, with echo as its default."""
        return (await self.fleet.open_session("echo", max_calls, **more)).token

    @contextlib.asynccontextmanager
    async def worker(self, targets: str) -> AsyncIterator[None]:
        """One more worker, with these targets: they stay registered when it is gone."""
        path = self.folder / "more.yaml"
        path.write_text(targets)
        running = self.fleet.running
        async with (
            open_bus(running.broker_url, "another worker", running.memory) as bus,
            run_worker(bus, load_config(path), {}, grace_seconds=5),
        ):
            yield


@contextlib.asynccontextmanager
async def model_fleet(
    folder: Path,
    *,
    broker_url: str = "memory://",
    limits: GatewayLimits | None = None,
    more: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
) -> AsyncIterator[ModelFleet]:
    """The fleet; ``more`` are the names of targets that other workers will bring, ``env`` is its environment."""
    async with model_server() as provider:
        config = TARGETS.replace("{url}", provider.url)
        names = [*yaml.safe_load(config)["targets"], *more]
        over_rabbit = not broker_url.startswith("memory")
        if over_rabbit:
            await asyncio.to_thread(delete_protocol_queues, broker_url, names)
        async with memory_fleet(folder, config, env, broker_url=broker_url, limits=limits) as fleet:
            yield ModelFleet(fleet, provider, folder)
        if over_rabbit:
            await asyncio.to_thread(delete_protocol_queues, broker_url, names)

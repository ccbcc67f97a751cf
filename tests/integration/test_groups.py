"""Calls in groups, through real services: each by itself, and no slot idle while a call waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from quintain.client.client import connect
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import TargetCard
from quintain_worker.providers.provider import OnText, ProviderAnswer
from quintain_worker.target import WorkerTarget
from quintain_worker.worker import Worker
from support.metadata_service import RunningMetadataService, run_metadata_service


class SteadyProvider:
    """Takes a moment for each answer, and counts."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.answered = self.running = self.most_running = 0

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(self._seconds)
        self.running -= 1
        self.answered += 1
        return ProviderAnswer(text="fine")

    async def close(self) -> None:
        """It has nothing to close."""


@pytest.fixture
async def metadata() -> AsyncIterator[RunningMetadataService]:
    async with run_metadata_service() as alone:
        yield alone


@pytest.mark.parametrize(("slots", "calls"), [(8, 320), (32, 640)])
async def test_slow_calls_are_spread_over_all_slots_of_all_workers(
    metadata: RunningMetadataService, slots: int, calls: int
) -> None:
    """As long as no worker runs more than 1.1 times its share of the calls, and none more than its slots at a time,
    they take at most 1.1 times as long as the ideal, whatever the machine is doing."""
    providers = [SteadyProvider(0.2) for _ in range(4)]
    card = TargetCard(name="a", provider="mock", max_concurrency=4 * slots, worker_concurrency=slots)
    session = await metadata.ledger_driver.open_session(default_target="a", max_calls=calls)
    async with AsyncExitStack() as stack:
        for provider in providers:
            bus = metadata.memory.connect()
            worker = Worker(bus, {"a": WorkerTarget(name="a", provider=provider)}, [card])
            await worker.start()
            stack.push_async_callback(bus.close)
            stack.push_async_callback(worker.stop, 1)
        client = await stack.enter_async_context(connect("memory://", session.token, memory=metadata.memory))
        await asyncio.gather(*(client.invoke(f"{number}", target="a") for number in range(calls)))
        assert [provider.most_running for provider in providers] == [slots] * 4
        assert max(provider.answered for provider in providers) <= 1.1 * calls / 4

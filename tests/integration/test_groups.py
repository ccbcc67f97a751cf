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
from support.metadata_service import Metadata, run_metadata_service
from support.waiting import wait_until


class HeldProvider:
    """Holds each answer until all that it holds are released, and counts."""

    def __init__(self) -> None:
        self._held: list[asyncio.Future[None]] = []
        self.answered = self.most_running = 0

    @property
    def running(self) -> int:
        return len(self._held)

    def release(self) -> None:
        self.answered += self.running
        for each in self._held:
            each.set_result(None)
        self._held.clear()

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        self._held.append(asyncio.get_running_loop().create_future())
        self.most_running = max(self.most_running, self.running)
        await self._held[-1]
        return ProviderAnswer(text="fine")

    async def close(self) -> None:
        """It has nothing to close."""


@pytest.fixture
async def metadata() -> AsyncIterator[Metadata]:
    async with run_metadata_service() as alone:
        yield alone


@pytest.mark.parametrize(("slots", "calls"), [(8, 320), (32, 640)])
async def test_slow_calls_are_spread_over_all_slots_of_all_workers(metadata: Metadata, slots: int, calls: int) -> None:
    """As long as calls wait, every slot of every worker runs one; and no worker runs more than 1.1 times its share of
    all calls. So they take at most 1.1 times as long as the ideal."""
    providers = [HeldProvider() for _ in range(4)]
    card = TargetCard(name="a", provider="mock", max_concurrency=4 * slots, worker_concurrency=slots)
    session = await metadata.driver.open_session(default_target="a", max_calls=calls)
    async with AsyncExitStack() as stack:
        for provider in providers:
            bus = metadata.memory.connect()
            worker = Worker(bus, {"a": WorkerTarget(name="a", provider=provider)}, [card])
            await worker.start()
            stack.push_async_callback(bus.close)
            stack.push_async_callback(worker.stop, 1)
        client = await stack.enter_async_context(connect("memory://", session.token, memory=metadata.memory))
        calling = asyncio.gather(*(client.invoke(f"{number}", target="a") for number in range(calls)))
        while sum(provider.answered for provider in providers) < calls - 4 * slots:
            await wait_until(lambda: all(provider.running == slots for provider in providers))
            for provider in providers:
                provider.release()
        while not calling.done():  # of the last calls a worker may hold some that wait for its own slots
            for provider in providers:
                provider.release()
            await asyncio.sleep(0)
        await calling
        assert [provider.most_running for provider in providers] == [slots] * 4
        assert max(provider.answered for provider in providers) <= 1.1 * calls / 4

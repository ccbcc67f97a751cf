"""A worker at work against a scripted ledger: its providers, and what its callers are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from quintain.bus.base import PUBLISH_TIMEOUT_SECONDS, Envelope
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.config.prices import Price
from quintain.contracts.invoke import FaultReply, InvokeRequest, Result, TokenUsage
from quintain.contracts.ledger import TargetCard
from quintain.contracts.quota import QuotaCard
from quintain.errors import BrokerUnavailable
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import Exchange, target_queue
from quintain_worker.providers.provider import OnText, Provider, ProviderAnswer
from quintain_worker.streaming import PROGRESS_SECONDS
from quintain_worker.target import WorkerTarget
from quintain_worker.worker import Worker
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, next_item


class GatedProvider:
    """A provider that answers when it is let: it keeps what it was asked."""

    def __init__(self, answer: ProviderAnswer | None = None) -> None:
        self.outcome: ProviderAnswer | Exception = answer or ProviderAnswer(
            text="yes", token_usage=TokenUsage(input=1, output=2)
        )
        self.requests: asyncio.Queue[InvokeRequest] = asyncio.Queue()
        self.open = asyncio.Event()
        self.open.set()
        self.closed = False

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        self.requests.put_nowait(request)
        # Not `wait_for`: in Python 3.11 it may swallow a cancellation.
        async with asyncio.timeout(timeout_seconds):
            await self.open.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def close(self) -> None:
        self.closed = True


class FlakyBus(MemoryBus):
    """A connection over which the evaluators' replies cannot be published while it is ``unavailable``."""

    unavailable = False

    async def publish(
        self, exchange: Exchange, key: str, envelope: Envelope, *, timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        if self.unavailable and key.startswith("evaluator."):
            raise BrokerUnavailable("not confirmed")
        await super().publish(exchange, key, envelope, timeout_seconds=timeout_seconds)


@contextlib.asynccontextmanager
async def running_worker(
    ledger: FakeLedgerService,
    *providers: Provider,
    max_concurrency: int = 10,
    worker_concurrency: int | None = None,
    max_tries: int = 1,
    progress_seconds: float = PROGRESS_SECONDS,
    drain: Callable[[], object] | None = None,
    timings: Timings = DEFAULT_TIMINGS,
    quota: QuotaCard | None = None,
    price: Price | None = None,
) -> AsyncIterator[tuple[Worker, FlakyBus]]:
    """A worker that serves these providers as targets a, b, …, stopped at the end."""
    bus = FlakyBus(ledger.memory)
    names = "abc"[: len(providers)]
    served = {
        name: WorkerTarget(
            name=name, provider=provider, max_tries=max_tries, progress_seconds=progress_seconds, price=price
        )
        for name, provider in zip(names, providers, strict=True)
    }
    limits = {"max_concurrency": max_concurrency, "worker_concurrency": worker_concurrency}
    cards = [TargetCard(name=name, provider="mock", quota=quota, **limits) for name in names]
    worker = Worker(bus, served, cards, on_drain=drain, timings=timings)
    await worker.start()
    try:
        yield worker, bus
    finally:
        await worker.stop(grace_seconds=0)
        await bus.close()


async def next_result(evaluator: FakeEvaluator) -> Result:
    reply = await next_item(evaluator.replies)
    assert reply.type == "result", reply.body
    return Result.from_wire(reply.body)


async def next_fault(evaluator: FakeEvaluator) -> FaultReply:
    reply = await next_item(evaluator.replies)
    assert reply.type == "fault", reply.body
    return FaultReply.from_wire(reply.body)


def has_unacknowledged(memory: MemoryBroker, target: str = "a") -> bool:
    """Whether the worker of this target, which takes one call at a time, still holds one."""
    return not any(consumer.has_capacity for consumer in memory.queue(target_queue(target).name).consumers)


async def wait_acknowledged(memory: MemoryBroker) -> None:
    async with asyncio.timeout(5):
        while has_unacknowledged(memory):
            await asyncio.sleep(0)

"""A worker at work against a scripted ledger: its providers, and what its callers are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from quintain.bus.base import PUBLISH_TIMEOUT_SECONDS, Envelope
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.contracts.invoke import FaultReply, InvokeRequest, Result, TokenUsage
from quintain.contracts.ledger import TargetCard
from quintain.errors import BrokerUnavailable
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import Exchange, target_queue
from quintain_worker.handler import Served
from quintain_worker.interim import PROGRESS_SECONDS
from quintain_worker.port import Answer, Heard, Provider
from quintain_worker.worker import Worker
from support.ledger_stand_in import Evaluator, LedgerStandIn, soon


class Gate:
    """A provider that answers when it is let: it keeps what it was asked."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.says: Answer | Exception = answer or Answer(text="yes", token_usage=TokenUsage(input=1, output=2))
        self.asked: asyncio.Queue[InvokeRequest] = asyncio.Queue()
        self.open = asyncio.Event()
        self.open.set()
        self.closed = False

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        self.asked.put_nowait(request)
        # Not `wait_for`: in Python 3.11 it may swallow a cancellation.
        async with asyncio.timeout(timeout_seconds):
            await self.open.wait()
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    async def close(self) -> None:
        self.closed = True


class Patchy(MemoryBus):
    """A connection over which the evaluators' replies cannot be published while it is ``away``."""

    away = False

    async def publish(
        self, exchange: Exchange, key: str, envelope: Envelope, *, timeout: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        if self.away and key.startswith("evaluator."):
            raise BrokerUnavailable("not confirmed")
        await super().publish(exchange, key, envelope, timeout=timeout)


@contextlib.asynccontextmanager
async def working(
    ledger: LedgerStandIn,
    *providers: Provider,
    at_once: int = 10,
    most_tries: int = 1,
    progress_seconds: float = PROGRESS_SECONDS,
    drain: Callable[[], object] | None = None,
    timings: Timings = DEFAULT_TIMINGS,
) -> AsyncIterator[tuple[Worker, Patchy]]:
    """A worker that serves these providers as targets a, b, …, stopped at the end."""
    bus = Patchy(ledger.memory)
    names = "abc"[: len(providers)]
    served = {
        name: Served(name=name, provider=provider, most_tries=most_tries, progress_seconds=progress_seconds)
        for name, provider in zip(names, providers, strict=True)
    }
    cards = [TargetCard(name=name, provider="mock", max_concurrency=at_once) for name in names]
    worker = Worker(bus, served, cards, drain=drain, timings=timings)
    await worker.start()
    try:
        yield worker, bus
    finally:
        await worker.stop(grace_seconds=0)
        await bus.close()


async def result_for(evaluator: Evaluator) -> Result:
    reply = await soon(evaluator.replies)
    assert reply.type == "result", reply.body
    return Result.from_wire(reply.body)


async def fault_for(evaluator: Evaluator) -> FaultReply:
    reply = await soon(evaluator.replies)
    assert reply.type == "fault", reply.body
    return FaultReply.from_wire(reply.body)


def unacknowledged(memory: MemoryBroker, target: str = "a") -> bool:
    """Whether the worker of this target, which takes one call at a time, still holds one."""
    return not any(taker.free for taker in memory.queue(target_queue(target).name).takers)


async def acknowledged(memory: MemoryBroker) -> None:
    async with asyncio.timeout(5):
        while unacknowledged(memory):
            await asyncio.sleep(0)

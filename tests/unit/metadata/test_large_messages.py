"""A flood of the largest messages that a broker passes on: few are in memory at once, and none is parsed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quintain.bus.base import Consumer, Envelope, Handler
from quintain.bus.memory import MemoryBus
from quintain.contracts.message import CLIENT_QUEUE_PREFETCH, MAX_BODY_BYTES, MAX_OPERATION_BYTES
from quintain.errors import PayloadTooLarge, Unauthorized
from quintain.topology import DEAD, DEAD_QUEUE, INVOKE, METADATA, METADATA_QUEUE, UNROUTED_QUEUE, Exchange, Queue
from support.metadata_service import ADMIN_TOKEN, run_metadata_service

MIB = 1024 * 1024


async def test_few_messages_of_each_queue_that_clients_write_to_are_in_memory_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefetches: dict[str, int] = {}
    consume = MemoryBus.consume

    async def note(bus: MemoryBus, queue: Queue, handler: Handler, *, prefetch: int, **options: Any) -> Consumer:
        prefetches[queue.name] = prefetch
        return await consume(bus, queue, handler, prefetch=prefetch, **options)

    monkeypatch.setattr(MemoryBus, "consume", note)
    async with run_metadata_service():
        for queue in (METADATA_QUEUE, UNROUTED_QUEUE, DEAD_QUEUE):
            assert prefetches[queue.name] * MAX_BODY_BYTES <= 128 * MIB


async def test_a_large_body_is_refused_before_it_is_parsed() -> None:
    async with run_metadata_service() as metadata:
        session = await metadata.driver.open_session()
        for token in (None, session.token, ADMIN_TOKEN):
            with pytest.raises(PayloadTooLarge):
                await metadata.call_operation("open", token, b"\xff" * (MAX_OPERATION_BYTES + 1))
        with pytest.raises(Unauthorized):
            await metadata.invoke(None, b"\xff" * MAX_BODY_BYTES)
        with pytest.raises(PayloadTooLarge):
            await metadata.invoke(session.token, b"\xff" * MAX_BODY_BYTES)


@pytest.mark.parametrize(("exchange", "key"), [(METADATA, "open"), (INVOKE, ""), (DEAD, "a")])
async def test_an_honest_caller_is_answered_beside_a_flood(exchange: Exchange, key: str) -> None:
    async with run_metadata_service() as metadata:
        session = await metadata.driver.open_session()
        body = b"\xff" * MAX_BODY_BYTES  # one object: only what the service does with it takes memory
        for _ in range(5 * CLIENT_QUEUE_PREFETCH):
            await metadata.bus.publish(
                exchange, key, Envelope(body=body, type="x", correlation_id="c", reply_to="gone")
            )
        async with asyncio.timeout(5):
            assert (await metadata.call_operation("info", session.token))["callCount"] == 0

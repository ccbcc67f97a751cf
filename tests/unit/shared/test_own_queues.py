"""Queues that one process alone consumes: opened once, opened again where that failed, and gone when closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import Delivery, Envelope
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.errors import BrokerUnavailable
from quintain.rpc.own_queues import OwnQueue
from quintain.topology import METADATA_TOPOLOGY, REPLY, Topology, reply_topology

TOPOLOGY = reply_topology("quintain.reply.guest.x", "guest.x")


class GatedBus(MemoryBus):
    """A bus whose declarations wait for the gate, or fail."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.gate = asyncio.Event()
        self.unavailable = False

    async def declare(self, topology: Topology, *, redeclare: bool = True) -> None:
        await self.gate.wait()
        if self.unavailable:
            raise BrokerUnavailable("the broker is away")
        await super().declare(topology, redeclare=redeclare)


@pytest.fixture
async def bus() -> AsyncIterator[GatedBus]:
    memory = MemoryBroker()
    bus = GatedBus(memory)
    bus.gate.set()
    await bus.declare(METADATA_TOPOLOGY)
    yield bus
    await bus.close()
    memory.close()


async def test_one_that_is_closed_while_it_is_opened_is_not_open_and_nobody_is_cancelled(bus: GatedBus) -> None:
    queue = OwnQueue(bus, TOPOLOGY, 10)
    bus.gate.clear()
    opening = [asyncio.ensure_future(queue.open_or_log()) for _ in range(2)]
    await asyncio.sleep(0)
    await queue.cancel()
    assert await asyncio.gather(*opening) == [False, False]
    bus.gate.set()
    assert not await queue.open()
    assert not queue.is_consumed


async def test_one_that_could_not_be_opened_is_opened_by_the_next_who_asks(bus: GatedBus) -> None:
    queue = OwnQueue(bus, TOPOLOGY, 10)
    bus.unavailable = True
    assert not await queue.open_or_log()
    with pytest.raises(BrokerUnavailable):
        await queue.open()
    bus.unavailable = False
    assert await queue.open()
    assert queue.is_consumed


async def test_messages_go_to_the_handler_that_was_set_last_and_those_before_it_nowhere(bus: GatedBus) -> None:
    queue, heard = OwnQueue(bus, TOPOLOGY, 1), asyncio.Queue[bytes]()
    queue.prepare()
    await queue.open()

    async def hear(delivery: Delivery) -> None:
        await delivery.ack()
        heard.put_nowait(delivery.body)

    await bus.publish(REPLY, queue.key, Envelope(body=b"before", type="x"))
    async with asyncio.timeout(5):
        while not all(consumer.has_capacity for consumer in bus._broker.queue("quintain.reply.guest.x").consumers):
            await asyncio.sleep(0)
    queue.handler = hear
    await bus.publish(REPLY, queue.key, Envelope(body=b"after", type="x"))
    assert await heard.get() == b"after"
    await queue.close()
    assert "quintain.reply.guest.x" not in bus._broker._queues

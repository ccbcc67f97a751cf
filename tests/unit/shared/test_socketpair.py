"""A pipe's own cases: what it carries, and what is left when the process at either end has gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from quintain.bus.base import Delivery, Envelope, Handler
from quintain.bus.memory import MemoryBroker
from quintain.bus.socketpair import Frame, FrameKind, SocketpairBroker, SocketpairBus, read_frame
from quintain.errors import BrokerUnavailable, BusError
from quintain.topology import Binding, Exchange, Queue, Topology

EXCHANGE = Exchange("words", "direct")
QUEUE = Queue("words", "quorum")
TOPOLOGY = Topology((EXCHANGE,), (QUEUE,), (Binding(EXCHANGE, QUEUE, "words"),))


@dataclass
class SocketpairUnderTest:
    """Both ends of a pipe, and the broker at one of them."""

    broker: MemoryBroker
    bus: SocketpairBus
    client_socket: socket.socket
    server_task: asyncio.Task[None]

    async def publish(self, body: bytes) -> None:
        await self.bus.publish(EXCHANGE, "words", Envelope(body=body, type="word"), timeout_seconds=5)


@pytest.fixture
async def socketpair() -> AsyncIterator[SocketpairUnderTest]:
    broker = MemoryBroker()
    near, far = socket.socketpair()
    serving = asyncio.create_task(SocketpairBroker(broker.connect(), *await asyncio.open_connection(sock=near)).serve())
    bus = await SocketpairBus.from_socket(far)
    await bus.declare(TOPOLOGY)
    yield SocketpairUnderTest(broker, bus, far, serving)
    await bus.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    broker.close()


def queueing_handler(got: asyncio.Queue[Delivery], *, settle: bool = True) -> Handler:
    async def handler(delivery: Delivery) -> None:
        if settle:
            await delivery.ack()
        got.put_nowait(delivery)

    return handler


async def next_delivery(got: asyncio.Queue[Delivery]) -> Delivery:
    async with asyncio.timeout(5):
        return await got.get()


async def test_a_body_of_megabytes_arrives_whole(socketpair: SocketpairUnderTest) -> None:
    got: asyncio.Queue[Delivery] = asyncio.Queue()
    body = bytes(range(256)) * (16 * 1024)
    await socketpair.bus.consume(QUEUE, queueing_handler(got), prefetch=1)
    await socketpair.publish(body)
    assert (await next_delivery(got)).body == body


async def test_where_the_broker_has_gone_nobody_waits(socketpair: SocketpairUnderTest) -> None:
    got: asyncio.Queue[Delivery] = asyncio.Queue()
    consumer = await socketpair.bus.consume(QUEUE, queueing_handler(got, settle=False), prefetch=1)
    await socketpair.publish(b"taken")
    taken = await next_delivery(got)
    asked = asyncio.create_task(socketpair.publish(b"pending"))
    socketpair.server_task.cancel()
    async with asyncio.timeout(5):
        await socketpair.bus.wait_disconnected()
        # Nobody knows whether it got there; that it waits for ever is what must not be.
        with contextlib.suppress(BrokerUnavailable):
            await asked
        with pytest.raises(BrokerUnavailable, match="has disconnected"):
            await socketpair.publish(b"late")
        await taken.ack()
        assert not socketpair.bus.connected
        assert not consumer.active
        assert await consumer.drain(5)


async def test_what_a_process_had_taken_when_it_died_goes_to_another(socketpair: SocketpairUnderTest) -> None:
    got, again = asyncio.Queue[Delivery](), asyncio.Queue[Delivery]()
    await socketpair.bus.consume(QUEUE, queueing_handler(got, settle=False), prefetch=2)
    await socketpair.publish(b"one")
    await socketpair.publish(b"two")
    await next_delivery(got)
    await next_delivery(got)
    socketpair.client_socket.shutdown(socket.SHUT_RDWR)  # as the kernel does with what a killed process had open
    await socketpair.server_task
    await socketpair.broker.connect().consume(QUEUE, queueing_handler(again), prefetch=2)
    assert [(one.body, one.redelivered) for one in (await next_delivery(again), await next_delivery(again))] == [
        (b"one", True),
        (b"two", True),
    ]


async def test_an_answer_that_nobody_waits_for_disturbs_no_other(socketpair: SocketpairUnderTest) -> None:
    for _ in range(20):
        asked = asyncio.create_task(socketpair.publish(b"x"))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
    with pytest.raises(BusError, match="no exchange"):
        await socketpair.bus.publish(Exchange("nowhere", "direct"), "k", Envelope(body=b"", type="word"))
    await socketpair.publish(b"still")


async def test_half_a_frame_is_none() -> None:
    whole = Frame(FrameKind.PUBLISH, {"number": 1}, b"body").encode()
    for length in range(len(whole)):
        reader = asyncio.StreamReader()
        reader.feed_data(whole[:length])
        reader.feed_eof()
        assert await read_frame(reader) is None
    reader = asyncio.StreamReader()
    reader.feed_data(whole)
    assert await read_frame(reader) == Frame(FrameKind.PUBLISH, {"number": 1}, b"body")


@pytest.mark.parametrize("turns", range(8))
async def test_when_the_process_is_killed_no_consumer_of_it_is_left(turns: int) -> None:
    memory, got = MemoryBroker(), asyncio.Queue[Delivery]()
    near, far = socket.socketpair()
    broker = SocketpairBroker(memory.connect(), *await asyncio.open_connection(sock=near))
    serving = asyncio.create_task(broker.serve())
    bus = await SocketpairBus.from_socket(far)
    await bus.declare(TOPOLOGY)
    for _ in range(3):
        await bus.consume(QUEUE, queueing_handler(got, settle=False), prefetch=2)
    for body in (b"1", b"2", b"3"):
        memory.publish(EXCHANGE.name, "words", Envelope(body=body, type="word"))
    far.shutdown(socket.SHUT_RDWR)  # as the end of its process does
    for _ in range(turns):
        await asyncio.sleep(0)
    broker.disconnect()
    async with asyncio.timeout(5):
        await serving
    assert not memory.queue(QUEUE.name).consumers
    assert sorted(message.envelope.body for message in memory.queue(QUEUE.name).ready) == [b"1", b"2", b"3"]
    await bus.close()
    memory.close()

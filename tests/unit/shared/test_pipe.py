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
from quintain.bus.pipe import PipeBus
from quintain.bus.pipe_broker import PipeBroker
from quintain.bus.pipe_frames import Frame, Kind, read_frame
from quintain.errors import BrokerUnavailable, BusError
from quintain.topology import Binding, Exchange, Queue, Topology

EXCHANGE = Exchange("words", "direct")
QUEUE = Queue("words", "quorum")
TOPOLOGY = Topology((EXCHANGE,), (QUEUE,), (Binding(EXCHANGE, QUEUE, "words"),))


@dataclass
class Pipe:
    """Both ends of a pipe, and the broker at one of them."""

    broker: MemoryBroker
    bus: PipeBus
    far: socket.socket
    serving: asyncio.Task[None]

    async def publish(self, body: bytes) -> None:
        await self.bus.publish(EXCHANGE, "words", Envelope(body=body, type="word"), timeout=5)


@pytest.fixture
async def pipe() -> AsyncIterator[Pipe]:
    broker = MemoryBroker()
    near, far = socket.socketpair()
    serving = asyncio.create_task(PipeBroker(broker.connect(), *await asyncio.open_connection(sock=near)).serve())
    bus = await PipeBus.over(far)
    await bus.declare(TOPOLOGY)
    yield Pipe(broker, bus, far, serving)
    await bus.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    broker.close()


def into(got: asyncio.Queue[Delivery], *, settle: bool = True) -> Handler:
    async def handler(delivery: Delivery) -> None:
        if settle:
            await delivery.ack()
        got.put_nowait(delivery)

    return handler


async def next_of(got: asyncio.Queue[Delivery]) -> Delivery:
    async with asyncio.timeout(5):
        return await got.get()


async def test_a_body_of_megabytes_arrives_whole(pipe: Pipe) -> None:
    got: asyncio.Queue[Delivery] = asyncio.Queue()
    body = bytes(range(256)) * (16 * 1024)
    await pipe.bus.consume(QUEUE, into(got), prefetch=1)
    await pipe.publish(body)
    assert (await next_of(got)).body == body


async def test_where_the_broker_has_gone_nobody_waits(pipe: Pipe) -> None:
    got: asyncio.Queue[Delivery] = asyncio.Queue()
    consumer = await pipe.bus.consume(QUEUE, into(got, settle=False), prefetch=1)
    await pipe.publish(b"taken")
    taken = await next_of(got)
    asked = asyncio.create_task(pipe.publish(b"pending"))
    pipe.serving.cancel()
    async with asyncio.timeout(5):
        await pipe.bus.wait_gone()
        # Nobody knows whether it got there; that it waits for ever is what must not be.
        with contextlib.suppress(BrokerUnavailable):
            await asked
        with pytest.raises(BrokerUnavailable, match="has gone"):
            await pipe.publish(b"late")
        await taken.ack()
        assert not pipe.bus.connected
        assert not consumer.live
        assert await consumer.drain(5)


async def test_what_a_process_had_taken_when_it_died_goes_to_another(pipe: Pipe) -> None:
    got, again = asyncio.Queue[Delivery](), asyncio.Queue[Delivery]()
    await pipe.bus.consume(QUEUE, into(got, settle=False), prefetch=2)
    await pipe.publish(b"one")
    await pipe.publish(b"two")
    await next_of(got)
    await next_of(got)
    pipe.far.shutdown(socket.SHUT_RDWR)  # as the kernel does with what a killed process had open
    await pipe.serving
    await pipe.broker.connect().consume(QUEUE, into(again), prefetch=2)
    assert [(one.body, one.redelivered) for one in (await next_of(again), await next_of(again))] == [
        (b"one", True),
        (b"two", True),
    ]


async def test_an_answer_that_nobody_waits_for_disturbs_no_other(pipe: Pipe) -> None:
    for _ in range(20):
        asked = asyncio.create_task(pipe.publish(b"x"))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
    with pytest.raises(BusError, match="no exchange"):
        await pipe.bus.publish(Exchange("nowhere", "direct"), "k", Envelope(body=b"", type="word"))
    await pipe.publish(b"still")


async def test_half_a_frame_is_none() -> None:
    whole = Frame(Kind.PUBLISH, {"number": 1}, b"body").encoded()
    for length in range(len(whole)):
        reader = asyncio.StreamReader()
        reader.feed_data(whole[:length])
        reader.feed_eof()
        assert await read_frame(reader) is None
    reader = asyncio.StreamReader()
    reader.feed_data(whole)
    assert await read_frame(reader) == Frame(Kind.PUBLISH, {"number": 1}, b"body")

"""Looking at the poison queue loses nothing and wears nothing out, whoever looks, dies or adds in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from conformance.transports import Transport
from quintain import dlq
from quintain.bus.base import Bus, Delivery, Envelope
from quintain.dlq import (
    DEAD_LETTERED_AT_HEADER,
    POISON_ID_HEADER,
    REASON_HEADER,
    PoisonMessage,
    PoisonQueue,
    to_poison_message,
)
from quintain.errors import BusError
from quintain.topology import POISON, POISON_QUEUE, POISON_TOPOLOGY

#: More often than a quorum queue of RabbitMQ 4 returns a message where no limit is set (20), and than a service takes a
#: message of any other queue (100).
PASSES = 110


@pytest.fixture
async def bus(transport: Transport) -> AsyncIterator[Bus]:
    """A bus before an empty poison queue, which is this test's alone."""
    bus = await transport.connect()
    await bus.declare(POISON_TOPOLOGY)
    await transport.delete_queue(POISON_QUEUE.name)
    await bus.declare(POISON_TOPOLOGY)
    yield bus
    await transport.delete_queue(POISON_QUEUE.name)


async def publish_poison(bus: Bus, *names: str, **headers: str | int) -> None:
    """Messages as the metadata service keeps them; the body of each is its name."""
    for number, name in enumerate(names):
        known = {POISON_ID_HEADER: f"id-{name}", DEAD_LETTERED_AT_HEADER: 1000 + number, REASON_HEADER: "rejected"}
        envelope = Envelope(body=name.encode(), type="invoke", headers={**known, "x-note": "kept", **headers})
        await bus.publish(POISON, "sage", envelope)


async def drain_bodies(bus: Bus) -> list[str]:
    """Every body that is in the queue, doubles too: it is empty afterwards."""
    bodies: list[str] = []
    ended = asyncio.Event()

    async def on_delivery(delivery: Delivery) -> None:
        await delivery.ack()
        if delivery.type == "the end":
            ended.set()
        else:
            bodies.append(delivery.body.decode())

    await bus.publish(POISON, "", Envelope(body=b"", type="the end"))
    consumer = await bus.consume(POISON_QUEUE, on_delivery, prefetch=1)
    async with asyncio.timeout(20):
        await ended.wait()
    await consumer.drain(5)
    return bodies


async def test_an_empty_queue_is_told_at_once(bus: Bus) -> None:
    assert await PoisonQueue(bus).list() == []
    assert await PoisonQueue(bus).find("nothing") is None
    assert await PoisonQueue(bus).drop() == set()
    assert await drain_bodies(bus) == []


async def test_what_is_listed_is_what_was_kept_and_stays_as_it_was(bus: Bus) -> None:
    await publish_poison(bus, "a", "b", "c")
    for _ in range(2):
        listed = await PoisonQueue(bus).list()
        assert [(one.id, one.kept_ms) for one in listed] == [("id-a", 1000), ("id-b", 1001), ("id-c", 1002)]
        assert {(one.reason, one.routing_key, one.type, one.size_bytes, one.headers["x-note"]) for one in listed} == {
            ("rejected", "sage", "invoke", 1, "kept")
        }
    assert await drain_bodies(bus) == ["a", "b", "c"]


async def test_a_limit_and_one_message_read_no_more_and_lose_nothing(bus: Bus) -> None:
    await publish_poison(bus, "a", "b", "c")
    assert [one.id for one in await PoisonQueue(bus).list(2)] == ["id-a", "id-b"]
    found = await PoisonQueue(bus).find("id-b")
    assert found is not None
    assert (found[0].id, found[1]) == ("id-b", b"b")
    assert await PoisonQueue(bus).find("id-x") is None
    assert sorted(await drain_bodies(bus)) == ["a", "b", "c"]


async def test_a_message_without_an_id_gets_one_that_lasts(bus: Bus) -> None:
    await bus.publish(POISON, "sage", Envelope(body=b"old", type="invoke", headers={"x-note": "no id"}))
    (listed,) = await PoisonQueue(bus).list()
    found = await PoisonQueue(bus).find(listed.id)
    assert found is not None
    assert (found[1], await drain_bodies(bus)) == (b"old", ["old"])


async def test_looking_a_hundred_times_wears_nothing_out(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlq, "MORE_SECONDS", 0.0)
    await publish_poison(bus, "a", "b")
    for _ in range(PASSES):
        assert [one.id for one in await PoisonQueue(bus).list()] == ["id-a", "id-b"]
    assert await drain_bodies(bus) == ["a", "b"]


async def test_what_is_dropped_is_gone_and_nothing_else(bus: Bus) -> None:
    await publish_poison(bus, "a", "b", "c")
    assert await PoisonQueue(bus).drop({"id-b", "id-x"}) == {"id-b"}
    assert [one.id for one in await PoisonQueue(bus).list()] == ["id-a", "id-c"]
    assert await PoisonQueue(bus).drop() == {"id-a", "id-c"}
    assert await drain_bodies(bus) == []


async def test_what_is_kept_while_somebody_looks_is_neither_lost_nor_waited_for(transport: Transport, bus: Bus) -> None:
    await publish_poison(bus, *(f"before-{n}" for n in range(20)))
    metadata = await transport.connect()
    names = [f"meanwhile-{n}" for n in range(50)]
    keeping = asyncio.get_running_loop().create_task(publish_poison(metadata, *names))
    async with asyncio.timeout(30):
        listed = {one.id for one in await PoisonQueue(bus).list()}
        await keeping
    assert {f"id-before-{n}" for n in range(20)} <= listed
    assert sorted(await drain_bodies(bus)) == sorted([*names, *(f"before-{n}" for n in range(20))])


async def test_of_two_who_look_at_once_each_sees_everything(transport: Transport, bus: Bus) -> None:
    names = [f"m{n}" for n in range(20)]
    await publish_poison(bus, *names)
    operators = [PoisonQueue(await transport.connect(), wait_seconds=30) for _ in range(3)]
    for listed in await asyncio.gather(*(operator.list() for operator in operators)):
        assert {one.id for one in listed} == {f"id-{name}" for name in names}
    assert sorted(await drain_bodies(bus)) == sorted(names)


async def test_another_reader_is_waited_for_and_then_reported(bus: Bus) -> None:
    await publish_poison(bus, "a")
    deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
    other = await bus.consume(POISON_QUEUE, deliveries.put, prefetch=1)
    held = await deliveries.get()
    with pytest.raises(BusError, match="Another command"):
        await PoisonQueue(bus, wait_seconds=0.3).list()
    listing = asyncio.create_task(PoisonQueue(bus).list())
    await asyncio.sleep(0.3)
    await held.requeue()
    await other.drain(0)
    assert [one.id for one in await listing] == ["id-a"]


async def test_a_connection_that_is_lost_while_somebody_reads_is_an_error_and_loses_nothing(
    transport: Transport, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish_poison(bus, "a", "b", "c")
    cut = await transport.connect()
    shown: list[str] = []

    def describe(delivery: Delivery) -> PoisonMessage:
        shown.append(delivery.body.decode())
        cutting.set()
        return to_poison_message(delivery)

    cutting = asyncio.Event()
    monkeypatch.setattr(dlq, "to_poison_message", describe)
    monkeypatch.setattr(dlq, "MORE_SECONDS", 3.0)
    reading = asyncio.create_task(PoisonQueue(cut).list())
    await cutting.wait()
    await transport.drop_connection(cut)
    with pytest.raises(BusError, match="connection was lost"):
        await reading
    monkeypatch.undo()
    assert [one.id for one in await PoisonQueue(bus).list()] == ["id-a", "id-b", "id-c"]
    assert await drain_bodies(bus) == ["a", "b", "c"]

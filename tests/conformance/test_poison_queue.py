"""Looking at the poison queue loses nothing and wears nothing out, whoever looks, dies or adds in between."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import pytest

from conformance.transports import Transport
from quintain.bus.base import Bus, Consumer, Delivery, Envelope, Handler
from quintain.contracts.dlq import COPY_NUMBER_HEADER, DEAD_LETTERED_AT_HEADER, POISON_ID_HEADER, REASON_HEADER
from quintain.dlq import lock as turn_module
from quintain.dlq import poison_queue as poison_module
from quintain.dlq.poison_queue import END_MARKER_TYPE, MAX_RETURNS, PoisonQueue
from quintain.errors import BusError
from quintain.topology import (
    POISON,
    POISON_LOCK,
    POISON_LOCK_QUEUE,
    POISON_LOCK_TOPOLOGY,
    POISON_QUEUE,
    POISON_TOPOLOGY,
    Binding,
    Exchange,
    Queue,
    Topology,
)

#: More often than a quorum queue of RabbitMQ 4 delivers a message that is given back.
PASSES = 30


class Killed(Exception):
    """The process died here."""


@dataclass
class InterferingBus:
    """A bus to which something happens at one of the copies it publishes: before it goes, or after its confirm."""

    bus: Bus
    copy_number: int
    interfere: Callable[[], Awaitable[None]]
    after_confirm: bool = True

    async def declare(self, topology: Topology) -> None:
        await self.bus.declare(topology)

    async def publish(self, exchange: Exchange, key: str, envelope: Envelope, *, timeout_seconds: float = 30.0) -> None:
        self.copy_number -= exchange is POISON and envelope.type != END_MARKER_TYPE
        now, self.copy_number = self.copy_number == 0, self.copy_number or -1
        if now and not self.after_confirm:
            await self.interfere()
        await self.bus.publish(exchange, key, envelope, timeout_seconds=timeout_seconds)
        if now and self.after_confirm:
            await self.interfere()

    async def consume(self, queue: Queue, handler: Handler, *, prefetch: int) -> Consumer:
        return await self.bus.consume(queue, handler, prefetch=prefetch)

    async def count_messages(self, queues: Sequence[Queue]) -> dict[str, int]:
        return await self.bus.count_messages(queues)

    async def close(self) -> None:
        await self.bus.close()


async def raise_killed() -> None:
    raise Killed


@pytest.fixture
async def bus(transport: Transport) -> AsyncIterator[Bus]:
    """A bus before an empty poison queue, which is this test's alone."""
    bus = await transport.connect()
    for topology in (POISON_TOPOLOGY, POISON_LOCK_TOPOLOGY):
        await bus.declare(topology)
        for queue in topology.queues:
            await transport.delete_queue(queue.name)
        await bus.declare(topology)
    yield bus
    for topology in (POISON_TOPOLOGY, POISON_LOCK_TOPOLOGY):
        for queue in topology.queues:
            await transport.delete_queue(queue.name)


async def publish_poison(bus: Bus, *names: str, **headers: str | int) -> None:
    """Messages as the metadata service keeps them; the body of each is its name."""
    for number, name in enumerate(names):
        known = {POISON_ID_HEADER: f"id-{name}", DEAD_LETTERED_AT_HEADER: 1000 + number, REASON_HEADER: "rejected"}
        envelope = Envelope(body=name.encode(), type="invoke", headers={**known, "x-note": "kept", **headers})
        await bus.publish(POISON, "sage", envelope)


async def leave_end_marker(bus: Bus) -> None:
    """Let the next look publish all messages again, as one does when a message was returned too often."""
    await bus.publish(POISON, "", Envelope(body=b"", type=END_MARKER_TYPE, correlation_id="a dead one's"))


async def drain_bodies(bus: Bus) -> list[str]:
    """Every body that is in the queue, doubles too: it is empty afterwards."""
    bodies: list[str] = []
    ended = asyncio.Event()

    async def on_delivery(delivery: Delivery) -> None:
        await delivery.ack()
        if delivery.type == "the end":
            ended.set()
        elif delivery.type != END_MARKER_TYPE:
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
    listed = await PoisonQueue(bus).list()
    assert [(one.id, one.kept_ms, one.reason) for one in listed] == [
        ("id-a", 1000, "rejected"),
        ("id-b", 1001, "rejected"),
        ("id-c", 1002, "rejected"),
    ]
    assert {(one.routing_key, one.type, one.size_bytes, one.headers["x-note"]) for one in listed} == {
        ("sage", "invoke", 1, "kept")
    }
    again = await PoisonQueue(bus).list()
    assert [one.id for one in again] == ["id-a", "id-b", "id-c"]
    assert [one.routing_key for one in again] == ["sage"] * 3
    assert await drain_bodies(bus) == ["a", "b", "c"]


async def test_looking_thirty_times_wears_nothing_out(bus: Bus) -> None:
    await publish_poison(bus, "a", "b")
    for _ in range(PASSES):
        assert [one.id for one in await PoisonQueue(bus).list()] == ["id-a", "id-b"]
    deliveries: list[bool] = []
    counts: list[int] = []

    async def take(delivery: Delivery) -> None:
        deliveries.append(delivery.redelivered)
        counts.append(int(str(delivery.headers.get("x-delivery-count") or 0)))

    consumer = await bus.consume(POISON_QUEUE, take, prefetch=10)
    async with asyncio.timeout(10):
        while len(deliveries) < 2:
            await asyncio.sleep(0.01)
    await consumer.drain(1)
    assert len(deliveries) == 2
    assert max(counts) <= MAX_RETURNS, "RabbitMQ 4 drops a message that is returned more than 20 times"


async def test_what_is_listed_is_not_published_again_and_a_limit_reads_no_more(bus: Bus) -> None:
    if not await bus.count_messages([POISON_QUEUE]):
        return  # without counts, all are published again, which other tests hold
    await publish_poison(bus, "a", "b", "c")
    looking = InterferingBus(bus, 1, raise_killed, after_confirm=False)
    assert [one.id for one in await PoisonQueue(looking).list(2)] == ["id-a", "id-b"]
    assert [one.id for one in await PoisonQueue(looking).list()] == ["id-a", "id-b", "id-c"]
    assert await PoisonQueue(looking).find("id-b") is not None
    assert await PoisonQueue(looking).drop({"id-a"}) == {"id-a"}
    assert looking.copy_number == 1
    assert await drain_bodies(bus) == ["b", "c"]


async def test_one_message_is_found_whole_and_stays(bus: Bus) -> None:
    await publish_poison(bus, "a", "b", "c")
    found = await PoisonQueue(bus).find("id-b")
    assert found is not None
    assert (found[0].id, found[1]) == ("id-b", b"b")
    assert await PoisonQueue(bus).find("id-x") is None
    assert await drain_bodies(bus) == ["a", "b", "c"]


async def test_what_is_dropped_is_gone_and_nothing_else(bus: Bus) -> None:
    await publish_poison(bus, "a", "b", "c")
    assert await PoisonQueue(bus).drop({"id-b", "id-x"}) == {"id-b"}
    assert [one.id for one in await PoisonQueue(bus).list()] == ["id-a", "id-c"]
    assert await PoisonQueue(bus).drop() == {"id-a", "id-c"}
    assert await drain_bodies(bus) == []


async def test_a_message_without_an_id_gets_one_that_lasts(bus: Bus) -> None:
    await bus.publish(POISON, "sage", Envelope(body=b"old", type="invoke", headers={"x-note": "no id"}))
    (listed,) = await PoisonQueue(bus).list()
    assert listed.id
    found = await PoisonQueue(bus).find(listed.id)
    assert found is not None
    assert found[1] == b"old"
    assert await drain_bodies(bus) == ["old"]


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


async def test_a_held_lock_is_waited_for_and_then_reported(bus: Bus) -> None:
    await publish_poison(bus, "a")
    await bus.publish(POISON_LOCK, "", Envelope(body=b"", type="turn", correlation_id="somebody's"))
    with pytest.raises(BusError, match="Another command"):
        await PoisonQueue(bus, wait_seconds=0.3).list()
    assert await drain_bodies(bus) == ["a"]


@pytest.mark.parametrize("confirmed", [False, True], ids=["before the copy", "after the copy"])
async def test_who_dies_in_the_middle_loses_nothing_and_the_next_one_drops_the_double(
    transport: Transport, bus: Bus, confirmed: bool
) -> None:
    await publish_poison(bus, "a", "b", "c")
    for at in (1, 2, 3):
        await leave_end_marker(bus)
        dying = await transport.connect()
        with pytest.raises(Killed):
            await PoisonQueue(InterferingBus(dying, at, raise_killed, confirmed)).list()
        await dying.close()
    assert [one.id for one in await PoisonQueue(bus).list()] == ["id-a", "id-b", "id-c"]
    assert sorted(await drain_bodies(bus)) == ["a", "b", "c"]


async def test_a_connection_cut_in_the_middle_loses_nothing(transport: Transport, bus: Bus) -> None:
    names = [f"m{n}" for n in range(20)]
    await publish_poison(bus, *names)
    await leave_end_marker(bus)
    cut = await transport.connect()
    troubled = InterferingBus(cut, 10, lambda: transport.drop_connection(cut))
    async with asyncio.timeout(40):
        listed = await PoisonQueue(troubled).list()
    assert troubled.copy_number < 0
    assert [one.id for one in listed] == [f"id-{name}" for name in names]
    assert [one.id for one in await PoisonQueue(bus, wait_seconds=30).list()] == [f"id-{name}" for name in names]
    assert sorted(await drain_bodies(bus)) == sorted(names)


async def test_even_without_turns_nothing_is_lost(
    transport: Transport, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a process that was frozen for longer than its turn does when it wakes up.
    @contextlib.asynccontextmanager
    async def no_turn(_bus: Bus, *, wait_seconds: float) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(poison_module, "exclusive_lock", no_turn)
    monkeypatch.setattr(poison_module, "PASS_TIMEOUT_SECONDS", 0.3)
    names = [f"m{n}" for n in range(4)]
    await publish_poison(bus, *names)
    buses = [await transport.connect() for _ in range(3)]
    for _ in range(5):
        await leave_end_marker(bus)
        await asyncio.gather(*(PoisonQueue(one).list() for one in buses), return_exceptions=True)
    monkeypatch.undo()
    assert {one.id for one in await PoisonQueue(bus).list()} == {f"id-{name}" for name in names}
    assert set(await drain_bodies(bus)) == set(names)


async def test_the_lock_of_a_killed_process_expires(
    transport: Transport, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await transport.delete_queue(POISON_LOCK_QUEUE.name)
    brief = dataclasses.replace(POISON_LOCK_QUEUE, message_ttl_ms=500)
    topology = dataclasses.replace(POISON_LOCK_TOPOLOGY, queues=(brief,), bindings=(Binding(POISON_LOCK, brief),))
    monkeypatch.setattr(turn_module, "POISON_LOCK_QUEUE", brief)
    monkeypatch.setattr(turn_module, "POISON_LOCK_TOPOLOGY", topology)
    await publish_poison(bus, "a")
    fresh = await transport.connect()  # it has not declared the queue that is gone
    await fresh.declare(topology)
    await fresh.publish(POISON_LOCK, "", Envelope(body=b"", type="turn", correlation_id="a dead one's"))
    assert [one.id for one in await PoisonQueue(fresh).list()] == ["id-a"]


async def test_what_a_dead_look_left_behind_is_taken_away_and_no_message_passes_for_it(bus: Bus) -> None:
    await bus.publish(POISON, "", Envelope(body=b"", type=END_MARKER_TYPE, correlation_id="a dead one's"))
    strange = Envelope(body=b"", type=END_MARKER_TYPE, headers={POISON_ID_HEADER: "id-strange"})
    await bus.publish(POISON, "sage", strange)
    assert [one.id for one in await PoisonQueue(bus).list()] == ["id-strange"]
    assert [one.id for one in await PoisonQueue(bus).list()] == ["id-strange"]


async def test_a_forged_copy_number_loses_nothing(bus: Bus) -> None:
    await publish_poison(bus, "a", **{COPY_NUMBER_HEADER: 2**62})
    await publish_poison(bus, "b", **{COPY_NUMBER_HEADER: -1})
    for _ in range(2):
        assert {one.id for one in await PoisonQueue(bus).list()} == {"id-a", "id-b"}
    assert sorted(await drain_bodies(bus)) == ["a", "b"]

"""Looking at the poison queue loses nothing and wears nothing out, whoever looks, dies or adds in between."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from conformance.transports import Transport
from quintain.bus.base import Bus, Consumer, Delivery, Envelope, Handler
from quintain.client import poison as poison_module
from quintain.client import turn as turn_module
from quintain.client.poison import END_TYPE, PoisonQueue
from quintain.contracts.poison import COPY_HEADER, KEPT_HEADER, POISON_ID_HEADER, REASON_HEADER
from quintain.errors import BusError
from quintain.topology import (
    POISON,
    POISON_QUEUE,
    POISON_TOPOLOGY,
    POISON_TURN,
    POISON_TURN_QUEUE,
    POISON_TURN_TOPOLOGY,
    Binding,
    Exchange,
    Queue,
    Topology,
)

#: More often than a quorum queue of RabbitMQ 4 delivers a message that is given back.
LOOKS = 30


class Killed(Exception):
    """The process died here."""


@dataclass
class TroubledBus:
    """A bus to which something happens at one of the copies it publishes: before it goes, or after its confirm."""

    bus: Bus
    at: int
    happens: Callable[[], Awaitable[None]]
    confirmed: bool = True

    async def declare(self, topology: Topology) -> None:
        await self.bus.declare(topology)

    async def publish(self, exchange: Exchange, key: str, envelope: Envelope, *, timeout: float = 30.0) -> None:
        self.at -= exchange is POISON and envelope.type != END_TYPE
        now, self.at = self.at == 0, self.at or -1
        if now and not self.confirmed:
            await self.happens()
        await self.bus.publish(exchange, key, envelope, timeout=timeout)
        if now and self.confirmed:
            await self.happens()

    async def consume(self, queue: Queue, handler: Handler, *, prefetch: int) -> Consumer:
        return await self.bus.consume(queue, handler, prefetch=prefetch)

    async def close(self) -> None:
        await self.bus.close()


async def dies() -> None:
    raise Killed


@pytest.fixture
async def bus(transport: Transport) -> AsyncIterator[Bus]:
    """A bus before an empty poison queue, which is this test's alone."""
    bus = await transport.connect()
    for topology in (POISON_TOPOLOGY, POISON_TURN_TOPOLOGY):
        await bus.declare(topology)
        for queue in topology.queues:
            await transport.delete_queue(queue.name)
        await bus.declare(topology)
    yield bus
    for topology in (POISON_TOPOLOGY, POISON_TURN_TOPOLOGY):
        for queue in topology.queues:
            await transport.delete_queue(queue.name)


async def keep(bus: Bus, *names: str, **headers: str | int) -> None:
    """Messages as the metadata service keeps them; the body of each is its name."""
    for number, name in enumerate(names):
        known = {POISON_ID_HEADER: f"id-{name}", KEPT_HEADER: 1000 + number, REASON_HEADER: "rejected"}
        envelope = Envelope(body=name.encode(), type="invoke", headers={**known, "x-note": "kept", **headers})
        await bus.publish(POISON, "sage", envelope)


async def held(bus: Bus) -> list[str]:
    """Every body that is in the queue, doubles too: it is empty afterwards."""
    bodies: list[str] = []
    ended = asyncio.Event()

    async def take(delivery: Delivery) -> None:
        await delivery.ack()
        if delivery.type == "the end":
            ended.set()
        elif delivery.type != END_TYPE:
            bodies.append(delivery.body.decode())

    await bus.publish(POISON, "", Envelope(body=b"", type="the end"))
    consumer = await bus.consume(POISON_QUEUE, take, prefetch=1)
    async with asyncio.timeout(20):
        await ended.wait()
    await consumer.drain(5)
    return bodies


async def test_an_empty_queue_is_told_at_once(bus: Bus) -> None:
    assert await PoisonQueue(bus).list() == []
    assert await PoisonQueue(bus).find("nothing") is None
    assert await PoisonQueue(bus).drop() == set()
    assert await held(bus) == []


async def test_what_is_listed_is_what_was_kept_and_stays_as_it_was(bus: Bus) -> None:
    await keep(bus, "a", "b", "c")
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
    assert await held(bus) == ["a", "b", "c"]


async def test_looking_thirty_times_wears_nothing_out(bus: Bus) -> None:
    await keep(bus, "a", "b")
    for _ in range(LOOKS):
        assert [one.id for one in await PoisonQueue(bus).list()] == ["id-a", "id-b"]
    deliveries: list[bool] = []
    counts: list[object] = []

    async def take(delivery: Delivery) -> None:
        deliveries.append(delivery.redelivered)
        counts.append(delivery.headers.get("x-delivery-count"))

    consumer = await bus.consume(POISON_QUEUE, take, prefetch=10)
    async with asyncio.timeout(10):
        while len(deliveries) < 2:
            await asyncio.sleep(0.01)
    await consumer.drain(1)
    assert deliveries == [False, False], "a look gave a message back"
    assert counts in ([None, None], [0, 0])


async def test_one_message_is_found_whole_and_stays(bus: Bus) -> None:
    await keep(bus, "a", "b", "c")
    found = await PoisonQueue(bus).find("id-b")
    assert found is not None
    assert (found[0].id, found[1]) == ("id-b", b"b")
    assert await PoisonQueue(bus).find("id-x") is None
    assert await held(bus) == ["a", "b", "c"]


async def test_what_is_dropped_is_gone_and_nothing_else(bus: Bus) -> None:
    await keep(bus, "a", "b", "c")
    assert await PoisonQueue(bus).drop({"id-b", "id-x"}) == {"id-b"}
    assert [one.id for one in await PoisonQueue(bus).list()] == ["id-a", "id-c"]
    assert await PoisonQueue(bus).drop() == {"id-a", "id-c"}
    assert await held(bus) == []


async def test_a_message_without_an_id_gets_one_that_lasts(bus: Bus) -> None:
    await bus.publish(POISON, "sage", Envelope(body=b"old", type="invoke", headers={"x-note": "no id"}))
    (listed,) = await PoisonQueue(bus).list()
    assert listed.id
    found = await PoisonQueue(bus).find(listed.id)
    assert found is not None
    assert found[1] == b"old"
    assert await held(bus) == ["old"]


async def test_what_is_kept_while_somebody_looks_is_neither_lost_nor_waited_for(transport: Transport, bus: Bus) -> None:
    await keep(bus, *(f"before-{n}" for n in range(20)))
    metadata = await transport.connect()
    names = [f"meanwhile-{n}" for n in range(50)]
    keeping = asyncio.get_running_loop().create_task(keep(metadata, *names))
    async with asyncio.timeout(30):
        listed = {one.id for one in await PoisonQueue(bus).list()}
        await keeping
    assert {f"id-before-{n}" for n in range(20)} <= listed
    assert sorted(await held(bus)) == sorted([*names, *(f"before-{n}" for n in range(20))])


async def test_of_two_who_look_at_once_each_sees_everything(transport: Transport, bus: Bus) -> None:
    names = [f"m{n}" for n in range(20)]
    await keep(bus, *names)
    operators = [PoisonQueue(await transport.connect(), wait_seconds=30) for _ in range(3)]
    for listed in await asyncio.gather(*(operator.list() for operator in operators)):
        assert {one.id for one in listed} == {f"id-{name}" for name in names}
    assert sorted(await held(bus)) == sorted(names)


async def test_a_turn_that_is_taken_is_waited_for_and_then_said(bus: Bus) -> None:
    await keep(bus, "a")
    await bus.publish(POISON_TURN, "", Envelope(body=b"", type="turn", correlation_id="somebody's"))
    with pytest.raises(BusError, match="Another command"):
        await PoisonQueue(bus, wait_seconds=0.3).list()
    assert await held(bus) == ["a"]


@pytest.mark.parametrize("confirmed", [False, True], ids=["before the copy", "after the copy"])
async def test_who_dies_in_the_middle_loses_nothing_and_the_next_one_drops_the_double(
    transport: Transport, bus: Bus, confirmed: bool
) -> None:
    await keep(bus, "a", "b", "c")
    for at in (1, 2, 3):
        dying = await transport.connect()
        with pytest.raises(Killed):
            await PoisonQueue(TroubledBus(dying, at, dies, confirmed)).list()
        await dying.close()
    assert [one.id for one in await PoisonQueue(bus).list()] == ["id-a", "id-b", "id-c"]
    assert sorted(await held(bus)) == ["a", "b", "c"]


async def test_a_connection_cut_in_the_middle_loses_nothing(transport: Transport, bus: Bus) -> None:
    names = [f"m{n}" for n in range(20)]
    await keep(bus, *names)
    cut = await transport.connect()
    troubled = TroubledBus(cut, 10, lambda: transport.cut(cut))
    async with asyncio.timeout(40):
        listed = await PoisonQueue(troubled).list()
    assert troubled.at < 0
    assert [one.id for one in listed] == [f"id-{name}" for name in names]
    assert [one.id for one in await PoisonQueue(bus, wait_seconds=30).list()] == [f"id-{name}" for name in names]
    assert sorted(await held(bus)) == sorted(names)


async def test_even_without_turns_nothing_is_lost(
    transport: Transport, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a process that was frozen for longer than its turn does when it wakes up.
    @contextlib.asynccontextmanager
    async def no_turn(_bus: Bus, *, wait_seconds: float) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(poison_module, "turn", no_turn)
    monkeypatch.setattr(poison_module, "ROUND_SECONDS", 0.3)
    names = [f"m{n}" for n in range(4)]
    await keep(bus, *names)
    buses = [await transport.connect() for _ in range(3)]
    for _ in range(5):
        await asyncio.gather(*(PoisonQueue(one).list() for one in buses), return_exceptions=True)
    monkeypatch.undo()
    assert {one.id for one in await PoisonQueue(bus).list()} == {f"id-{name}" for name in names}
    assert set(await held(bus)) == set(names)


async def test_the_turn_of_who_was_killed_lapses(
    transport: Transport, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await transport.delete_queue(POISON_TURN_QUEUE.name)
    brief = dataclasses.replace(POISON_TURN_QUEUE, message_ttl_ms=500)
    topology = dataclasses.replace(POISON_TURN_TOPOLOGY, queues=(brief,), bindings=(Binding(POISON_TURN, brief),))
    monkeypatch.setattr(turn_module, "POISON_TURN_QUEUE", brief)
    monkeypatch.setattr(turn_module, "POISON_TURN_TOPOLOGY", topology)
    await keep(bus, "a")
    fresh = await transport.connect()  # it has not declared the queue that is gone
    await fresh.declare(topology)
    await fresh.publish(POISON_TURN, "", Envelope(body=b"", type="turn", correlation_id="a dead one's"))
    assert [one.id for one in await PoisonQueue(fresh).list()] == ["id-a"]


async def test_what_a_dead_look_left_behind_is_taken_away_and_no_message_passes_for_it(bus: Bus) -> None:
    await bus.publish(POISON, "", Envelope(body=b"", type=END_TYPE, correlation_id="a dead one's"))
    strange = Envelope(body=b"", type=END_TYPE, headers={POISON_ID_HEADER: "id-strange"})
    await bus.publish(POISON, "sage", strange)
    assert [one.id for one in await PoisonQueue(bus).list()] == ["id-strange"]
    assert [one.id for one in await PoisonQueue(bus).list()] == ["id-strange"]


async def test_a_copys_number_that_a_stranger_wrote_harms_nothing(bus: Bus) -> None:
    await keep(bus, "a", **{COPY_HEADER: 2**62})
    await keep(bus, "b", **{COPY_HEADER: -1})
    for _ in range(2):
        assert {one.id for one in await PoisonQueue(bus).list()} == {"id-a", "id-b"}
    assert sorted(await held(bus)) == ["a", "b"]

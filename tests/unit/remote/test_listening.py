"""The controller's side of a run, on the line: what is to be heard goes out until it has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from quintain.bus.base import Bus, Delivery
from quintain.bus.memory import MemoryBroker
from quintain.contracts.hosted import RunHears, RunSays, Said, WireResponse
from quintain.remote.run import Listening
from quintain.timings import DEFAULT_TIMINGS
from quintain.topology import lease_topology

TOPOLOGY = lease_topology("lease")


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    broker = MemoryBroker()
    bus = broker.connect()
    yield bus
    await bus.close()
    broker.close()


class Host:
    """Whoever is told."""

    def __init__(self) -> None:
        self.heard: list[RunHears] = []

    async def listen(self, bus: Bus) -> None:
        await bus.declare(TOPOLOGY)
        await bus.consume(TOPOLOGY.queues[0], self._on_hears, prefetch=10)

    @property
    def answers(self) -> list[int]:
        return [answered.seq for message in self.heard for answered in message.answers]

    async def until_answered(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.answers) < count:
                await asyncio.sleep(0.01)

    async def _on_hears(self, delivery: Delivery) -> None:
        self.heard.append(RunHears.from_wire(delivery.body))
        await delivery.ack()


@pytest.fixture
async def listening(bus: Bus) -> AsyncIterator[Listening]:
    lease: Any = SimpleNamespace(
        bus=bus, key=TOPOLOGY.bindings[0].key, lease_id="lease", gone=False, heard=lambda: None, timings=DEFAULT_TIMINGS
    )
    arrived: list[Said] = []
    listening = Listening(lease, arrived.extend)
    listening.arrived = arrived  # type: ignore[attr-defined]
    yield listening
    lease.gone = True
    await listening.close()


async def test_a_response_that_could_not_be_sent_goes_later(bus: Bus, listening: Listening) -> None:
    listening.respond(1, WireResponse(kind="EventResponse"))  # the lease's queue is not there
    await asyncio.sleep(0.05)
    host = Host()
    await host.listen(bus)
    listening.respond(2, WireResponse(kind="EventResponse"))
    await host.until_answered(2)
    assert sorted(host.answers) == [1, 2]


async def test_responses_that_are_ready_together_travel_together(bus: Bus, listening: Listening) -> None:
    host = Host()
    await host.listen(bus)
    for number in range(20):
        listening.respond(number, WireResponse(kind="EventResponse"))
    await host.until_answered(20)
    assert len(host.heard) == 1


async def test_a_gap_is_asked_for_once_a_beat_tells_of_it(bus: Bus, listening: Listening) -> None:
    host = Host()
    await host.listen(bus)
    listening.take(RunSays(run_id="r", said=3, items=[Said(seq=2, what="end")]))
    assert listening.arrived == []  # type: ignore[attr-defined]
    listening.take(RunSays(run_id="r", said=3))
    async with asyncio.timeout(10):
        while not any(message.again for message in host.heard):
            await asyncio.sleep(0.01)
    listening.take(RunSays(run_id="r", said=3, items=[Said(seq=seq, what="end") for seq in (1, 2, 3)]))
    assert [said.seq for said in listening.arrived] == [1, 2, 3]  # type: ignore[attr-defined]


async def test_only_what_was_dealt_with_is_acknowledged(bus: Bus, listening: Listening) -> None:
    host = Host()
    await host.listen(bus)
    listening.take(RunSays(run_id="r", said=2, items=[Said(seq=1, what="end"), Said(seq=2, what="end")]))
    listening.dealt_with = 1
    async with asyncio.timeout(10):
        while not host.heard:
            await asyncio.sleep(0.01)
    assert host.heard[-1].heard == 1

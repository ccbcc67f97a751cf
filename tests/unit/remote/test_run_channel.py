"""The controller's side of a run, on the line: what is to be heard goes out until it has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.bus.memory import MemoryBroker
from quintain.contracts.remote_target import RunInput, RunItem, RunOutput, WireResponse
from quintain.errors import Unroutable
from quintain.remote.run_channel import RunChannel, RunOutputQueues
from quintain.timings import DEFAULT_TIMINGS
from quintain.topology import RUN, lease_topology
from support.waiting import wait_until

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
        self.messages: list[RunInput] = []

    async def listen(self, bus: Bus) -> None:
        await bus.declare(TOPOLOGY)
        await bus.consume(TOPOLOGY.queues[0], self._on_run_input, prefetch=10)

    @property
    def answer_numbers(self) -> list[int]:
        return [answered.seq for message in self.messages for answered in message.answers]

    async def until_answered(self, count: int) -> None:
        await wait_until(lambda: len(self.answer_numbers) >= count)

    async def _on_run_input(self, delivery: Delivery) -> None:
        self.messages.append(RunInput.from_wire(delivery.body))
        await delivery.ack()


@pytest.fixture
async def run_channel(bus: Bus) -> AsyncIterator[RunChannel]:
    lease: Any = SimpleNamespace(
        bus=bus,
        key=TOPOLOGY.bindings[0].key,
        lease_id="lease",
        ended=False,
        record_host_activity=lambda: None,
        timings=DEFAULT_TIMINGS,
    )
    arrived: list[RunItem] = []
    listening = RunChannel(lease, arrived.extend)
    listening.arrived = arrived  # type: ignore[attr-defined]
    yield listening
    lease.gone = True
    await listening.close()


async def test_a_response_that_could_not_be_sent_goes_later(bus: Bus, run_channel: RunChannel) -> None:
    run_channel.respond([(1, WireResponse(kind="EventResponse"))])  # the lease's queue is not there
    await asyncio.sleep(0.05)
    host = Host()
    await host.listen(bus)
    run_channel.respond([(2, WireResponse(kind="EventResponse"))])
    await host.until_answered(2)
    assert sorted(host.answer_numbers) == [1, 2]


async def test_responses_that_are_ready_together_travel_together(bus: Bus, run_channel: RunChannel) -> None:
    host = Host()
    await host.listen(bus)
    for number in range(20):
        run_channel.respond([(number, WireResponse(kind="EventResponse"))])
    await host.until_answered(20)
    assert len(host.messages) == 1


async def test_a_gap_is_asked_for_once_a_beat_tells_of_it(bus: Bus, run_channel: RunChannel) -> None:
    host = Host()
    await host.listen(bus)
    run_channel.on_output(RunOutput(run_id="r", said=3, items=[RunItem(seq=2, what="end")]))
    assert run_channel.arrived == []  # type: ignore[attr-defined]
    run_channel.on_output(RunOutput(run_id="r", said=3))
    await wait_until(lambda: any(message.again for message in host.messages))
    run_channel.on_output(RunOutput(run_id="r", said=3, items=[RunItem(seq=seq, what="end") for seq in (1, 2, 3)]))
    assert [said.seq for said in run_channel.arrived] == [1, 2, 3]  # type: ignore[attr-defined]


async def test_only_what_was_dealt_with_is_acknowledged(bus: Bus, run_channel: RunChannel) -> None:
    host = Host()
    await host.listen(bus)
    run_channel.on_output(RunOutput(run_id="r", said=2, items=[RunItem(seq=1, what="end"), RunItem(seq=2, what="end")]))
    run_channel.last_processed = 1
    await wait_until(lambda: host.messages)
    assert host.messages[-1].heard == 1


async def test_a_queue_that_was_given_back_serves_the_next_target_and_drops_what_came_too_late(bus: Bus) -> None:
    outputs: list[RunOutput] = []

    async def publish(run_id: str, said: int) -> None:
        body = RunOutput(run_id=run_id, said=said).to_wire()
        await bus.publish(RUN, first.key, Envelope(body=body, type="run_says"))

    async def wait_for(said: int) -> None:
        await wait_until(lambda: [output.said for output in outputs][-1:] == [said])

    def channel(run_id: str) -> Any:
        return SimpleNamespace(run_id=run_id, on_output=outputs.append)

    queues = RunOutputQueues(bus)
    first = queues.take()
    await first.open(channel("one"))
    await publish("one", 1)
    await wait_for(1)
    await queues.give_back(first)
    await publish("one", 2)
    second, third = queues.take(), queues.take()
    assert second is first
    assert third is not first
    await second.open(channel("two"))
    await publish("two", 3)
    await wait_for(3)
    assert [output.said for output in outputs] == [1, 3]
    await queues.give_back(third)
    await queues.close()
    await queues.give_back(second)
    with pytest.raises(Unroutable):
        await publish("two", 4)

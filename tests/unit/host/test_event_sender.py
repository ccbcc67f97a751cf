"""What a run says: numbered, batched, said again until it was heard, and no faster than it is heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from quintain.bus.base import Bus, Delivery
from quintain.bus.memory import MemoryBroker
from quintain.contracts.message import MAX_RUN_ITEM_BYTES
from quintain.contracts.remote_target import RemoteFailure, RunItem, RunOutput, WireEvent
from quintain.topology import run_topology
from quintain_host.run import EventSender
from support.quick import timings
from support.waiting import wait_until

TOPOLOGY = run_topology("here")


@pytest.fixture
def memory() -> Iterator[MemoryBroker]:
    broker = MemoryBroker()
    yield broker
    broker.close()


@pytest.fixture
async def bus(memory: MemoryBroker) -> AsyncIterator[Bus]:
    bus = memory.connect()
    yield bus
    await bus.close()


class Controller:
    """Whoever hears a run."""

    def __init__(self) -> None:
        self.messages: list[RunOutput] = []

    async def listen(self, bus: Bus) -> None:
        await bus.declare(TOPOLOGY)
        await bus.consume(TOPOLOGY.queues[0], self._on_run_output, prefetch=10)

    @property
    def items(self) -> list[RunItem]:
        return [said for message in self.messages for said in message.items]

    async def wait_for_items(self, count: int) -> None:
        await wait_until(lambda: len(self.items) >= count)

    async def _on_run_output(self, delivery: Delivery) -> None:
        self.messages.append(RunOutput.from_wire(delivery.body))
        await delivery.ack()


@pytest.fixture
async def controller(bus: Bus) -> Controller:
    controller = Controller()
    await controller.listen(bus)
    return controller


@pytest.fixture
async def run(bus: Bus) -> AsyncIterator[EventSender]:
    run = EventSender(bus, "run", "here")
    yield run
    await run.close()


def event(content: str = "") -> WireEvent:
    return WireEvent(kind="Event", event_id="e", at=0.0, content=content)


async def test_what_is_said_together_travels_together_and_in_order(run: EventSender, controller: Controller) -> None:
    for number in range(300):
        run.send("emit", event=event(str(number)))
    run.send_end(None)
    await controller.wait_for_items(301)
    assert [said.seq for said in controller.items] == list(range(1, 302))
    assert [said.event.content for said in controller.items[:-1] if said.event] == [str(n) for n in range(300)]
    assert controller.items[-1].what == "end"
    assert len(controller.messages) <= 4


async def test_threads_may_speak(run: EventSender, controller: Controller) -> None:
    def speak() -> None:
        for _ in range(100):
            run.send("emit", event=event())

    await asyncio.gather(*(asyncio.to_thread(speak) for _ in range(3)))
    await controller.wait_for_items(300)
    assert [said.seq for said in controller.items] == list(range(1, 301))


async def test_what_was_missed_is_said_again_from_there(run: EventSender, controller: Controller) -> None:
    for _ in range(5):
        run.send("emit", event=event())
    await controller.wait_for_items(5)
    run.acknowledge(3, resend=True)
    await controller.wait_for_items(7)
    assert [said.seq for said in controller.items[5:]] == [4, 5]


async def test_the_end_waits_until_everything_was_heard(run: EventSender, controller: Controller) -> None:
    run.send("emit", event=event())
    run.send_end(RemoteFailure(type="ValueError", message="m"))
    ended = asyncio.create_task(run.wait_acknowledged())
    await controller.wait_for_items(2)
    run.acknowledge(1, resend=False)
    await asyncio.sleep(0)
    assert not ended.done()
    run.acknowledge(2, resend=False)
    await asyncio.wait_for(ended, 5)


async def test_what_nobody_hears_of_for_long_is_said_again_with_the_beat(bus: Bus) -> None:
    run = EventSender(bus, "run", "here", timings(host_heartbeat_seconds=0.02, host_resend_seconds=0.05))
    run.send("emit", event=event("said to nobody"))  # there is no queue yet
    await asyncio.sleep(0.05)
    controller = Controller()
    await controller.listen(bus)
    await controller.wait_for_items(1)
    assert controller.items[0].seq == 1
    # A beat without items says how much there is.
    run.acknowledge(1, resend=False)
    await wait_until(lambda: not controller.messages[-1].items)
    assert controller.messages[-1].said == 1
    await run.close()


async def test_who_speaks_faster_than_is_heard_waits(
    run: EventSender, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintain_host.run.MAX_UNACKNOWLEDGED_ITEMS", 5)
    said = 0

    def speak() -> None:
        nonlocal said
        for _ in range(8):
            run.send("emit", event=event())
            said += 1

    speaking = asyncio.create_task(asyncio.to_thread(speak))
    await controller.wait_for_items(5)
    await asyncio.sleep(0.05)
    assert said == 5
    run.acknowledge(5, resend=False)
    await asyncio.wait_for(speaking, 5)
    assert said == 8


async def test_who_waits_for_room_is_let_go_when_the_run_stops(
    run: EventSender, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintain_host.run.MAX_UNACKNOWLEDGED_ITEMS", 1)
    run.send("emit", event=event())
    waiting = asyncio.create_task(asyncio.to_thread(run.send, "emit", event=event()))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    run.stop()
    with pytest.raises(RuntimeError, match="closed trajectory"):
        await asyncio.wait_for(waiting, 5)


async def test_an_event_that_no_broker_takes_is_refused_where_it_is_said(run: EventSender) -> None:
    with pytest.raises(ValueError, match=f"{MAX_RUN_ITEM_BYTES:,}"):
        run.send("emit", event=event("x" * MAX_RUN_ITEM_BYTES))


async def test_large_events_travel_apart(run: EventSender, controller: Controller) -> None:
    for _ in range(4):
        run.send("emit", event=event("x" * 900_000))
    await controller.wait_for_items(4)
    assert max(len(message.items) for message in controller.messages) == 2

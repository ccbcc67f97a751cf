"""A run on the controller's loop: items in order, those that are ready together together, and nobody else waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from quintain.bus.memory import MemoryBroker
from quintain.contracts.remote_target import RunInput, RunItem, RunOutput
from quintain.remote import run_driver
from quintain.remote.connection_thread import InlineExecutor
from quintain.remote.run_channel import RunChannel
from quintain.remote.run_driver import RunDriver
from quintain.target.codec import Codec, write_event
from quintain.target.exceptions import RemoteExceptions
from quintain.target.type_registry import QUINTAIN_TYPES
from quintain.timings import DEFAULT_TIMINGS
from quintain.topology import lease_topology
from support.target_placements import scripted_target_class
from support.waiting import wait_until

TOPOLOGY = lease_topology("lease")

Bot: Any = scripted_target_class("ours")
BOT = Bot(None)


class OutputQueue:
    """The queue of a run's output, to which this test writes."""

    key = "output"

    def __init__(self) -> None:
        self.channel: asyncio.Future[RunChannel] = asyncio.get_running_loop().create_future()

    async def open(self, channel: RunChannel) -> None:
        self.channel.set_result(channel)


class Driven:
    """One run of a driver, whose host is this test."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.inputs: list[RunInput] = []

    def emit(self, event: Any) -> None:
        self.seen.append(event.content)

    async def send_event(self, event: Any) -> Any:
        self.seen.append(event.request)
        return QUINTAIN_TYPES.responses["ControllableInjection"](
            event=event, controllable=event.controllable, value="fine"
        )

    async def start(self) -> RunChannel:
        broker = self._broker = MemoryBroker()
        bus = broker.connect()
        await bus.declare(TOPOLOGY)
        await bus.consume(TOPOLOGY.queues[0], self._on_input, prefetch=10)
        loop = asyncio.get_running_loop()
        lease: Any = SimpleNamespace(
            bus=bus,
            key=TOPOLOGY.bindings[0].key,
            lease_id="lease",
            ended=False,
            ended_future=loop.create_future(),
            exceptions=RemoteExceptions(),
            record_host_activity=lambda: None,
            call=self._call,
            timings=DEFAULT_TIMINGS,
        )
        output_queue: Any = OutputQueue()
        codec = Codec(QUINTAIN_TYPES)
        driver = RunDriver(InlineExecutor(), lease, output_queue, codec, self.emit, self.send_event)
        self._run = asyncio.create_task(driver.run())
        channel: RunChannel = await output_queue.channel
        await asyncio.sleep(0)
        return channel

    async def _call(self, route: Any, **fields: Any) -> None: ...

    async def _on_input(self, delivery: Any) -> None:
        self.inputs.append(RunInput.from_wire(delivery.body))
        await delivery.ack()

    async def wait_ended(self) -> None:
        async with asyncio.timeout(20):
            await self._run

    async def close(self) -> None:
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        self._broker.close()


@pytest.fixture
async def driven() -> AsyncIterator[Driven]:
    driven = Driven()
    yield driven
    await driven.close()


def items(*words: str) -> list[RunItem]:
    """The items of a run: what ends with a question mark is sent, anything else is emitted; then the run ends."""
    said = [
        RunItem(seq=number, what="send", event=write_event(BOT.request_event(word)))
        if word.endswith("?")
        else RunItem(seq=number, what="emit", event=write_event(BOT.observation_event(word)))
        for number, word in enumerate(words, 1)
    ]
    return [*said, RunItem(seq=len(words) + 1, what="end")]


async def test_an_answer_made_for_another_event_is_refused(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[Any] = []

    async def answer_the_first(event: Any) -> Any:
        first.append(event)
        injection = QUINTAIN_TYPES.responses["ControllableInjection"]
        return injection(event=first[0], controllable=event.controllable, value="fine")

    monkeypatch.setattr(driven, "send_event", answer_the_first)
    channel = await driven.start()
    [*sent, end] = items("a?", "b?")
    channel.on_output(RunOutput(run_id=channel.run_id, said=2, items=sent))
    await wait_until(lambda: sum(len(each.answers) for each in driven.inputs) >= 2)
    [good, refused] = (answer.response for each in driven.inputs for answer in each.answers)
    assert (good.value, good.failure) == ("fine", None)
    assert refused.failure is not None
    assert (refused.value, refused.failure.type) == (None, "ValueError")
    channel.on_output(RunOutput(run_id=channel.run_id, said=3, items=[end]))
    await driven.wait_ended()


WORDS = ("a?", "b", "c?", "d?", "e", "f", "g?")


@pytest.mark.parametrize("in_one_message", [True, False])
async def test_items_are_seen_in_order_however_they_come(driven: Driven, in_one_message: bool) -> None:
    channel = await driven.start()
    everything = items(*WORDS)
    for part in [everything] if in_one_message else [[item] for item in everything]:
        channel.on_output(RunOutput(run_id=channel.run_id, said=part[-1].seq, items=part))
    await driven.wait_ended()
    assert driven.seen == list(WORDS)


async def test_events_that_come_together_are_answered_in_one_message(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_driver, "MAX_HOLD_SECONDS", 60.0)
    channel = await driven.start()
    [*sent, end] = items(*(f"{number}?" for number in range(64)))
    channel.on_output(RunOutput(run_id=channel.run_id, said=64, items=sent))
    await wait_until(lambda: driven.inputs)
    assert [len(each.answers) for each in driven.inputs if each.answers] == [64]
    channel.on_output(RunOutput(run_id=channel.run_id, said=65, items=[end]))
    await driven.wait_ended()


async def test_many_items_do_not_hold_the_controllers_loop(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    seen_when_others_ran: set[int] = set()

    def emit_slowly(event: Any) -> None:
        time.sleep(0.001)
        driven.seen.append(event.content)

    async def run_besides() -> None:
        while True:
            seen_when_others_ran.add(len(driven.seen))
            await asyncio.sleep(0)

    monkeypatch.setattr(driven, "emit", emit_slowly)
    channel = await driven.start()
    besides = asyncio.create_task(run_besides())
    everything = items(*("x" for _ in range(100)))
    channel.on_output(RunOutput(run_id=channel.run_id, said=101, items=everything))
    await driven.wait_ended()
    besides.cancel()
    assert len(driven.seen) == 100
    assert len(seen_when_others_ran - {0, 100}) >= 5

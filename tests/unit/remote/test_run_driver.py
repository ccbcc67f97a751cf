"""A run on the controller's loop: items in order, those that are ready together together, and nobody else waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from quintain.contracts.hosting import EmitEvent, EventReply, LeaseResult, SendEvent
from quintain.remote import run_driver
from quintain.remote.connection_thread import InlineExecutor
from quintain.remote.lease import RunItems
from quintain.remote.run_driver import RunDriver
from quintain.target.codec import Codec, write_event
from quintain.target.exceptions import RemoteExceptions
from quintain.target.type_registry import QUINTAIN_TYPES
from support.target_placements import scripted_target_class
from support.waiting import wait_until

Bot: Any = scripted_target_class("ours")
BOT = Bot(None)


class Stream:
    """What a driver needs of the stream of its lease; this test is the other end."""

    def __init__(self) -> None:
        self.sent: list[list[EventReply]] = []
        self.held = self.released = 0
        self.is_acknowledgement_due = False

    def send(self, *items: bytes) -> None:
        self.sent.append([EventReply.from_wire(item) for item in items])


class Driven:
    """One run of a driver, whose host is this test."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.stream = Stream()
        self._on_items: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def replies(self) -> list[EventReply]:
        return [reply for replies in self.stream.sent for reply in replies]

    def emit(self, event: Any) -> None:
        self.seen.append(event.content)

    async def send_event(self, event: Any) -> Any:
        self.seen.append(event.request)
        return QUINTAIN_TYPES.responses["ControllableInjection"](
            event=event, controllable=event.controllable, value="fine"
        )

    async def start(self) -> Any:
        """Start a run, and return what takes its items."""
        loop = asyncio.get_running_loop()
        lease: Any = SimpleNamespace(
            stream=self.stream,
            ended_future=loop.create_future(),
            exceptions=RemoteExceptions(),
            start_run=self._start_run,
            leave_run=lambda number: None,
            call=self._call,
        )
        driver = RunDriver(InlineExecutor(), lease, Codec(QUINTAIN_TYPES), self.emit, self.send_event)
        self._run = asyncio.create_task(driver.run())
        return await self._on_items

    def _start_run(self, events: list[str], on_items: Any) -> int:
        self._on_items.set_result(on_items)
        return 1

    async def _call(self, request: Any) -> None: ...

    async def wait_ended(self) -> None:
        async with asyncio.timeout(20):
            await self._run

    async def close(self) -> None:
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)


@pytest.fixture
async def driven() -> AsyncIterator[Driven]:
    driven = Driven()
    yield driven
    await driven.close()


def items(*words: str) -> RunItems:
    """The items of a run: what ends with a question mark is sent, anything else is emitted; then the run ends."""
    said: RunItems = [
        (number, SendEvent(event=write_event(BOT.request_event(word))))
        if word.endswith("?")
        else (number, EmitEvent(event=write_event(BOT.observation_event(word))))
        for number, word in enumerate(words, 1)
    ]
    return [*said, (len(words) + 1, LeaseResult(to=1))]


async def test_an_answer_made_for_another_event_is_refused(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[Any] = []

    async def answer_the_first(event: Any) -> Any:
        first.append(event)
        injection = QUINTAIN_TYPES.responses["ControllableInjection"]
        return injection(event=first[0], controllable=event.controllable, value="fine")

    monkeypatch.setattr(driven, "send_event", answer_the_first)
    on_items = await driven.start()
    [*sent, end] = items("a?", "b?")
    on_items(sent)
    await wait_until(lambda: len(driven.replies) >= 2)
    [good, refused] = (reply.response for reply in driven.replies)
    assert (good.value, good.failure) == ("fine", None)
    assert refused.failure is not None
    assert (refused.value, refused.failure.type) == (None, "ValueError")
    on_items([end])
    await driven.wait_ended()


WORDS = ("a?", "b", "c?", "d?", "e", "f", "g?")


@pytest.mark.parametrize("in_one_message", [True, False])
async def test_items_are_seen_in_order_however_they_come(driven: Driven, in_one_message: bool) -> None:
    on_items = await driven.start()
    everything = items(*WORDS)
    for part in [everything] if in_one_message else [[item] for item in everything]:
        on_items(part)
    await driven.wait_ended()
    assert driven.seen == list(WORDS)


async def test_events_that_come_together_are_answered_in_one_message(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_driver, "MAX_HOLD_SECONDS", 60.0)
    on_items = await driven.start()
    [*sent, end] = items(*(f"{number}?" for number in range(64)))
    on_items(sent)
    await wait_until(lambda: driven.replies)
    assert [len(replies) for replies in driven.stream.sent] == [64]
    on_items([end])
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
    on_items = await driven.start()
    besides = asyncio.create_task(run_besides())
    everything = items(*("x" for _ in range(100)))
    on_items(everything)
    await driven.wait_ended()
    besides.cancel()
    assert len(driven.seen) == 100
    assert len(seen_when_others_ran - {0, 100}) >= 5

"""The messages of a lease over a wire that loses, repeats and reorders: everything arrives once, in order, and no
faster than it is processed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.bus.base import Envelope
from quintain.contracts.hosting import DriverMessage, EventReply, HostMessage, LogLine
from quintain.contracts.remote_target import WireResponse
from quintain.errors import Unroutable
from quintain.remote import stream as stream_module
from quintain.remote.stream import MAX_ITEM_BYTES, LeaseStream, encode_item
from quintain.timings import Timings
from quintain.topology import HOST, REPLY
from support.quick import timings
from support.waiting import wait_until

QUICK = timings(host_heartbeat_seconds=0.01, host_lost_seconds=0.1)


@dataclass
class Wire:
    """A bus between two sides; ``fates`` says what becomes of each message in turn, and the others arrive."""

    fates: list[str] = field(default_factory=list)
    published: list[Any] = field(default_factory=list)
    sides: dict[str, LeaseStream] = field(default_factory=dict)
    late: list[tuple[str, Envelope]] = field(default_factory=list)

    async def publish(self, exchange: Any, key: str, envelope: Envelope, **_: Any) -> None:
        message = (DriverMessage if exchange is HOST else HostMessage).from_wire(envelope.body)
        self.published.append(message)
        if key not in self.sides:
            raise Unroutable("nobody is there")
        fate = self.fates.pop() if self.fates else "arrives"
        if fate == "late":
            self.late.append((key, envelope))
        for _ in range({"arrives": 1, "twice": 2}.get(fate, 0)):
            self.deliver(key, envelope)
        if fate == "arrives":
            for each in self.late:
                self.deliver(*each)
            self.late.clear()

    def deliver(self, key: str, envelope: Envelope) -> None:
        delivery: Any = SimpleNamespace(body=envelope.body, reply_to=envelope.reply_to)
        asyncio.get_running_loop().call_soon(lambda: key in self.sides and self.sides[key].on_delivery(delivery))


class Side:
    """One end of a lease, and what arrived there."""

    def __init__(self, wire: Wire, key: str, other: str, quick: Timings = QUICK) -> None:
        self.arrived: list[Any] = []
        self.broken: list[str] = []
        self.unroutable: list[int] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bus: Any = wire
        self.stream = wire.sides[key] = LeaseStream(
            *(bus, HOST if key == "driver" else REPLY, "lease"),
            lambda first, items: self.arrived.extend(enumerate(items, first)),
            get_own_key=lambda: key,
            on_unroutable=lambda number, _: self.unroutable.append(number),
            on_broken=self.broken.append,
            ended=self.ended,
            timings=quick,
        )
        self.stream.key = other

    async def close(self) -> None:
        self.ended.set_result(None)
        await self.stream.close()


def log_line(text: str) -> bytes:
    return LogLine(logger="l", level=20, text=text, at=0.0).to_wire()


def reply(number: int) -> bytes:
    return EventReply(to=number, response=WireResponse(kind="EventResponse")).to_wire()


async def with_two_sides(
    work: Callable[[Wire, Side, Side], Any], wire: Wire | None = None, *, beat: bool = True, quick: Timings = QUICK
) -> None:
    wire = wire or Wire()
    driver, host = Side(wire, "driver", "host", quick), Side(wire, "host", "driver", quick)
    if beat:
        driver.stream.start_beating()
        host.stream.start_beating()
    try:
        async with asyncio.timeout(60):
            await work(wire, driver, host)
    finally:
        await driver.close()
        await host.close()


@settings(max_examples=30, deadline=None)
@given(
    fates=st.lists(st.sampled_from(["arrives", "lost", "twice", "late"]), max_size=40),
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=6),
)
def test_everything_arrives_once_and_in_order_whatever_the_wire_does(fates: list[str], counts: list[int]) -> None:
    async def work(wire: Wire, driver: Side, host: Side) -> None:
        for count in counts:
            for _ in range(count):
                host.stream.send(log_line("x"))
                driver.stream.send(reply(1))
            await asyncio.sleep(0)
        total = sum(counts)
        for side in (driver, host):
            await wait_until(lambda side=side: len(side.arrived) >= total)  # type: ignore[misc]
        await wait_until(lambda: not (driver.stream._sent or host.stream._sent))
        for side in (driver, host):
            assert [number for number, _ in side.arrived] == list(range(1, total + 1))

    # A wire that loses every message for `host_lost_seconds` breaks the lease: this one loses fewer.
    asyncio.run(with_two_sides(work, Wire(fates), quick=timings(host_heartbeat_seconds=0.01, host_lost_seconds=60)))


async def test_what_is_sent_together_travels_together_and_large_items_alone() -> None:
    async def work(wire: Wire, driver: Side, host: Side) -> None:
        for number in range(300):
            host.stream.send(log_line(str(number)))
        await wait_until(lambda: len(driver.arrived) == 300)
        assert [item.text for _, item in driver.arrived] == [str(number) for number in range(300)]
        assert len([message for message in wire.published if message.items]) == 1
        for _ in range(4):
            host.stream.send(log_line("x" * 900_000))
        await wait_until(lambda: len(driver.arrived) == 304)
        assert max(len(message.items) for message in wire.published[-4:]) == 1

    await with_two_sides(work, beat=False)


async def test_a_gap_is_asked_for_at_once_and_only_once_between_two_heartbeats() -> None:
    async def work(wire: Wire, driver: Side, host: Side) -> None:
        for _ in range(4):
            host.stream.send(log_line("x"))
            await asyncio.sleep(0.01)
        await wait_until(lambda: len(driver.arrived) == 4)
        assert sum(message.again for message in wire.published) == 1

    await with_two_sides(work, Wire(["arrives"] * 20 + ["lost"]), beat=False)


async def test_only_what_was_processed_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "ACKNOWLEDGED_ITEMS", 1)

    async def work(wire: Wire, driver: Side, host: Side) -> None:
        driver.stream.held, driver.stream.released = 2, 1
        host.stream.send(log_line("x"), log_line("y"))
        await wait_until(lambda: [m.processed for m in wire.published][-1:] == [1])
        assert not driver.stream.is_acknowledgement_due
        driver.stream.released = 2
        assert driver.stream.is_acknowledgement_due
        driver.stream.acknowledge()
        await wait_until(lambda: [m.processed for m in wire.published][-1:] == [2])

    await with_two_sides(work, beat=False)


async def test_who_sends_faster_than_is_processed_waits_and_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_UNPROCESSED_ITEMS", 5)

    async def work(wire: Wire, driver: Side, host: Side) -> None:
        sent, is_over = 0, False

        def require_running(number: int) -> None:
            if is_over:
                raise RuntimeError("over")

        def send() -> None:
            nonlocal sent
            while True:
                host.stream.send(log_line("x"), on_numbered=require_running, is_given_up=lambda: is_over)
                sent += 1

        driver.stream.held = 100
        sending = asyncio.create_task(asyncio.to_thread(send))
        await wait_until(lambda: len(driver.arrived) == 5)
        await asyncio.sleep(0.05)
        assert sent == 5
        driver.stream.released = 3
        await wait_until(lambda: len(driver.arrived) == 8)
        is_over = True
        host.stream.wake()
        with pytest.raises(RuntimeError, match="over"):
            await asyncio.wait_for(sending, 5)

    await with_two_sides(work)


async def test_a_side_that_has_moved_asks_for_what_went_to_its_old_address() -> None:
    async def work(wire: Wire, driver: Side, host: Side) -> None:
        host.stream.send(log_line("before"))
        await wait_until(lambda: driver.arrived)
        del wire.sides["driver"]
        host.stream.send(log_line("lost"))
        await wait_until(lambda: host.unroutable)
        wire.sides["moved"] = driver.stream
        driver.stream._get_own_key = lambda: "moved"
        driver.stream.ask_again()
        await wait_until(lambda: len(driver.arrived) == 2)
        assert host.stream.key == "moved"

    await with_two_sides(work, beat=False)


async def test_a_message_that_cannot_be_read_breaks_the_lease_and_one_beside_the_numbering_does_not() -> None:
    async def work(wire: Wire, driver: Side, host: Side) -> None:
        def deliver(body: bytes) -> None:
            delivery: Any = SimpleNamespace(body=body, reply_to=None)
            driver.stream.on_delivery(delivery)

        deliver(b'{"number":0,"processed":0,"items":[{"type":"ended","reason":"gone"}]}')
        assert [(number, item.reason) for number, item in driver.arrived] == [(0, "gone")]
        assert driver.stream.received == 0
        deliver(b'{"number":1,"processed":0,"items":[{"type":"sing"}]}')
        assert "sing" not in driver.broken[0]
        assert "items" in driver.broken[0]

    await with_two_sides(work, beat=False)


async def test_silence_is_noticed_and_heartbeats_are_none() -> None:
    async def work(wire: Wire, driver: Side, host: Side) -> None:
        await asyncio.sleep(0.3)
        assert not driver.broken
        await host.close()
        host.ended = asyncio.get_running_loop().create_future()
        await wait_until(lambda: driver.broken)
        assert "nothing was heard" in driver.broken[0]

    await with_two_sides(work)


async def test_large_items_are_acknowledged_before_their_sender_has_to_wait() -> None:
    async def work(wire: Wire, driver: Side, host: Side) -> None:
        for _ in range(10):
            host.stream.send(log_line("x" * (stream_module.ACKNOWLEDGED_BYTES // 8)))
        await wait_until(lambda: host.stream._bytes < stream_module.ACKNOWLEDGED_BYTES)

    await with_two_sides(work, beat=False)


def test_an_item_that_is_too_large_is_refused_and_named() -> None:
    with pytest.raises(ValueError, match=f"'log'.*{MAX_ITEM_BYTES:,}"):
        encode_item(LogLine(logger="l", level=20, text="x" * MAX_ITEM_BYTES, at=0.0))

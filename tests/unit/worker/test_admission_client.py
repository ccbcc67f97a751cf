"""Admits for permission: repeated while it may be lost, a window of it at a time, and given up with a last word."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import PUBLISH_TIMEOUT_SECONDS, Delivery, Envelope
from quintain.bus.memory import MemoryBus
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit
from quintain.errors import BadRequest, BrokerUnavailable, BudgetUnavailable, Expired
from quintain.rpc.requests import RpcClient
from quintain.timings import Clock, Timings
from quintain.topology import Exchange, admit_topology
from quintain_worker import ledger_client
from quintain_worker.ledger_client import AdmissionClient, BusLedgerPort
from support.fake_ledger_service import FakeLedgerService, grant
from support.quick import timings
from support.skipped_time import skip_waits
from support.waiting import wait_until

#: The same rules, a hundred times faster.
FAST = timings(admit_repeat_seconds=0.03, ledger_silence_seconds=0.3, deadline_grace_seconds=0.05)


@pytest.fixture(autouse=True)
async def skipped_time() -> None:
    skip_waits()


class UnavailableBus(MemoryBus):
    """A connection over which nothing can be published while it is ``unavailable``; it counts what it refused."""

    unavailable = False
    refused = 0

    async def publish(
        self, exchange: Exchange, key: str, envelope: Envelope, *, timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        if self.unavailable:
            self.refused += 1
            raise BrokerUnavailable("not confirmed")
        await super().publish(exchange, key, envelope, timeout_seconds=timeout_seconds)


class Admits:
    """A worker's admissions over a bus of their own."""

    def __init__(self, bus: UnavailableBus, timings: Timings = FAST) -> None:
        self.bus = bus
        self.clock = Clock()
        self.rpc_client = RpcClient(bus)
        self.client = AdmissionClient(BusLedgerPort(bus, self.rpc_client, timings), self.clock, "w1", timings)

    def admit(self, name: str, *, seconds: float = 5, target: str = "a") -> asyncio.Task[Admission | None]:
        admit = Admit(token="t", request_id=name, attempt_id=f"attempt-{name}", target=target, body_sha256="b")
        loop = asyncio.get_running_loop()
        return loop.create_task(self.client.admit(admit, ends_at=loop.time() + seconds))


@pytest.fixture
async def asking(ledger: FakeLedgerService, request: pytest.FixtureRequest) -> AsyncIterator[Admits]:
    bus = UnavailableBus(ledger.memory)
    client = Admits(bus, getattr(request, "param", FAST))
    await client.rpc_client.start()
    yield client
    await bus.close()


async def test_an_unanswered_admit_is_asked_again_as_the_same_attempt(
    asking: Admits, ledger: FakeLedgerService
) -> None:
    heard: list[Admit] = []

    def third_time(ask: Admit) -> Admission | None:
        heard.append(ask)
        return grant(ask) if len(heard) == 3 else None

    ledger.admit_policy = third_time
    assert await asking.admit("r1") is not None
    assert len(heard) == 3
    assert heard[0] == heard[1] == heard[2]


@pytest.mark.parametrize("listens", [True, False], ids=["hung", "gone"])
async def test_a_first_admit_goes_to_a_services_own_queue_and_its_repetition_to_the_shared_one(
    asking: Admits, ledger: FakeLedgerService, listens: bool
) -> None:
    own = admit_topology("x")
    arrived = asyncio.Queue[Delivery]()

    async def hang(delivery: Delivery) -> None:
        arrived.put_nowait(delivery)

    if listens:
        await ledger.bus.declare(own)
        await ledger.bus.consume(own.queues[0], hang, prefetch=10)
    asking.client.note_renewal("admit.x")
    began = asyncio.get_running_loop().time()
    assert await asking.admit("r1") is not None
    waited = asyncio.get_running_loop().time() - began >= FAST.admit_repeat_seconds
    assert (waited, arrived.qsize(), ledger.admits.qsize()) == (listens, int(listens), 1)
    # Nothing was heard of that service since: the next admit does not try it.
    assert await asking.admit("r2") is not None
    assert arrived.qsize() == int(listens)


@pytest.mark.parametrize("asking", [timings(admit_repeat_seconds=0.03)], indirect=True)
async def test_an_outage_is_told_when_it_begins_and_when_it_is_over_and_not_by_every_call_that_waits(
    asking: Admits, ledger: FakeLedgerService, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        caplog.clear()
        asking.bus.unavailable = True
        waiting = [asking.admit(f"r{number}") for number in range(5)]
        await wait_until(lambda: asking.bus.refused >= 8)
        asking.bus.unavailable, asking.bus.refused = False, 0
        await asyncio.gather(*waiting)
        said = [record.getMessage().partition(" after ")[0] for record in caplog.records]
        assert said == ["Admits cannot be sent and are repeated: not confirmed", "Admits can be sent again"]


async def test_a_target_that_is_let_go_gives_back_what_waits_for_it_and_nothing_else(
    asking: Admits, ledger: FakeLedgerService
) -> None:
    ledger.admit_policy = lambda _: "held"
    waiting, other = asking.admit("r1"), asking.admit("r2", target="b")
    for _ in range(2):
        await ledger.admits.get()
    asking.client.return_calls("a")
    assert await waiting is None
    ledger.admit_policy = grant
    assert await other is not None
    assert await asking.admit("r3") is not None  # what comes later may ask again


async def test_whoever_is_held_waits_past_the_silence_and_is_granted_when_it_may_go_on(
    asking: Admits, ledger: FakeLedgerService
) -> None:
    ledger.admit_policy = lambda _: "held"
    waiting = asking.admit("r1")
    await asyncio.sleep(0.5)  # longer than a silence may last
    assert not waiting.done()
    ask = await ledger.admits.get()
    ledger.admit_policy = lambda _: None
    await ledger.answer_last_admit(grant(ask))
    admission = await waiting
    assert admission is not None
    assert admission.attempt == 1


async def test_the_deadline_ends_the_wait_of_whoever_is_held(asking: Admits, ledger: FakeLedgerService) -> None:
    ledger.admit_policy = lambda _: "held"
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(Expired, match="before the call was admitted") as expired:
        await asking.admit("r1", seconds=0.1)
    assert expired.value.charged is None
    assert loop.time() - began < 0.1 + FAST.deadline_grace_seconds + 0.2


async def test_an_answer_that_comes_twice_or_too_late_harms_nobody(asking: Admits, ledger: FakeLedgerService) -> None:
    ledger.admit_policy = lambda ask: None if ask.request_id == "late" else grant(ask)
    with pytest.raises(Expired):
        await asking.admit("late", seconds=0.05)
    late = await ledger.admits.get()
    assert await asking.admit("r1") is not None
    await ledger.answer_last_admit(grant(late))
    again = grant(late, call_count=2)
    await ledger.answer_last_admit(again, again)
    assert await asking.admit("r2") is not None


async def test_a_worker_that_stops_tells_whoever_waits_at_once_and_asks_no_more(
    asking: Admits, ledger: FakeLedgerService
) -> None:
    ledger.admit_policy = lambda _: "held"
    waiting = [asking.admit(f"r{number}") for number in range(3)]
    for _ in waiting:
        await ledger.admits.get()
    asking.client.stop()
    assert await asyncio.gather(*waiting) == [None, None, None]
    while not ledger.admits.empty():
        ledger.admits.get_nowait()
    assert await asking.admit("r9") is None
    assert ledger.admits.empty()


async def test_whoever_is_cancelled_leaves_nothing_waiting(asking: Admits, ledger: FakeLedgerService) -> None:
    ledger.admit_policy = lambda _: None
    waiting = asking.admit("r1")
    await ledger.admits.get()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asking.client._pending == {}


async def test_an_admit_that_cannot_be_written_is_told_to_whoever_waits_at_once(asking: Admits) -> None:
    half = Admit.unchecked(
        token="\ud83d", request_id="r1", attempt_id="t", target="a", body_sha256="b", deadline=None, problem=None,
        traceparent=None,
    )  # fmt: skip
    with pytest.raises(BadRequest, match="no Unicode"):
        await asking.client.admit(half, ends_at=math.inf)
    assert asking.client._pending == {}


async def test_while_nothing_can_be_sent_an_admit_waits_once_however_long(asking: Admits) -> None:
    published = asyncio.Event()
    going = [0, 0]

    async def slow(*_: object, **__: object) -> None:
        going[0] += 1
        going[1] = max(going)
        await published.wait()
        going[0] -= 1

    asking.bus.publish = slow  # type: ignore[method-assign]
    waiting = asking.admit("r1", seconds=0.2)  # several times as long as until it is asked again
    with pytest.raises(Expired):
        await waiting
    assert going == [1, 1]
    published.set()


# Many admits of one worker: a window of them is under way, and silence is counted from the last answer to any.

WINDOW = 4
SILENCE_SECONDS = FAST.ledger_silence_seconds


@pytest.fixture
def many(asking: Admits, monkeypatch: pytest.MonkeyPatch) -> Admits:
    """The client with a window of `WINDOW`."""
    monkeypatch.setattr(ledger_client, "MAX_UNDER_WAY", WINDOW)
    return asking


async def test_a_ledger_that_is_slower_than_its_silence_admits_all_and_has_few_at_a_time(
    many: Admits, ledger: FakeLedgerService
) -> None:
    loop = asyncio.get_running_loop()
    asked, granted = set[str](), set[str]()
    free_at = loop.time()

    def one_at_a_time(ask: Admit) -> Admission | None:
        nonlocal free_at
        asked.add(ask.attempt_id)
        assert len(asked - granted) <= WINDOW
        if loop.time() < free_at:
            return None
        free_at = loop.time() + 0.02
        granted.add(ask.attempt_id)
        return grant(ask)

    ledger.admit_policy = one_at_a_time
    began = loop.time()
    answers = await asyncio.gather(*(many.admit(f"r{number}") for number in range(30)))
    assert all(answers)
    assert loop.time() - began > 1.5 * SILENCE_SECONDS


async def test_any_answer_of_a_metadata_service_ends_the_silence(many: Admits, ledger: FakeLedgerService) -> None:
    ledger.admit_policy = lambda _: None
    waiting = many.admit("r1")
    for _ in range(15):
        await asyncio.sleep(SILENCE_SECONDS / 10)
        many.client.note_renewal(None)
    assert not waiting.done()
    with pytest.raises(BudgetUnavailable):
        await waiting


async def test_what_is_held_makes_room_for_the_next(many: Admits, ledger: FakeLedgerService) -> None:
    ledger.admit_policy = lambda ask: "held" if ask.request_id != "r9" else grant(ask)
    held = [many.admit(f"r{number}") for number in range(9)]
    assert await many.admit("r9") is not None
    assert not any(task.done() for task in held)
    many.client.stop()
    assert await asyncio.gather(*held) == [None] * 9


async def test_behind_the_window_there_is_only_the_deadline(many: Admits, ledger: FakeLedgerService) -> None:
    ledger.admit_policy = lambda _: None
    first = [many.admit(f"r{number}") for number in range(WINDOW)]
    behind = many.admit(f"r{WINDOW}", seconds=2)
    for waiting in first:
        with pytest.raises(BudgetUnavailable):
            await waiting
    ledger.admit_policy = grant
    assert await behind is not None


async def test_at_the_deadline_the_ledger_is_asked_for_its_word(many: Admits, ledger: FakeLedgerService) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 0.2

    def decide(ask: Admit) -> Admission | str:
        if loop.time() < deadline:
            return "held"
        return Admission(attempt_id=ask.attempt_id, fault=FaultReply.from_fault(Expired("the ledger's word")))

    ledger.admit_policy = decide
    admission = await many.admit("r1", seconds=0.2)
    assert admission is not None
    assert admission.fault is not None
    assert (admission.fault.charged, admission.fault.charge_unknown) == (False, None)

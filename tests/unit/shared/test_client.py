"""The evaluator's client: every call ends, a batch is all or nothing before it starts and item by item after."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pytest

from quintain.bus.base import Bus, Delivery
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.caller import Caller
from quintain.client import amqp_transport, cancellation
from quintain.client.amqp_transport import AmqpTransport, routing_key
from quintain.client.client import Client
from quintain.client.connect import connect
from quintain.client.transport import BatchItem, unspent
from quintain.clock import Clock
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, Result, TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.metadata import (
    CallsCancelled,
    CallsReleased,
    CallsReserved,
    CancelCalls,
    Info,
    OpenSession,
    ReleaseCalls,
    ReserveCalls,
    SessionState,
)
from quintain.contracts.token import SessionToken
from quintain.errors import (
    BadRequest,
    BudgetExhausted,
    BudgetUnavailable,
    ConfigError,
    Expired,
    Fault,
    ForbiddenTarget,
    Overloaded,
    ProviderFailed,
    RequestConflict,
    Unauthorized,
    UnknownTarget,
)
from quintain.routes import REQUEST_ID_HEADER
from quintain.service import reply
from quintain.topology import (
    INVOKE,
    METADATA_QUEUE,
    METADATA_TOPOLOGY,
    Binding,
    Topology,
    target_queue,
    target_topology,
)
from support.memory_fleet import MemoryFleet, memory_fleet

Returned = TypeVar("Returned")

CONFIG = """
targets:
  echo: {provider: mock}
  broken: {provider: mock, fail_rate: 1, max_tries: 1}
"""


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[MemoryFleet]:
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        yield fleet


class Metadata:
    """The metadata service as a test wants it: keeps what it is asked, and answers as it is told, or not at all."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.asked: asyncio.Queue[Delivery] = asyncio.Queue()
        self.answers: dict[str, Callable[[bytes], Message | Fault | None]] = {
            "info": lambda _: INFO,
            "reserve": lambda body: CallsReserved(granted=len(ReserveCalls.from_wire(body).request_ids)),
            "release": lambda body: CallsReleased(released=len(ReleaseCalls.from_wire(body).request_ids)),
            "cancel": lambda body: CallsCancelled(cancelled=len(CancelCalls.from_wire(body).request_ids)),
        }

    async def start(self) -> None:
        await self._bus.declare(METADATA_TOPOLOGY)
        await self._bus.consume(METADATA_QUEUE, self._answer, prefetch=100)

    async def cancelled(self) -> list[str]:
        """The request ids of the next cancellation."""
        return CancelCalls.from_wire((await self._next("cancel")).body).request_ids

    async def reserved(self) -> list[str]:
        """The request ids of the next reservation."""
        return ReserveCalls.from_wire((await self._next("reserve")).body).request_ids

    async def _next(self, operation: str) -> Delivery:
        async with asyncio.timeout(5):
            delivery = await self.asked.get()
        assert delivery.routing_key == operation
        return delivery

    async def _answer(self, delivery: Delivery) -> None:
        await delivery.ack()
        if delivery.routing_key != "info":
            self.asked.put_nowait(delivery)
        answer = self.answers[delivery.routing_key](delivery.body)
        if answer is not None:
            await reply(self._bus, delivery, answer)


INFO = Info(
    session_id="s",
    target_name="a",
    max_calls=9,
    call_count=0,
    available_targets=["a"],
    token_usage=TokenUsage(),
    state=SessionState.OPEN,
    now=5_000_000,
)


class Alone:
    """A client beside a broker on which nobody serves: what it publishes can be looked at."""

    def __init__(self) -> None:
        self.memory = MemoryBroker()
        self.bus: MemoryBus = self.memory.connect()
        self.caller = Caller(self.bus)
        self.clock = Clock()
        self.client = Client(AmqpTransport(self.caller, SessionToken.mint().text, self.clock))
        self.seen: asyncio.Queue[Delivery] = asyncio.Queue()
        self.metadata = Metadata(self.memory.connect())

    async def start(self) -> None:
        await self.bus.declare(target_topology("a"))
        await self.metadata.start()
        await self.caller.start()

    async def watch(self) -> None:
        async def take(delivery: Delivery) -> None:
            await delivery.ack()
            self.seen.put_nowait(delivery)

        await self.bus.consume(target_queue("a"), take, prefetch=1000)

    async def ids(self, calls: int) -> list[str]:
        """The request ids of the next calls that arrive."""
        async with asyncio.timeout(5):
            return [str((await self.seen.get()).headers[REQUEST_ID_HEADER]) for _ in range(calls)]


@pytest.fixture
async def alone() -> AsyncIterator[Alone]:
    alone = Alone()
    await alone.start()
    yield alone
    await alone.client.close()
    await alone.caller.close()
    await alone.bus.close()
    alone.memory.close()


async def test_an_invoke_is_answered_and_counted(fleet: MemoryFleet) -> None:
    async with fleet.client("echo", max_calls=3) as client:
        first = await client.invoke("what?")
        assert (first.raw_text, first.target, first.call_count, first.max_calls) == ("what?", "echo", 1, 3)
        assert first.output[0].content == "what?"
        assert (first.attempts, first.replayed, first.cached) == (1, False, False)
        assert (await client.invoke("again", target="echo")).call_count == 2
        info = await client.get_info()
    assert (info.call_count, info.committed, info.max_calls) == (2, 2, 3)
    assert info.available_targets == ["broken", "echo"]


async def test_a_conversation_and_settings_reach_the_target(fleet: MemoryFleet) -> None:
    async with fleet.client("echo") as client:
        turns = [ChatMessage(role="user", content="a"), ChatMessage(role="user", content="b")]
        result = await client.invoke(messages=turns, system_prompt="p", settings=InvokeSettings(temperature=0))
    assert result.raw_text == "b"


@pytest.mark.parametrize(
    "ask", [{}, {"question": ""}, {"question": "x", "messages": [ChatMessage(role="user", content="y")]}]
)
async def test_a_bad_request_is_said_before_any_io(ask: dict[str, object]) -> None:
    bus = MemoryBroker().connect()
    await bus.close()  # whoever publishes now hears so
    client = Client(AmqpTransport(Caller(bus), SessionToken.mint().text))
    with pytest.raises(BadRequest, match="question"):
        await client.invoke(**ask)  # type: ignore[arg-type]


async def test_a_fault_is_raised_as_what_it_is(fleet: MemoryFleet) -> None:
    async with fleet.client("echo") as client:
        with pytest.raises(UnknownTarget, match="Unknown target 'nope'. Available: broken, echo") as unknown:
            await client.invoke("x", target="nope")
        assert unknown.value.available_targets == ("broken", "echo")
        with pytest.raises(ProviderFailed) as failed:
            await client.invoke("x", target="broken")
        assert failed.value.charged
        assert (await client.get_info()).call_count == 1


async def test_the_same_request_id_is_the_same_call(fleet: MemoryFleet) -> None:
    async with fleet.client("echo", max_calls=1) as client:
        first = await client.send(InvokeRequest(question="x"), request_id="mine")
        again = await client.send(InvokeRequest(question="x"), request_id="mine")
        assert (first.replayed, again.replayed) == (False, True)
        assert again.raw_text == first.raw_text
        with pytest.raises(RequestConflict):
            await client.send(InvokeRequest(question="y"), request_id="mine")
        assert (await client.get_info()).call_count == 1


async def test_a_batch_is_answered_in_order_and_a_failing_item_loses_no_other(fleet: MemoryFleet) -> None:
    asks = [
        InvokeRequest(question="a"),
        InvokeRequest(question="b", target="broken"),
        InvokeRequest(question="c", target="nope"),
        InvokeRequest(question="d", target="echo"),
    ]
    async with fleet.client("echo", max_calls=4) as client:
        items = await client.invoke_batch(asks)
        assert [item.result.raw_text if item.result else type(item.fault) for item in items] == [
            "a",
            ProviderFailed,
            UnknownTarget,
            "d",
        ]
        info = await client.get_info()
    # The unknown target cost nothing, and its reservation is given back; the provider that failed was called.
    assert (info.call_count, info.committed, info.reserved, info.running) == (3, 3, 0, 0)


async def test_a_batch_over_the_budget_calls_nobody(fleet: MemoryFleet) -> None:
    async with fleet.client("echo", max_calls=3) as client:
        await client.invoke("x")
        with pytest.raises(BudgetExhausted, match=r"current: 1, batch: 3, limit: 3"):
            await client.invoke_batch([InvokeRequest(question=str(number)) for number in range(3)])
        assert (await client.get_info()).call_count == 1
        items = await client.invoke_batch([InvokeRequest(question=str(number)) for number in range(2)])
        assert [item.result.raw_text for item in items if item.result] == ["0", "1"]


async def test_an_empty_batch_is_no_call(fleet: MemoryFleet) -> None:
    async with fleet.client("echo", max_calls=0) as client:
        assert await client.invoke_batch([]) == []


async def test_what_is_reserved_counts_until_it_is_released(fleet: MemoryFleet) -> None:
    async with fleet.client("echo", max_calls=2) as client:
        ids = await client.reserve(2)
        assert (await client.get_info()).reserved == 2
        with pytest.raises(BudgetExhausted):
            await client.invoke("x")
        await client.send(InvokeRequest(question="x"), request_id=ids[0])
        await client.release(ids)
        info = await client.get_info()
    assert (info.reserved, info.committed, info.call_count) == (0, 1, 1)


async def test_a_refused_item_ends_its_reservation_whoever_refuses_it(fleet: MemoryFleet) -> None:
    async with fleet.client("echo", allowed_targets=["echo"]) as client:
        ids = await client.reserve(2)
        for name, target in zip(ids, ["broken", "nope"], strict=True):
            with pytest.raises((ForbiddenTarget, UnknownTarget), match=target):
                await client.send(InvokeRequest(question="x", target=target), request_id=name)
        info = await client.get_info()
    assert (info.reserved, info.call_count) == (0, 0)


async def test_a_child_draws_on_its_parent(fleet: MemoryFleet) -> None:
    async with fleet.client("echo", max_calls=2) as parent:
        child = await parent.open_child(OpenSession(default_target="echo", max_calls=1))
        async with connect("memory://", child.token, memory=fleet.running.memory) as client:
            await client.invoke("x")
            with pytest.raises(BudgetExhausted, match="limit: 1"):
                await client.invoke("y")
        assert (await parent.get_info()).call_count == 1


async def test_nobody_in_time_is_expired_and_may_have_been_charged(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp_transport, "GRACE_SECONDS", 0.05)
    with pytest.raises(Expired) as expired:
        await alone.client.send(InvokeRequest(question="x", target="a"), deadline_seconds=0.05)
    assert (expired.value.charged, expired.value.retryable) == (True, False)
    assert alone.caller.in_flight == 0


async def test_a_full_queue_is_overloaded_and_says_when_to_come_again(alone: Alone) -> None:
    tiny = dataclasses.replace(target_queue("tiny"), max_length=1)
    await alone.bus.declare(Topology((), (tiny,), (Binding(INVOKE, tiny, "tiny"),)))
    first = asyncio.get_running_loop().create_task(alone.client.invoke("x", target="tiny"))
    while not alone.memory.queue(tiny.name).full:
        await asyncio.sleep(0)
    with pytest.raises(Overloaded) as overloaded:
        await alone.client.invoke("y", target="tiny")
    assert (overloaded.value.retryable, overloaded.value.retry_after_ms) == (True, 1000)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_a_request_on_the_wire_is_the_protocols(alone: Alone) -> None:
    await alone.watch()
    alone.clock.learn(5_000_000)  # the metadata service's clock is far from ours
    asking = asyncio.get_running_loop().create_task(
        alone.client.send(InvokeRequest(question="x", target="a"), request_id="mine", deadline_seconds=30)
    )
    seen = await alone.seen.get()
    assert (seen.exchange, seen.routing_key, seen.type) == ("quintain.invoke", "a", "invoke")
    assert seen.body == b'{"question":"x","target":"a"}'
    headers = dict(seen.headers)
    assert 5_029_000 < int(str(headers.pop("x-quintain-deadline"))) < 5_031_000
    assert 4_999_000 < int(str(headers.pop("timestamp_in_ms"))) < 5_001_000
    assert headers.keys() == {"x-quintain-session", "x-quintain-request-id", "x-quintain-protocol"}
    assert (headers["x-quintain-request-id"], headers["x-quintain-protocol"]) == ("mine", 1)
    assert seen.reply_to == alone.caller.reply_key
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_each_call_has_a_request_id_of_its_own(alone: Alone) -> None:
    await alone.watch()
    asking = [asyncio.get_running_loop().create_task(alone.client.invoke("x", target="a")) for _ in range(5)]
    seen = [await alone.seen.get() for _ in asking]
    assert len({str(one.headers["x-quintain-request-id"]) for one in seen}) == 5
    assert len({one.correlation_id for one in seen}) == 5
    for one in asking:
        one.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


@pytest.mark.parametrize(
    ("names", "key"),
    [
        ({}, ""),
        ({"target": "a"}, "a"),
        ({"provider": "b"}, "b"),
        ({"target": ""}, ""),
        ({"target": "a.#"}, ""),
        ({"target": "x" * 64}, ""),
    ],
)
def test_only_what_can_be_a_target_is_an_address(names: dict[str, str], key: str) -> None:
    assert routing_key(InvokeRequest.model_validate({"question": "x", **names})) == key


@pytest.mark.parametrize(
    ("item", "free"),
    [
        (BatchItem(None, UnknownTarget()), True),
        (BatchItem(None, ProviderFailed(charged=True)), False),
        (BatchItem(None, Expired(charged=False)), True),
    ],
)
def test_a_reservation_is_given_back_where_nothing_was_charged(item: BatchItem, free: bool) -> None:
    assert unspent(item) is free


async def test_connecting_proves_the_token_and_takes_the_fleets_clock(fleet: MemoryFleet) -> None:
    with pytest.raises(Unauthorized):
        async with connect("memory://", SessionToken.mint().text, memory=fleet.running.memory):
            pytest.fail("a token that opens nothing connects to nothing")


async def test_connecting_without_a_token_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUINTAIN_SESSION_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"QUINTAIN_SESSION_TOKEN is not set: .*session open"):
        async with connect("memory://", memory=MemoryBroker()):
            pytest.fail("there is nothing to connect with")


def started(coroutine: Coroutine[Any, Any, Returned]) -> asyncio.Task[Returned]:
    return asyncio.get_running_loop().create_task(coroutine)


async def ended(*tasks: asyncio.Task[Returned]) -> None:
    """Cancel these, and see that they ended so."""
    for task in tasks:
        task.cancel()
    assert {type(one) for one in await asyncio.gather(*tasks, return_exceptions=True)} == {asyncio.CancelledError}


async def test_cancel_takes_calls_back_and_says_how_many(alone: Alone) -> None:
    alone.metadata.answers["cancel"] = lambda _: CallsCancelled(cancelled=1)
    assert await alone.client.cancel(["x", "y"]) == 1
    assert await alone.metadata.cancelled() == ["x", "y"]
    assert await alone.client.cancel([]) == 0
    assert alone.metadata.asked.empty()


async def test_who_is_cancelled_while_it_waits_takes_its_call_back(alone: Alone) -> None:
    await alone.watch()
    asking = started(alone.client.invoke("x", target="a"))
    ids = await alone.ids(1)
    await ended(asking)
    assert await alone.metadata.cancelled() == ids


async def test_a_timeout_of_the_callers_own_takes_the_call_back(alone: Alone) -> None:
    await alone.watch()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await alone.client.send(InvokeRequest(question="x", target="a"))
    assert await alone.metadata.cancelled() == await alone.ids(1)


async def test_calls_that_end_together_are_taken_back_together(alone: Alone) -> None:
    await alone.watch()

    async def fail(after: int) -> None:
        seen.extend(await alone.ids(after))
        raise LookupError

    seen: list[str] = []
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(alone.client.invoke(str(number), target="a"))
            group.create_task(fail(50))
    assert sorted(await alone.metadata.cancelled()) == sorted(seen)
    await alone.client.close()
    assert alone.metadata.asked.empty()


async def test_a_call_under_an_id_of_the_callers_own_goes_on(alone: Alone) -> None:
    await alone.watch()
    asking = started(alone.client.send(InvokeRequest(question="x", target="a"), request_id="mine"))
    assert await alone.ids(1) == ["mine"]
    await ended(asking)
    await alone.client.close()
    assert alone.metadata.asked.empty()


async def test_a_deadline_that_passes_takes_nothing_back(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp_transport, "GRACE_SECONDS", 0.05)
    with pytest.raises(Expired):
        await alone.client.send(InvokeRequest(question="x", target="a"), deadline_seconds=0.05)
    await alone.client.close()
    assert alone.metadata.asked.empty()


async def test_a_cancelled_batch_takes_back_what_runs_and_what_is_only_reserved(alone: Alone) -> None:
    await alone.watch()
    batch = started(alone.client.invoke_batch([*({"question": str(n), "target": "a"} for n in range(5)), {"bad": 1}]))
    reserved = await alone.metadata.reserved()
    running = await alone.ids(5)
    await ended(batch)
    assert await alone.metadata.cancelled() == reserved
    assert set(reserved) > set(running)
    await alone.client.close()
    assert alone.metadata.asked.empty()


async def test_a_cancelled_reservation_is_given_back(alone: Alone) -> None:
    alone.metadata.answers["reserve"] = lambda _: None
    reserving = started(alone.client.reserve(3))
    ids = await alone.metadata.reserved()
    await ended(reserving)
    assert await alone.metadata.cancelled() == ids


async def answered(alone: Alone, calls: int) -> None:
    """Answer so many calls with their question."""
    for _ in range(calls):
        seen = await alone.seen.get()
        text = InvokeRequest.from_wire(seen.body).question or ""
        await reply(alone.bus, seen, Result(output=[], raw_text=text, target="a", call_count=1, max_calls=9))


async def test_a_batch_takes_requests_mappings_and_plain_questions(alone: Alone) -> None:
    await alone.watch()
    items: list[object] = [
        InvokeRequest(question="request", target="a"),
        {"question": "mapping", "target": "a", "systemPrompt": "p", "metadata": None},
        MappingProxyType({"question": "any mapping", "provider": "a"}),
        {"target": "a"},
        {"question": "x", "target": "a", "maxTokens": object()},
        7,
        "",
    ]
    serving = started(answered(alone, 4))
    got = await alone.client.invoke_batch(items)  # type: ignore[arg-type]
    assert [item.result.raw_text if item.result else type(item.fault) for item in got] == [
        "request",
        "mapping",
        "any mapping",
        BadRequest,
        "x",
        BadRequest,
        BadRequest,
    ]
    assert "question" in str(got[3].fault)
    reserved = await alone.metadata.reserved()
    released = ReleaseCalls.from_wire((await alone.metadata.asked.get()).body).request_ids
    assert released == [reserved[number] for number in (3, 5, 6)]
    await serving


async def test_a_text_is_no_batch_of_letters(alone: Alone) -> None:
    with pytest.raises(BadRequest, match="a list of requests"):
        await alone.client.invoke_batch("what?")
    assert alone.metadata.asked.empty()


async def test_answers_are_not_lost_where_a_reservation_cannot_be_given_back(
    alone: Alone, caplog: pytest.LogCaptureFixture
) -> None:
    await alone.watch()
    alone.metadata.answers["release"] = lambda _: BudgetUnavailable()
    serving = started(answered(alone, 1))
    good, bad = await alone.client.invoke_batch([{"question": "x", "target": "a"}, {}])
    assert good.result is not None
    assert isinstance(bad.fault, BadRequest)
    assert "1 reservations could not be given back" in caplog.text
    await serving


async def test_leaving_a_connection_finishes_taking_back(alone: Alone) -> None:
    await alone.watch()
    token = SessionToken.mint().text
    before = asyncio.all_tasks()
    async with connect("memory://", token, memory=alone.memory) as client:
        asking = started(client.invoke("x", target="a"))
        ids = await alone.ids(1)
        await ended(asking)
    assert alone.metadata.asked.qsize() == 1
    assert await alone.metadata.cancelled() == ids
    assert asyncio.all_tasks() == before


async def test_a_fleet_that_does_not_answer_holds_nobody_who_leaves(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "CANCEL_SECONDS", 0.05)
    await alone.watch()
    alone.metadata.answers["cancel"] = lambda _: None
    before = asyncio.all_tasks()
    async with asyncio.timeout(2), connect("memory://", SessionToken.mint().text, memory=alone.memory) as client:
        asking = [started(client.invoke("x", target="a")) for _ in range(10)]
        await alone.ids(10)
        await ended(*asking)
    assert alone.metadata.asked.qsize() == 1
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("answer", [Unauthorized(), BudgetUnavailable()])
async def test_a_refused_cancellation_is_nobodys_error(alone: Alone, answer: Fault) -> None:
    await alone.watch()
    alone.metadata.answers["cancel"] = lambda _: answer
    asking = started(alone.client.invoke("x", target="a"))
    await alone.ids(1)
    await ended(asking)
    await alone.client.close()
    assert alone.metadata.asked.qsize() == 1


async def test_two_hundred_calls_a_lost_reply_queue_and_the_end_leave_nothing_behind(alone: Alone) -> None:
    await alone.watch()
    tasks, queues = asyncio.all_tasks(), set(alone.memory._queues)
    async with connect("memory://", SessionToken.mint().text, memory=alone.memory) as client:
        asking = [started(client.invoke(str(number), target="a")) for number in range(200)]
        await answered(alone, 80)
        await asyncio.gather(*asking[:80])
        (lost,) = set(alone.memory._queues) - queues
        alone.memory.delete_queue(lost)
        for _ in asking[80:]:
            await alone.seen.get()  # the first time, into the queue that was lost
        await answered(alone, 60)
        await asyncio.gather(*asking[80:140])
        await ended(*asking[140:])
    assert len(await alone.metadata.cancelled()) == 60
    assert set(alone.memory._queues) == queues
    assert asyncio.all_tasks() == tasks


SLOW = "targets: {slow: {provider: mock, delay_ms: 60000, max_concurrency: 2}}"


@pytest.fixture
async def slow_fleet(tmp_path: Path) -> AsyncIterator[MemoryFleet]:
    async with memory_fleet(tmp_path, SLOW) as fleet:
        yield fleet


async def until(client: Client, reached: Callable[[Info], bool]) -> Info:
    """The session's counters, when they have come this far."""
    async with asyncio.timeout(10):
        while not reached(info := await client.get_info()):
            await asyncio.sleep(0.02)
    return info


async def test_a_client_that_leaves_does_not_leave_the_provider_working(slow_fleet: MemoryFleet) -> None:
    session = await slow_fleet.open("slow")
    async with connect("memory://", session.token, memory=slow_fleet.running.memory) as client:
        asking = [started(client.invoke(str(number))) for number in range(5)]
        await until(client, lambda info: info.running == 2)
        await ended(*asking)
    async with connect("memory://", session.token, memory=slow_fleet.running.memory) as client:
        info = await until(client, lambda info: info.running == 0)
        # What waited cost nothing; of what ran the ledger has the word.
        assert info.call_count <= 2


async def test_a_batch_that_is_left_gives_back_what_it_had_reserved(slow_fleet: MemoryFleet) -> None:
    async with slow_fleet.client("slow", max_calls=5) as client:
        batch = started(client.invoke_batch([str(number) for number in range(5)]))
        await until(client, lambda info: (info.running, info.reserved) == (2, 3))
        await ended(batch)
        assert (await until(client, lambda info: info.running == 0)).reserved == 0

"""The evaluator's client: every call ends, a batch is all or nothing before it starts and item by item after."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quintain.bus.base import Delivery
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.caller import Caller
from quintain.client import client as client_module
from quintain.client.client import BatchItem, Client, routing_key, unspent
from quintain.client.connect import connect
from quintain.clock import Clock
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings
from quintain.contracts.metadata import OpenSession
from quintain.contracts.token import SessionToken
from quintain.errors import (
    BadRequest,
    BudgetExhausted,
    ConfigError,
    Expired,
    ForbiddenTarget,
    Overloaded,
    ProviderFailed,
    RequestConflict,
    Unauthorized,
    UnknownTarget,
)
from quintain.topology import INVOKE, METADATA_TOPOLOGY, Binding, Topology, target_queue, target_topology
from support.memory_fleet import MemoryFleet, memory_fleet

CONFIG = """
targets:
  echo: {provider: mock}
  broken: {provider: mock, fail_rate: 1, max_tries: 1}
"""


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[MemoryFleet]:
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        yield fleet


class Alone:
    """A client beside a broker on which nobody serves: what it publishes can be looked at."""

    def __init__(self) -> None:
        self.memory = MemoryBroker()
        self.bus: MemoryBus = self.memory.connect()
        self.caller = Caller(self.bus)
        self.clock = Clock()
        self.client = Client(self.caller, self.clock, SessionToken.mint().text)
        self.seen: asyncio.Queue[Delivery] = asyncio.Queue()

    async def start(self) -> None:
        await self.bus.declare(METADATA_TOPOLOGY + target_topology("a"))
        await self.caller.start()

    async def watch(self) -> None:
        async def take(delivery: Delivery) -> None:
            await delivery.ack()
            self.seen.put_nowait(delivery)

        await self.bus.consume(target_queue("a"), take, prefetch=10)


@pytest.fixture
async def alone() -> AsyncIterator[Alone]:
    alone = Alone()
    await alone.start()
    yield alone
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
    client = Client(Caller(bus), Clock(), SessionToken.mint().text)
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
    monkeypatch.setattr(client_module, "GRACE_SECONDS", 0.05)
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

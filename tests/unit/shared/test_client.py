"""The evaluator's client: every call ends, a batch is all or nothing before it starts and item by item after."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from quintain.bus.base import Bus, Delivery
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.client import amqp_transport
from quintain.client import amqp_transport as cancellation
from quintain.client.amqp_transport import AmqpTransport, invoke_routing_key
from quintain.client.client import Client, connect
from quintain.client.sessions import Sessions
from quintain.client.transport import BatchItem, may_be_uncharged
from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import REQUEST_ID_HEADER
from quintain.contracts.invoke import ChatMessage, InvokeRequest, OutputMessage, Result
from quintain.contracts.message import Message
from quintain.contracts.session import (
    CallsCancelled,
    CallsReleased,
    CallsReserved,
    CancelCalls,
    GetInfo,
    Info,
    ReleaseCalls,
    ReserveCalls,
)
from quintain.errors import (
    BadRequest,
    BudgetUnavailable,
    ConfigError,
    Expired,
    Fault,
    Overloaded,
    ProviderFailed,
    UnknownTarget,
)
from quintain.rpc.requests import RpcClient
from quintain.rpc.server import send_reply
from quintain.timings import Clock
from quintain.topology import (
    INVOKE,
    METADATA_QUEUE,
    METADATA_TOPOLOGY,
    Binding,
    Topology,
    target_queue,
    target_topology,
)
from support.fake_client import INFO

Returned = TypeVar("Returned")


class ScriptedMetadata:
    """The metadata service as a test wants it: keeps what it is asked, and answers as it is told, or not at all."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.requests: asyncio.Queue[Delivery] = asyncio.Queue()
        self.replies: dict[str, Callable[[bytes], Message | Fault | None]] = {
            "info": lambda _: INFO,
            "reserve": lambda body: CallsReserved(granted=len(ReserveCalls.from_wire(body).request_ids)),
            "release": lambda body: CallsReleased(released=len(ReleaseCalls.from_wire(body).request_ids)),
            "cancel": lambda body: CallsCancelled(cancelled=len(CancelCalls.from_wire(body).request_ids)),
        }

    async def start(self) -> None:
        await self._bus.declare(METADATA_TOPOLOGY)
        await self._bus.consume(METADATA_QUEUE, self._on_request, prefetch=100)

    async def next_cancelled(self) -> list[str]:
        """The request ids of the next cancellation."""
        return CancelCalls.from_wire((await self._next_request("cancel")).body).request_ids

    async def next_reserved(self) -> list[str]:
        """The request ids of the next reservation."""
        return ReserveCalls.from_wire((await self._next_request("reserve")).body).request_ids

    async def _next_request(self, operation: str) -> Delivery:
        async with asyncio.timeout(5):
            delivery = await self.requests.get()
        assert delivery.routing_key == operation
        return delivery

    async def _on_request(self, delivery: Delivery) -> None:
        await delivery.ack()
        if delivery.routing_key != "info":
            self.requests.put_nowait(delivery)
        answer = self.replies[delivery.routing_key](delivery.body)
        if answer is not None:
            await send_reply(self._bus, delivery, answer)


class LoneClient:
    """A client beside a broker on which nobody serves: what it publishes can be looked at."""

    def __init__(self) -> None:
        self.memory = MemoryBroker()
        self.bus: MemoryBus = self.memory.connect()
        self.rpc_client = RpcClient(self.bus)
        self.clock = Clock()
        self.client = Client(
            AmqpTransport(self.rpc_client, SessionToken.mint().text, Sessions(self.rpc_client, self.clock))
        )
        self.deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self.metadata = ScriptedMetadata(self.memory.connect())

    async def start(self) -> None:
        await self.bus.declare(target_topology("a"))
        await self.metadata.start()
        await self.rpc_client.start()

    async def consume_target_queue(self) -> None:
        async def on_delivery(delivery: Delivery) -> None:
            await delivery.ack()
            self.deliveries.put_nowait(delivery)

        await self.bus.consume(target_queue("a"), on_delivery, prefetch=1000)

    async def next_request_ids(self, calls: int) -> list[str]:
        """The request ids of the next calls that arrive."""
        async with asyncio.timeout(5):
            return [str((await self.deliveries.get()).headers[REQUEST_ID_HEADER]) for _ in range(calls)]


@pytest.fixture
async def lone_client() -> AsyncIterator[LoneClient]:
    alone = LoneClient()
    await alone.start()
    yield alone
    await alone.client.close()
    await alone.rpc_client.close()
    await alone.bus.close()
    alone.memory.close()


@pytest.mark.parametrize(
    "ask", [{}, {"question": ""}, {"question": "x", "messages": [ChatMessage(role="user", content="y")]}]
)
async def test_a_bad_request_is_said_before_any_io(ask: dict[str, object]) -> None:
    bus = MemoryBroker().connect()
    await bus.close()  # whoever publishes now hears so
    client = Client(AmqpTransport(RpcClient(bus), SessionToken.mint().text))
    with pytest.raises(BadRequest, match="question"):
        await client.invoke(**ask)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments", [{"timeout": 0}, {"timeout": float("nan")}, {"timeout": 43_201}, {"settings": {"temperature": "warm"}}]
)
async def test_an_invalid_timeout_or_setting_is_a_bad_request(
    lone_client: LoneClient, arguments: dict[str, object]
) -> None:
    with pytest.raises(BadRequest, match=next(iter(arguments))):
        await lone_client.client.invoke("x", **arguments)  # type: ignore[arg-type]


async def test_an_invoke_has_a_deadline_and_settings_of_a_mapping(
    lone_client: LoneClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp_transport, "REPLY_GRACE_SECONDS", 0.05)
    await lone_client.consume_target_queue()
    with pytest.raises(Expired):
        await lone_client.client.invoke("x", target="a", settings={"temperature": 0.5}, timeout=0.05, request_id="mine")
    sent = await lone_client.deliveries.get()
    assert sent.headers[REQUEST_ID_HEADER] == "mine"
    settings = InvokeRequest.from_wire(sent.body).settings
    assert settings.temperature == 0.5


async def test_nobody_in_time_is_expired_may_have_been_charged_and_is_not_taken_back(
    lone_client: LoneClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp_transport, "REPLY_GRACE_SECONDS", 0.05)
    with pytest.raises(Expired) as expired:
        await lone_client.client.send(InvokeRequest(question="x", target="a"), deadline_seconds=0.05)
    assert (expired.value.charged, expired.value.retryable) == (None, False)
    assert lone_client.rpc_client.in_flight == 0
    await lone_client.client.close()
    assert lone_client.metadata.requests.empty()


@pytest.mark.parametrize("empties", [True, False])
async def test_a_full_queue_is_asked_again_until_the_deadline(
    lone_client: LoneClient, monkeypatch: pytest.MonkeyPatch, empties: bool
) -> None:
    monkeypatch.setattr(amqp_transport, "FULL_QUEUE_PAUSE_MS", 50)
    monkeypatch.setattr(amqp_transport, "FIRST_PAUSE_SECONDS", 0.02)
    tiny = dataclasses.replace(target_queue("tiny"), max_length=1)
    await lone_client.bus.declare(Topology((), (tiny,), (Binding(INVOKE, tiny, "tiny"),)))
    first = asyncio.create_task(lone_client.client.invoke("x", target="tiny"))
    while not lone_client.memory.queue(tiny.name).is_full:
        await asyncio.sleep(0)
    request = InvokeRequest(question="y", target="tiny")
    second = asyncio.create_task(lone_client.client.send(request, deadline_seconds=5 if empties else 0.3))
    await asyncio.sleep(0.1)
    assert not second.done()
    if empties:

        async def answer(delivery: Delivery) -> None:
            result = Result(output=[OutputMessage(content="yes")], target="tiny", call_count=1, max_calls=9)
            await send_reply(lone_client.bus, delivery, result)
            await delivery.ack()

        await lone_client.bus.consume(tiny, answer, prefetch=10)
        assert [(await asked).raw_text for asked in (first, second)] == ["yes", "yes"]
        return
    with pytest.raises(Overloaded) as overloaded:
        await second
    assert (overloaded.value.retryable, overloaded.value.charged) == (True, None)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_a_request_on_the_wire_is_the_protocols(lone_client: LoneClient) -> None:
    await lone_client.consume_target_queue()
    lone_client.clock.synchronize(5_000_000)  # the metadata service's clock is far from ours
    asking = asyncio.get_running_loop().create_task(
        lone_client.client.send(InvokeRequest(question="x", target="a"), request_id="mine", deadline_seconds=30)
    )
    seen = await lone_client.deliveries.get()
    assert (seen.exchange, seen.routing_key, seen.type) == ("quintain.invoke", "a", "invoke")
    assert seen.body == b'{"question":"x"}'  # the routing key names the target
    headers = dict(seen.headers)
    assert 5_029_000 < int(str(headers.pop("x-quintain-deadline"))) < 5_031_000
    assert 4_999_000 < int(str(headers.pop("timestamp_in_ms"))) < 5_001_000
    assert headers.pop("x-quintain-accept") == "group"
    assert headers.keys() == {
        "x-quintain-session", "x-quintain-proof", "x-quintain-request-id", "x-quintain-protocol"
    }  # fmt: skip
    assert (headers["x-quintain-request-id"], headers["x-quintain-protocol"]) == ("mine", 1)
    assert seen.reply_to == lone_client.rpc_client.reply_key
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize(
    ("names", "key"),
    [
        *(({}, ""), ({"target": "a"}, "a"), ({"provider": "b"}, "b"), ({"target": ""}, ""), ({"target": "a.#"}, "")),
        ({"target": "x" * 64}, ""),
    ],
)
def test_only_what_can_be_a_target_is_an_address(names: dict[str, str], key: str) -> None:
    assert invoke_routing_key(InvokeRequest.model_validate({"question": "x", **names})) == key


@pytest.mark.parametrize(
    ("item", "free"),
    [
        (BatchItem(None, UnknownTarget()), True),
        (BatchItem(None, ProviderFailed(charged=True)), False),
        (BatchItem(None, Expired(charged=False)), True),
        (BatchItem(None, Expired(charge_unknown=True)), True),
    ],
)
def test_a_reservation_is_given_back_where_nothing_was_charged(item: BatchItem, free: bool) -> None:
    assert may_be_uncharged(item) is free


async def test_connecting_without_a_token_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUINTAIN_SESSION_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"QUINTAIN_SESSION_TOKEN is not set: .*session open"):
        async with connect("memory://", memory=MemoryBroker()):
            pytest.fail("there is nothing to connect with")


def start(coroutine: Coroutine[Any, Any, Returned]) -> asyncio.Task[Returned]:
    return asyncio.get_running_loop().create_task(coroutine)


async def cancel_and_wait(*tasks: asyncio.Task[Returned]) -> None:
    """Cancel these, and see that they ended so."""
    for task in tasks:
        task.cancel()
    assert {type(one) for one in await asyncio.gather(*tasks, return_exceptions=True)} == {asyncio.CancelledError}


async def test_cancel_takes_calls_back_and_says_how_many(lone_client: LoneClient) -> None:
    lone_client.metadata.replies["cancel"] = lambda _: CallsCancelled(cancelled=1)
    assert await lone_client.client.cancel(["x", "y"]) == 1
    assert await lone_client.metadata.next_cancelled() == ["x", "y"]
    assert await lone_client.client.cancel([]) == 0
    assert lone_client.metadata.requests.empty()


async def test_a_cancelled_batch_takes_back_what_runs_and_what_is_only_reserved(lone_client: LoneClient) -> None:
    await lone_client.consume_target_queue()
    batch = start(
        lone_client.client.invoke_batch([*({"question": str(n), "target": "a"} for n in range(5)), {"bad": 1}])
    )
    reserved = await lone_client.metadata.next_reserved()
    running = await lone_client.next_request_ids(5)
    await cancel_and_wait(batch)
    assert await lone_client.metadata.next_cancelled() == reserved
    assert set(reserved) > set(running)
    await lone_client.client.close()
    assert lone_client.metadata.requests.empty()


async def test_a_cancelled_reservation_is_given_back(lone_client: LoneClient) -> None:
    lone_client.metadata.replies["reserve"] = lambda _: None
    reserving = start(lone_client.client.reserve(3))
    ids = await lone_client.metadata.next_reserved()
    await cancel_and_wait(reserving)
    assert await lone_client.metadata.next_cancelled() == ids


async def answer_calls(lone_client: LoneClient, calls: int) -> None:
    """Answer so many calls with their question."""
    for _ in range(calls):
        seen = await lone_client.deliveries.get()
        text = InvokeRequest.from_wire(seen.body).question or ""
        answer = Result(output=[OutputMessage(content=text)], target="a", call_count=1, max_calls=9)
        await send_reply(lone_client.bus, seen, answer)


async def test_answers_are_not_lost_where_a_reservation_cannot_be_given_back(
    lone_client: LoneClient, caplog: pytest.LogCaptureFixture
) -> None:
    await lone_client.consume_target_queue()
    lone_client.metadata.replies["release"] = lambda _: BudgetUnavailable()
    serving = start(answer_calls(lone_client, 1))
    good, bad = await lone_client.client.invoke_batch([{"question": "x", "target": "a"}, {}])
    assert good.result is not None
    assert isinstance(bad.fault, BadRequest)
    assert "1 reservations could not be released" in caplog.text
    await serving


async def test_leaving_a_connection_finishes_taking_back(lone_client: LoneClient) -> None:
    await lone_client.consume_target_queue()
    token = SessionToken.mint().text
    before = asyncio.all_tasks()
    async with connect("memory://", token, memory=lone_client.memory) as client:
        asking = start(client.invoke("x", target="a"))
        ids = await lone_client.next_request_ids(1)
        await cancel_and_wait(asking)
    assert lone_client.metadata.requests.qsize() == 1
    assert await lone_client.metadata.next_cancelled() == ids
    assert asyncio.all_tasks() == before


async def test_a_fleet_that_does_not_answer_holds_nobody_who_leaves(
    lone_client: LoneClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "CANCEL_TIMEOUT_SECONDS", 0.05)
    await lone_client.consume_target_queue()
    lone_client.metadata.replies["cancel"] = lambda _: None
    before = asyncio.all_tasks()
    async with asyncio.timeout(2), connect("memory://", SessionToken.mint().text, memory=lone_client.memory) as client:
        asking = [start(client.invoke("x", target="a")) for _ in range(10)]
        await lone_client.next_request_ids(10)
        await cancel_and_wait(*asking)
    assert lone_client.metadata.requests.qsize() == 1
    assert asyncio.all_tasks() == before


async def test_info_names_the_calls_that_were_answered_since_the_last_one(lone_client: LoneClient) -> None:
    await lone_client.consume_target_queue()
    named: list[list[str] | None] = []

    def info(body: bytes) -> Info:
        named.append(GetInfo.from_wire(body).answered)
        return INFO

    lone_client.metadata.replies["info"] = info
    for request_id in ("r1", "r" * 200, "r2"):
        request = InvokeRequest(question="x", target="a")
        asking = asyncio.ensure_future(lone_client.client.send(request, request_id=request_id))
        await send_reply(lone_client.bus, await lone_client.deliveries.get(), Overloaded())
        with pytest.raises(Overloaded):
            await asking
    await lone_client.client.get_info()
    await lone_client.client.get_info()
    # The first is the client's own, on groups.
    assert named == [None, ["r1", "r2"], None]

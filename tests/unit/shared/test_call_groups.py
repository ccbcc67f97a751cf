"""Which calls of a client share a message, and what becomes of a group that nobody can read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from quintain.bus.base import Delivery
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.client.sessions import CallGroups, Sessions
from quintain.client.transport import OnChunk
from quintain.contracts.credentials import SessionToken
from quintain.contracts.group import INVOKE_GROUP_TYPE
from quintain.contracts.invoke import InvokeRequest, OutputMessage, Result
from quintain.errors import BadRequest
from quintain.rpc.groups import split_group
from quintain.rpc.requests import RpcClient
from quintain.rpc.server import send_reply
from quintain.timings import Clock
from quintain.topology import target_queue, target_topology
from support.fake_client import INFO


def result(text: str, duration_ms: float = 1.0) -> Result:
    return Result(output=[OutputMessage(content=text)], target="a", call_count=1, max_calls=9, duration_ms=duration_ms)


class StillClock(Clock):
    """Calls made together have one deadline."""

    def now_ms(self) -> int:
        return 0


@dataclass
class OneTarget:
    """A client, and its target's messages: each call is answered with its own question."""

    bus: MemoryBus
    groups: CallGroups
    client: Client
    #: The questions of each message, in order.
    messages: list[list[str]] = field(default_factory=list)
    refuses_groups: bool = False

    async def answer(self, delivery: Delivery) -> None:
        is_group = delivery.type == INVOKE_GROUP_TYPE
        calls: list[Delivery] = list(split_group(delivery)) if is_group else [delivery]
        questions = [InvokeRequest.from_wire(call.body).question or "" for call in calls]
        self.messages.append(questions)
        if is_group and self.refuses_groups:
            await send_reply(self.bus, delivery, BadRequest("no group, please"))
        else:
            for call, question in zip(calls, questions, strict=True):
                await send_reply(self.bus, call, result(question))
        await delivery.ack()

    def ask(self, *questions: str) -> list[asyncio.Task[Result]]:
        return [asyncio.create_task(self.client.invoke(question, target="a")) for question in questions]


@pytest.fixture
async def one() -> AsyncIterator[OneTarget]:
    memory = MemoryBroker()
    bus = memory.connect()
    rpc_client = RpcClient(bus)
    await rpc_client.start()
    sessions = Sessions(rpc_client, StillClock())
    client = Client(AmqpTransport(rpc_client, SessionToken.mint().text, sessions))
    target = OneTarget(bus, sessions.groups, client)
    await bus.declare(target_topology("a"))
    await bus.consume(target_queue("a"), target.answer, prefetch=100)
    yield target
    await client.close()
    await rpc_client.close()
    await bus.close()
    memory.close()


async def test_no_call_shares_a_message_before_info_allows_it(one: OneTarget) -> None:
    await asyncio.gather(*one.ask("x", "y", "z"))
    assert sorted(one.messages) == [["x"], ["y"], ["z"]]


async def test_a_group_has_no_more_calls_than_its_size(one: OneTarget) -> None:
    one.groups.learn(INFO.with_fields(group_slots={"a": 16}))
    await asyncio.gather(*one.ask("1", "2", "3", "4", "5"))
    assert one.messages == [["1", "2"], ["3", "4"], ["5"]]


async def test_calls_share_a_message_with_those_that_want_the_same_messages_besides_the_reply(one: OneTarget) -> None:
    one.groups.learn(INFO.with_fields(group_slots={"a": 64}))
    on_chunk: OnChunk = print
    streamed = [
        one.client.send(InvokeRequest(question=name, target="a"), on_chunk=on_chunk) for name in ("first", "second")
    ]
    await asyncio.gather(*streamed, *one.ask("x", "y"))
    assert sorted(one.messages) == [["first", "second"], ["x", "y"]]


async def test_large_calls_do_not_exceed_the_bytes_of_a_group(one: OneTarget) -> None:
    one.groups.learn(INFO.with_fields(group_slots={"a": 64}))
    large = ["x" * 100_000, "y" * 100_000, "z" * 100_000]
    await asyncio.gather(*one.ask(*large))
    assert one.messages == [large[:2], large[2:]]
    await asyncio.gather(*one.ask("v" * 400_000, "w" * 400_000))
    assert [len(message) for message in one.messages[2:]] == [1, 1]


async def test_a_call_cancelled_before_its_group_left_is_not_in_it(one: OneTarget) -> None:
    one.groups.learn(INFO.with_fields(group_slots={"a": 64}))
    request = InvokeRequest(question="cancelled", target="a")
    cancelled = asyncio.create_task(one.client.send(request, deadline_seconds=600, request_id="resumable"))
    tasks = one.ask("x", "y")
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, *tasks, return_exceptions=True)
    assert one.messages == [["x", "y"]]


async def test_the_calls_of_a_refused_group_are_sent_alone_and_no_group_follows(one: OneTarget) -> None:
    one.groups.learn(INFO.with_fields(group_slots={"a": 64}))
    one.refuses_groups = True
    results = await asyncio.gather(*one.ask("x", "y"))
    assert [one.raw_text for one in results] == ["x", "y"]
    assert (one.messages[0], sorted(one.messages[1:])) == (["x", "y"], [["x"], ["y"]])
    await asyncio.gather(*one.ask("v", "w"))
    assert sorted(one.messages[3:]) == [["v"], ["w"]]
    one.groups.learn(INFO.with_fields(group_slots={"a": 64}))
    assert one.groups.max_calls("a") > 1


@pytest.mark.parametrize(
    ("slots", "duration_ms", "size"),
    [(8, None, 1), (64, None, 8), (1000, None, 64), (8, 1000, 1), (8, 100, 4), (8, 1, 64), (64, 1000, 8), (1, 0, 64)],
)
async def test_the_size_is_what_a_workers_slots_end_in_50_ms_or_an_eighth_of_them(
    one: OneTarget, slots: int, duration_ms: float | None, size: int
) -> None:
    one.groups.learn(INFO.with_fields(group_slots={"a": slots}))
    if duration_ms is not None:
        one.groups.note_duration("a", duration_ms)
    assert one.groups.max_calls("a") == size
    one.groups.learn(INFO)
    assert one.groups.max_calls("a") == 1

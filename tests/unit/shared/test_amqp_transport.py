"""A client's calls over AMQP: where one without a target goes, what authorizes it, and when it is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from quintain.bus.base import Delivery, Envelope
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.client import amqp_transport
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.client.sessions import MAX_SESSIONS, DefaultTargets
from quintain.contracts.credentials import SessionToken
from quintain.contracts.group import INVOKE_GROUP_TYPE
from quintain.contracts.headers import CHUNK_TYPE, DEADLINE_HEADER, PROOF_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.invoke import Chunk, InvokeRequest, OutputMessage, Result
from quintain.contracts.message import Message
from quintain.contracts.session import Info
from quintain.errors import (
    BudgetUnavailable,
    Cancelled,
    Expired,
    Fault,
    Overloaded,
    RequestConflict,
    Unauthorized,
    UnknownTarget,
)
from quintain.rpc.groups import split_group
from quintain.rpc.requests import RpcClient
from quintain.rpc.server import delivery_credential, send_reply
from quintain.topology import METADATA_QUEUE, METADATA_TOPOLOGY, REPLY, UNROUTED_QUEUE, target_queue, target_topology
from support.fake_client import INFO
from support.skipped_time import skip_waits


def answer(target: str) -> Result:
    return Result(output=[OutputMessage(content="yes")], target=target, call_count=1, max_calls=2)


@dataclass
class RecordingFleet:
    """Answers what comes to targets ``a`` and ``b`` and to the metadata service, and keeps where it came."""

    bus: MemoryBus
    client: Client
    token: SessionToken
    default: str | Fault = "a"
    #: What each target answers, in this order; the last one again and again.
    answers: dict[str, list[Message | Fault]] = field(default_factory=dict)
    arrived: list[str] = field(default_factory=list)
    heard: list[Delivery] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    group_slots: dict[str, int] | None = None
    #: The bodies of the chunks that come before each reply.
    chunks: list[bytes] = field(default_factory=list)

    async def on_call(self, delivery: Delivery) -> None:
        key = delivery.routing_key or "(none)"
        self.heard.append(delivery)
        self.types.append(delivery.type)
        await delivery.ack()
        for call in split_group(delivery) if delivery.type == INVOKE_GROUP_TYPE else [delivery]:
            self.arrived.append(key)
            self.bodies.append(call.body)
            for body in self.chunks:
                chunk = Envelope(body=body, type=CHUNK_TYPE, correlation_id=call.correlation_id, persistent=False)
                await self.bus.publish(REPLY, call.reply_to or "", chunk)
            script = self.answers.setdefault(key, [answer(key)])
            await send_reply(self.bus, call, script.pop(0) if len(script) > 1 else script[0])

    async def on_operation(self, delivery: Delivery) -> None:
        self.arrived.append(delivery.routing_key)
        await delivery.ack()
        known = {"session_id": self.token.id, "group_slots": self.group_slots}
        named = {"target_name": self.default, "available_targets": [self.default]}
        reply = self.default if isinstance(self.default, Fault) else INFO.with_fields(**known, **named)
        await send_reply(self.bus, delivery, reply)


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RecordingFleet]:
    monkeypatch.setattr(amqp_transport, "FIRST_PAUSE_SECONDS", 0.02)
    memory = MemoryBroker()
    bus, token = memory.connect(), SessionToken.mint()
    rpc_client = RpcClient(bus)
    await bus.declare(METADATA_TOPOLOGY + target_topology("a") + target_topology("b"))
    await rpc_client.start()
    recording = RecordingFleet(bus, Client(AmqpTransport(rpc_client, token.text)), token)
    for queue in (target_queue("a"), target_queue("b"), UNROUTED_QUEUE):
        await bus.consume(queue, recording.on_call, prefetch=10)
    await bus.consume(METADATA_QUEUE, recording.on_operation, prefetch=10)
    yield recording
    await rpc_client.close()
    await bus.close()
    memory.close()


async def test_the_default_is_asked_for_once_and_then_called_directly(fleet: RecordingFleet) -> None:
    for _ in range(3):
        await fleet.client.invoke("x")
    assert fleet.arrived == ["info", "a", "a", "a"]
    assert fleet.bodies == [b'{"question":"x"}'] * 3


async def test_the_information_of_a_session_brings_its_default(fleet: RecordingFleet) -> None:
    await fleet.client.get_info()
    await fleet.client.invoke("x")
    assert fleet.arrived == ["info", "a"]


async def test_calls_that_start_together_ask_once(fleet: RecordingFleet) -> None:
    await asyncio.gather(*(fleet.client.invoke("x") for _ in range(4)))
    assert sorted(fleet.arrived) == ["a", "a", "a", "a", "info"]


async def test_calls_that_start_together_are_sent_although_nobody_knows_the_default(fleet: RecordingFleet) -> None:
    fleet.default = Unauthorized()
    await asyncio.gather(*(fleet.client.invoke("x") for _ in range(4)))
    assert sorted(fleet.arrived) == ["(none)", "(none)", "(none)", "(none)", "info"]


async def test_the_first_named_call_asks_how_many_slots_its_targets_workers_have(fleet: RecordingFleet) -> None:
    fleet.default = "b"
    await asyncio.gather(*(fleet.client.invoke("x", target="b") for _ in range(4)))
    await fleet.client.invoke("x", target="b")
    assert sorted(fleet.arrived) == [*["b"] * 5, "info"]


async def test_groups_are_learnt_with_the_default(fleet: RecordingFleet) -> None:
    fleet.group_slots = {"a": 64}
    await asyncio.gather(*(fleet.client.invoke("x") for _ in range(4)))
    assert INVOKE_GROUP_TYPE in fleet.types
    assert sorted(fleet.arrived) == ["a", "a", "a", "a", "info"]


async def test_a_default_that_is_unknown_now_is_asked_for_once_more(fleet: RecordingFleet) -> None:
    await fleet.client.invoke("x")
    fleet.answers["a"] = [UnknownTarget()]
    with pytest.raises(UnknownTarget):
        await fleet.client.invoke("x")
    fleet.default = "b"
    await fleet.client.invoke("x")
    await fleet.client.invoke("x")
    assert fleet.arrived == ["info", "a", "a", "info", "a", "info", "(none)", "b"]


async def test_a_request_id_that_another_target_had_is_left_to_the_metadata_service(fleet: RecordingFleet) -> None:
    fleet.answers = {"a": [RequestConflict()], "(none)": [answer("b")]}
    result = await fleet.client.send(InvokeRequest(question="x"), request_id="used for b")
    assert (result.target, fleet.arrived) == ("b", ["info", "a", "(none)"])


@pytest.mark.parametrize("fields", [{"target": ""}, {"target": "a.#"}, {"provider": "*"}])
async def test_a_name_that_no_target_can_have_is_not_the_default(fleet: RecordingFleet, fields: dict[str, str]) -> None:
    await fleet.client.send(InvokeRequest.model_validate({"question": "x", **fields}))
    assert fleet.arrived == ["(none)"]


async def test_so_many_sessions_are_kept_and_no_more() -> None:
    async def ask_again() -> Info:
        return INFO.with_fields(session_id="0", target_name="again")

    targets = DefaultTargets()
    for number in range(MAX_SESSIONS + 1):
        targets.note(INFO.with_fields(session_id=str(number)))
    assert await targets.resolve("0", ask_again) == "again"
    assert await targets.resolve(str(MAX_SESSIONS), ask_again) == "a"


@pytest.mark.parametrize("target", ["a", ""])
async def test_a_call_carries_a_proof_also_after_one_was_refused(fleet: RecordingFleet, target: str) -> None:
    fleet.default = Unauthorized()
    fleet.answers[target or "(none)"] = [Unauthorized(), answer("a")]
    with pytest.raises(Unauthorized):  # also by a hostile worker, who would get the token by refusing
        await fleet.client.invoke("x", target=target)
    await fleet.client.invoke("x", target=target)
    assert len(fleet.heard) == 2
    for delivery in fleet.heard:
        assert PROOF_HEADER in delivery.headers
        assert delivery.headers[TOKEN_HEADER] == fleet.token.id
        assert delivery_credential(delivery).matches(fleet.token.sha256)


# What no ledger decided is asked again under the same request id, and claims nothing.


async def send(fleet: RecordingFleet, *, deadline_seconds: float = 5) -> Result:
    return await fleet.client.send(InvokeRequest(question="x", target="a"), deadline_seconds=deadline_seconds)


@pytest.mark.parametrize(
    "unknown", [BudgetUnavailable, lambda: Overloaded(charge_unknown=True)], ids=["ledger away", "many duplicates"]
)
async def test_the_same_request_is_sent_again_until_a_ledger_has_spoken(
    fleet: RecordingFleet, unknown: Callable[[], Fault]
) -> None:
    fleet.answers["a"] = [unknown(), unknown(), answer("a")]
    assert (await send(fleet)).raw_text == "yes"
    assert len(fleet.heard) == 3
    same = {(seen.body, seen.headers[REQUEST_ID_HEADER], seen.headers[DEADLINE_HEADER]) for seen in fleet.heard}
    assert len(same) == 1


async def test_at_the_deadline_the_caller_is_told_that_nothing_is_known(fleet: RecordingFleet) -> None:
    fleet.answers["a"] = [BudgetUnavailable()]
    skip_waits()
    began = asyncio.get_running_loop().time()
    with pytest.raises(BudgetUnavailable) as told:
        await send(fleet, deadline_seconds=0.3)
    assert told.value.charged is None
    assert asyncio.get_running_loop().time() - began <= 0.5
    assert len(fleet.heard) > 2


@pytest.mark.parametrize(
    "word",
    [Overloaded("the session is paused"), Cancelled(charged=True), Expired(), Expired(charge_unknown=True)],
    ids=["paused", "charged", "uncharged", "past its deadline"],
)
async def test_words_of_a_ledger_and_the_end_of_the_time_are_passed_on(fleet: RecordingFleet, word: Fault) -> None:
    fleet.answers["a"] = [word]
    with pytest.raises(type(word)) as told:
        await send(fleet)
    assert told.value.charged == word.charged
    assert len(fleet.heard) == 1


async def test_a_chunk_that_cannot_be_read_is_dropped_and_the_answer_is_whole(fleet: RecordingFleet) -> None:
    one, pieces = Chunk(attempt=1, seq=0, delta="y"), list[Chunk]()
    fleet.chunks = [b"{", one.to_wire(), b'{"attempt": "x"}', b""]
    request = InvokeRequest(question="x", target="a")
    assert (await fleet.client.send(request, on_chunk=pieces.append)).raw_text == "yes"
    assert pieces == [one]

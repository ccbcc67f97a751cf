"""Every consumer of the system, fed with hostile deliveries: each is settled once, answered once, charged never.

The promise: no exception leaves a handler; a delivery ends in one ack, or as the dead letter that the code says; its
answer, where it gets one, is readable: a result, or a short fault of the table; no token is written anywhere; an
uncharged fault leaves the books as they were; and after all of it a good request is answered as before.

``--hypothesis-profile=long`` looks for longer, and elsewhere each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quintain.bus.base import Envelope
from quintain.contracts.credentials import SessionToken
from quintain.contracts.group import INVOKE_GROUP_TYPE, GroupItem, encode_item
from quintain.contracts.headers import CALL_HEADERS, PROTOCOL_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.invoke import FaultReply, Result
from quintain.errors import Fault
from quintain.rpc.requests import RpcRequest, parse_reply
from quintain.topology import DEAD, INVOKE, LEDGER, METADATA, REPLY, Exchange
from support import valid_messages
from support.delivery_checks import deliver, deliver_and_check
from support.fake_ledger_service import FakeEvaluator, fake_ledger_service, grant, next_item
from support.hostile_messages import HEADER_VALUES, VALUES, HostileMessage, Raw, bodies, deliveries, to_json
from support.observed_fleet import ADMIN_TOKEN, REPLY_KEY, DeliveryLog, ObservedFleet, observed_fleet, observed_worker

fuzz = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

ADMIN_OPERATIONS = {"open", "amend", "list", "show"}


@pytest.fixture(scope="module")
def fleet() -> Iterator[ObservedFleet]:
    with observed_fleet() as fleet:
        yield fleet


@fuzz
@given(data=st.data(), message=st.sampled_from([valid_messages.QUESTION, valid_messages.CONVERSATION]))
def test_a_targets_queue(fleet: ObservedFleet, data: st.DataObject, message: object) -> None:
    told = {TOKEN_HEADER: fleet.session.token, REQUEST_ID_HEADER: data.draw(st.sampled_from(["r1", "r2", "r3"]))}
    delivered = data.draw(deliveries(message, valid_headers=told, reply_to=REPLY_KEY))
    deliver_and_check(fleet, INVOKE, "a", delivered, needs_correlation_id=True)
    Result.from_wire(fleet.run(fleet.invoke()))


@fuzz
@given(data=st.data(), key=st.sampled_from(["", "", "nobody"]))
def test_the_queue_of_what_was_not_routed(fleet: ObservedFleet, data: st.DataObject, key: str) -> None:
    told = {TOKEN_HEADER: fleet.session.token}
    message = data.draw(st.sampled_from([valid_messages.QUESTION, valid_messages.CONVERSATION]))
    delivered = data.draw(deliveries(message, valid_headers=told, reply_to=REPLY_KEY))
    deliver_and_check(fleet, INVOKE, key, delivered, needs_correlation_id=True)
    Result.from_wire(fleet.run(fleet.invoke("")))


@fuzz
@given(data=st.data(), operation=st.sampled_from(sorted(valid_messages.operations(""))))
def test_the_operations(fleet: ObservedFleet, data: st.DataObject, operation: str) -> None:
    token = ADMIN_TOKEN if operation in ADMIN_OPERATIONS else fleet.session.token
    message = valid_messages.operations(fleet.other_session.session_id)[operation]
    delivered = data.draw(deliveries(message, valid_headers={TOKEN_HEADER: token}, reply_to=REPLY_KEY))
    deliver_and_check(fleet, METADATA, operation, delivered)


@fuzz
@given(data=st.data(), key=st.sampled_from(["register", "heartbeat", "admit", "admit"]))
def test_the_workers_own_operations(fleet: ObservedFleet, data: st.DataObject, key: str) -> None:
    messages = {"register": valid_messages.REGISTER, "heartbeat": valid_messages.HEARTBEAT}
    message = messages.get(key, valid_messages.admit_batch(fleet.session.token))
    delivered = data.draw(deliveries(message, valid_headers={}, reply_to=REPLY_KEY))
    deliver_and_check(fleet, LEDGER, key, delivered)


@fuzz
@given(data=st.data())
def test_the_settles(fleet: ObservedFleet, data: st.DataObject) -> None:
    before = fleet.run(fleet.info())
    message = valid_messages.settle_batch(fleet.session.session_id)
    assert deliver(fleet, LEDGER, "settle", data.draw(deliveries(message, valid_headers={}, reply_to=REPLY_KEY))) == []
    assert fleet.run(fleet.info()) == before


@fuzz
@given(data=st.data())
def test_the_dead_letters(fleet: ObservedFleet, data: st.DataObject) -> None:
    told = {TOKEN_HEADER: fleet.session.token, "x-first-death-reason": "expired"}
    delivered = data.draw(deliveries(valid_messages.QUESTION, valid_headers=told, reply_to=REPLY_KEY))
    deliver_and_check(fleet, DEAD, "a", delivered, needs_correlation_id=True, allow_internal=True)


#: Texts that a head of JSON can hold, and some that no property of AMQP can.
NAMES = st.one_of(
    st.sampled_from([Raw('"\\ud800"'), Raw('"x\\udc00\\ud800"'), Raw('"\\u0000"'), "x" * 255, "x" * 256, "ü" * 128]),
    st.sampled_from(["", "n1", "c", "💥" * 64, "x" * 5_000]),
    st.text(max_size=300),
)


@fuzz
@given(data=st.data(), place=st.sampled_from([(INVOKE, "a"), (INVOKE, ""), (DEAD, "a")]), is_invented=st.booleans())
def test_an_item_of_a_group(
    fleet: ObservedFleet, data: st.DataObject, place: tuple[Exchange, str], *, is_invented: bool
) -> None:
    told = data.draw(st.dictionaries(st.sampled_from(sorted(CALL_HEADERS)), st.one_of(NAMES, VALUES), max_size=4))
    head = to_json({"correlationId": data.draw(NAMES), "headers": told})
    body = to_json(valid_messages.QUESTION)
    hostile = struct.pack(">II", len(head), len(body)) + head + body
    items = [hostile, *(encode_item(GroupItem(name, body)) for name in ("n1", "n2"))]
    token = SessionToken.mint().text if is_invented else fleet.session.token
    group = HostileMessage(
        body=b"".join(data.draw(st.permutations(items))),
        headers={TOKEN_HEADER: token, PROTOCOL_HEADER: 1},
        type=INVOKE_GROUP_TYPE,
        correlation_id="the group",
        reply_to=REPLY_KEY,
    )
    answers = deliver(fleet, *place, group)
    if [answer.correlation_id for answer in answers] != ["the group"]:
        names = [answer.correlation_id for answer in answers]
        assert (len(names), len(set(names)), {"n1", "n2"} - set(names)) == (3, 3, set())
    for answer in answers:
        (FaultReply if answer.type == "fault" else Result).from_wire(answer.body)


@fuzz
@given(data=st.data())
def test_the_answers_to_a_worker(fleet: ObservedFleet, data: st.DataObject) -> None:
    key = fleet.worker._rpc_client.reply_key
    message = valid_messages.admit_reply("t")
    delivered = HostileMessage(
        body=data.draw(st.one_of(bodies(message), st.just(to_json(message)))),
        headers={"x": data.draw(HEADER_VALUES)},
        type=data.draw(st.sampled_from(["result", "result", "result", "fault", "chunk", ""])),
        correlation_id=data.draw(st.sampled_from(["admit", "admit", "admit", "another", "", None])),
    )
    assert deliver(fleet, REPLY, key, delivered) == []
    Result.from_wire(fleet.run(fleet.invoke()))


@fuzz
@given(data=st.data())
def test_the_cancellations(fleet: ObservedFleet, data: st.DataObject) -> None:
    message = valid_messages.cancellation(fleet.session.session_id)
    key = fleet.worker._rpc_client.reply_key
    delivered = dataclasses.replace(
        data.draw(deliveries(message, valid_headers={}, reply_to=REPLY_KEY)), correlation_id="cancel"
    )
    assert deliver(fleet, REPLY, key, delivered) == []
    Result.from_wire(fleet.run(fleet.invoke()))


@fuzz
@given(data=st.data())
def test_the_answers_about_a_call_that_waits(data: st.DataObject) -> None:
    told = data.draw(bodies(valid_messages.admit_reply("@"), protected_keys=("attemptId",)))
    asyncio.run(_send_admit_reply(told))


async def _send_admit_reply(body: bytes) -> None:
    """Hold a worker's admit, give it this answer, then a good one: its caller hears one answer, whichever it was."""
    watch = DeliveryLog()
    async with fake_ledger_service(lambda _: None) as ledger, observed_worker(ledger.memory, watch):
        asker = FakeEvaluator(ledger.bus, "a")
        await asker.start()
        await asker.send_request()
        admit = await next_item(ledger.admits)
        key = ledger._last_admit.reply_to or ""
        wire = body.replace(b'"@"', to_json(admit.attempt_id))
        await ledger.bus.publish(REPLY, key, Envelope(body=wire, type="result", correlation_id="admit"))
        await ledger.answer_last_admit(grant(admit))
        reply = await next_item(asker.replies)
        kind = FaultReply if reply.type == "fault" else Result
        kind.from_wire(reply.body)
        while watch.running:
            await asyncio.sleep(0)
        assert asker.replies.empty()
        assert watch.unhandled_errors == []


@fuzz
@given(data=st.data(), message=st.sampled_from([valid_messages.RESULT, valid_messages.FAULT]))
def test_the_answers_to_a_caller(fleet: ObservedFleet, data: st.DataObject, message: object) -> None:
    body = data.draw(st.one_of(bodies(message), st.just(to_json(message))))
    types = data.draw(st.lists(st.sampled_from(["result", "fault", "progress", "chunk", ""]), max_size=3))
    fleet.run(_send_reply(fleet, [*types, "fault"], body))


async def _send_reply(fleet: ObservedFleet, types: list[str], body: bytes) -> None:
    """Ask where nobody answers, and answer in their stead: it ends with a result, or with a typed fault."""
    subscribed: list[str] = []

    async def answer_for_service() -> None:
        while not fleet.rpc_client._pending:
            await asyncio.sleep(0)
        subscribed.extend(fleet.rpc_client._pending)
        for kind in types:
            envelope = Envelope(body=body, type=kind, correlation_id=subscribed[0])
            await fleet.publisher_bus.publish(REPLY, fleet.rpc_client.reply_key, envelope)

    question = RpcRequest(exchange=REPLY, key=REPLY_KEY, type="x", body=b"", headers={}, deadline_seconds=10)
    reply, _ = await asyncio.gather(fleet.rpc_client.call(question), answer_for_service())
    with contextlib.suppress(Fault):
        assert parse_reply(reply, Result).to_wire()
    await fleet.wait_until_idle()
    assert fleet.rpc_client.in_flight == 0
    assert fleet.loop_errors == []

"""Every consumer of the system, fed with hostile deliveries: each is settled once, answered once, charged never.

The promise: no exception leaves a handler; a delivery ends in one ack, or as the dead letter that the code says; its
answer, where it gets one, is readable: a result, or a short fault of the table; no token is written anywhere; an
uncharged fault leaves the books as they were; and after all of it a good request is answered as before.

``--hypothesis-profile=long`` looks for longer, and elsewhere each time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quintain.bus.base import Envelope
from quintain.caller import Question, understood
from quintain.contracts.invoke import FaultReply, Result
from quintain.errors import Fault
from quintain.routes import REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.topology import CANCEL, DEAD, INVOKE, LEDGER, METADATA, REPLY
from support import honest
from support.hostile import HEADER_VALUES, Delivered, bodies, deliveries, json_of
from support.ledger_stand_in import Evaluator, grant, soon, stand_in
from support.promise import fed_and_answered, feed
from support.watched_fleet import ADMIN_TOKEN, REPLY_KEY, Watch, WatchedFleet, serving, watched_fleet

fuzz = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

ASKED_BY_THE_ADMINISTRATOR = {"open", "amend", "list", "show"}


@pytest.fixture(scope="module")
def fleet() -> Iterator[WatchedFleet]:
    with watched_fleet() as fleet:
        yield fleet


@fuzz
@given(data=st.data(), message=st.sampled_from([honest.QUESTION, honest.CONVERSATION]))
def test_a_targets_queue(fleet: WatchedFleet, data: st.DataObject, message: object) -> None:
    told = {TOKEN_HEADER: fleet.session.token, REQUEST_ID_HEADER: data.draw(st.sampled_from(["r1", "r2", "r3"]))}
    delivered = data.draw(deliveries(message, honest=told, reply_to=REPLY_KEY))
    fed_and_answered(fleet, INVOKE, "a", delivered, correlated=True)
    Result.from_wire(fleet.run(fleet.invoke()))


@fuzz
@given(data=st.data(), key=st.sampled_from(["", "", "nobody"]))
def test_the_queue_of_what_was_not_routed(fleet: WatchedFleet, data: st.DataObject, key: str) -> None:
    told = {TOKEN_HEADER: fleet.session.token}
    message = data.draw(st.sampled_from([honest.QUESTION, honest.CONVERSATION]))
    delivered = data.draw(deliveries(message, honest=told, reply_to=REPLY_KEY))
    fed_and_answered(fleet, INVOKE, key, delivered, correlated=True)
    Result.from_wire(fleet.run(fleet.invoke("")))


@fuzz
@given(data=st.data(), operation=st.sampled_from(sorted(honest.operations(""))))
def test_the_operations(fleet: WatchedFleet, data: st.DataObject, operation: str) -> None:
    token = ADMIN_TOKEN if operation in ASKED_BY_THE_ADMINISTRATOR else fleet.session.token
    message = honest.operations(fleet.other.session_id)[operation]
    delivered = data.draw(deliveries(message, honest={TOKEN_HEADER: token}, reply_to=REPLY_KEY))
    fed_and_answered(fleet, METADATA, operation, delivered)


@fuzz
@given(data=st.data(), key=st.sampled_from(["register", "heartbeat", "admit", "admit"]))
def test_the_workers_own_operations(fleet: WatchedFleet, data: st.DataObject, key: str) -> None:
    messages = {"register": honest.REGISTER, "heartbeat": honest.HEARTBEAT}
    message = messages.get(key, honest.admits(fleet.session.token))
    delivered = data.draw(deliveries(message, honest={}, reply_to=REPLY_KEY))
    fed_and_answered(fleet, LEDGER, key, delivered)


@fuzz
@given(data=st.data())
def test_the_settles(fleet: WatchedFleet, data: st.DataObject) -> None:
    before = fleet.run(fleet.info())
    message = honest.settles(fleet.session.session_id)
    assert feed(fleet, LEDGER, "settle", data.draw(deliveries(message, honest={}, reply_to=REPLY_KEY))) == []
    assert fleet.run(fleet.info()) == before


@fuzz
@given(data=st.data())
def test_the_dead_letters(fleet: WatchedFleet, data: st.DataObject) -> None:
    told = {TOKEN_HEADER: fleet.session.token, "x-first-death-reason": "expired"}
    delivered = data.draw(deliveries(honest.QUESTION, honest=told, reply_to=REPLY_KEY))
    fed_and_answered(fleet, DEAD, "a", delivered, correlated=True, internal=True)


@fuzz
@given(data=st.data())
def test_the_answers_to_a_worker(fleet: WatchedFleet, data: st.DataObject) -> None:
    key = fleet.worker._caller.reply_key
    message = honest.admitted("t")
    delivered = Delivered(
        body=data.draw(st.one_of(bodies(message), st.just(json_of(message)))),
        headers={"x": data.draw(HEADER_VALUES)},
        type=data.draw(st.sampled_from(["result", "result", "result", "fault", "chunk", ""])),
        correlation_id=data.draw(st.sampled_from(["admit", "admit", "admit", "another", "", None])),
    )
    assert feed(fleet, REPLY, key, delivered) == []
    Result.from_wire(fleet.run(fleet.invoke()))


@fuzz
@given(data=st.data())
def test_the_cancellations(fleet: WatchedFleet, data: st.DataObject) -> None:
    message = honest.taken_back(fleet.session.session_id)
    assert feed(fleet, CANCEL, "", data.draw(deliveries(message, honest={}, reply_to=REPLY_KEY))) == []
    Result.from_wire(fleet.run(fleet.invoke()))


@fuzz
@given(data=st.data())
def test_the_answers_about_a_call_that_waits(data: st.DataObject) -> None:
    told = data.draw(bodies(honest.admitted("@"), keeping=("attemptId",)))
    asyncio.run(_told(told))


async def _told(body: bytes) -> None:
    """Hold a worker's admit, give it this answer, then a good one: its caller hears one answer, whichever it was."""
    watch = Watch()
    async with stand_in(lambda _: None) as ledger, serving(ledger.memory, watch):
        asker = Evaluator(ledger.bus, "a")
        await asker.start()
        await asker.ask()
        admit = await soon(ledger.admits)
        assert ledger._last_admit is not None
        key = ledger._last_admit.reply_to or ""
        wire = body.replace(b'"@"', json_of(admit.attempt_id))
        await ledger.bus.publish(REPLY, key, Envelope(body=wire, type="result", correlation_id="admit"))
        await ledger.tell(grant(admit))
        reply = await soon(asker.replies)
        kind = FaultReply if reply.type == "fault" else Result
        kind.from_wire(reply.body)
        while watch.running:
            await asyncio.sleep(0)
        assert asker.replies.empty()
        assert watch.escaped == []


@fuzz
@given(data=st.data(), message=st.sampled_from([honest.RESULT, honest.FAULT]))
def test_the_answers_to_a_caller(fleet: WatchedFleet, data: st.DataObject, message: object) -> None:
    body = data.draw(st.one_of(bodies(message), st.just(json_of(message))))
    types = data.draw(st.lists(st.sampled_from(["result", "fault", "progress", "chunk", ""]), max_size=3))
    fleet.run(_heard(fleet, [*types, "fault"], body))


async def _heard(fleet: WatchedFleet, types: list[str], body: bytes) -> None:
    """Ask where nobody answers, and answer in their stead: it ends with a result, or with a typed fault."""
    subscribed: list[str] = []

    async def answer_instead() -> None:
        while not fleet.caller._pending:
            await asyncio.sleep(0)
        subscribed.extend(fleet.caller._pending)
        for kind in types:
            envelope = Envelope(body=body, type=kind, correlation_id=subscribed[0])
            await fleet.stranger.publish(REPLY, fleet.caller.reply_key, envelope)

    question = Question(exchange=REPLY, key=REPLY_KEY, type="x", body=b"", headers={}, deadline_seconds=10)
    reply, _ = await asyncio.gather(fleet.caller.ask(question), answer_instead())
    with contextlib.suppress(Fault):
        assert understood(reply, Result).to_wire()
    await fleet.quiet()
    assert fleet.caller.in_flight == 0
    assert fleet.lost == []

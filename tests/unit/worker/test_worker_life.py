"""A call's life in the worker: admitted, asked, settled and answered, acknowledged; and what survives what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import Delivery
from quintain.bus.memory import MemoryBroker
from quintain.contracts.invoke import FaultReply, OutputMessage, Result, TokenUsage
from quintain.contracts.ledger import Admission, Outcome, TargetCard
from quintain.errors import BudgetExhausted, ProviderFailed, Throttled
from quintain.routes import DEADLINE_HEADER, PROTOCOL_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.topology import DEAD_QUEUE, target_queue
from quintain_worker import answering, desk
from quintain_worker.handler import Served
from quintain_worker.port import Answer, Billing, ProviderFailure
from quintain_worker.worker import Worker
from support.ledger_stand_in import Evaluator, LedgerStandIn, grant, soon, stand_in
from support.quick import timings
from support.working import Gate, acknowledged, fault_for, result_for, unacknowledged, working


@pytest.fixture
async def ledger() -> AsyncIterator[LedgerStandIn]:
    async with stand_in() as ledger:
        yield ledger


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def worker(ledger: LedgerStandIn, gate: Gate) -> AsyncIterator[Worker]:
    async with working(ledger, gate) as (worker, _):
        yield worker


@pytest.fixture
async def evaluator(ledger: LedgerStandIn) -> Evaluator:
    evaluator = Evaluator(ledger.bus, "a")
    await evaluator.start()
    return evaluator


async def test_a_granted_call_is_asked_settled_and_answered(
    ledger: LedgerStandIn, gate: Gate, worker: Worker, evaluator: Evaluator
) -> None:
    await evaluator.ask(body=b'{"question": "why?", "systemPrompt": "be brief"}')
    reply = await soon(evaluator.replies)
    assert (reply.type, reply.correlation_id, reply.headers[REQUEST_ID_HEADER]) == ("result", "c1", "r-c1")
    result = Result.from_wire(reply.body)
    assert (result.raw_text, result.target, result.call_count, result.max_calls) == ("yes", "a", 1, 10)
    assert (await gate.asked.get()).system_prompt == "be brief"
    settle, admit = await soon(ledger.settles), await ledger.admits.get()
    assert (settle.outcome, settle.attempt_id, settle.request_id) == (Outcome.RESULT, admit.attempt_id, "r-c1")
    assert settle.reply == result
    assert settle.token_usage == TokenUsage(input=1, output=2)
    assert settle.session_id == evaluator.token.split("_")[2]
    assert admit.token == evaluator.token


async def test_a_delivery_is_acknowledged_only_after_its_settle_and_its_reply_are_out(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator
) -> None:
    async with working(ledger, gate, at_once=1, timings=timings(publish_pause_seconds=0.01)):
        await ledger.lose_settle_queue()
        await evaluator.ask()
        await soon(gate.asked)
        for _ in range(5):
            await asyncio.sleep(0.01)
            assert unacknowledged(ledger.memory)
        assert evaluator.replies.empty()
        await ledger.find_settle_queue()
        assert (await result_for(evaluator)).raw_text == "yes"
        assert (await soon(ledger.settles)).outcome is Outcome.RESULT
        await acknowledged(ledger.memory)
        assert evaluator.replies.empty()
        assert gate.asked.empty()


async def test_a_reply_is_published_again_for_as_long_as_the_broker_is_away(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator
) -> None:
    ledger.judge = lambda ask: grant(ask, store_replies=False)  # nobody else has the answer
    async with working(ledger, gate, at_once=1, timings=timings(publish_pause_seconds=0.01)) as (_, bus):
        bus.away = True
        await evaluator.ask()
        assert (await soon(ledger.settles)).outcome is Outcome.RESULT
        for _ in range(3):
            await asyncio.sleep(0.01)
            assert unacknowledged(ledger.memory)
        bus.away = False
        assert (await result_for(evaluator)).raw_text == "yes"
        await acknowledged(ledger.memory)
        assert gate.asked.qsize() == 1


async def test_a_reply_queue_that_is_gone_is_no_error(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(ledger, gate, at_once=1):
        await evaluator.ask(reply_to="somebody who left")
        assert (await soon(ledger.settles)).outcome is Outcome.RESULT
        await acknowledged(ledger.memory)
        await evaluator.ask("c2")
        assert (await result_for(evaluator)).raw_text == "yes"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_refusal_is_passed_on_and_calls_nobody(
    ledger: LedgerStandIn, gate: Gate, worker: Worker, evaluator: Evaluator
) -> None:
    refusal = FaultReply.of(BudgetExhausted("Max calls exceeded (limit: 1)"))
    ledger.judge = lambda ask: Admission(attempt_id=ask.attempt_id, fault=refusal)
    await evaluator.ask()
    assert await fault_for(evaluator) == refusal
    assert gate.asked.empty()
    assert ledger.settles.empty()


async def test_a_stored_answer_is_passed_on_and_calls_nobody(
    ledger: LedgerStandIn, gate: Gate, worker: Worker, evaluator: Evaluator
) -> None:
    kept = Result(output=[OutputMessage(content="kept")], raw_text="kept", target="a", call_count=1, max_calls=1)
    ledger.judge = lambda ask: Admission(attempt_id=ask.attempt_id, replay=kept)
    await evaluator.ask()
    assert await result_for(evaluator) == kept
    assert gate.asked.empty()


@pytest.mark.parametrize(
    ("failure", "outcome", "code", "charged"),
    [
        (ProviderFailure(Throttled(), Billing.UNBILLED), Outcome.REFUND, "throttled", False),
        (ProviderFailure(ProviderFailed(charged=True), Billing.BILLED), Outcome.CHARGED, "provider_error", True),
        (ProviderFailure(ProviderFailed(charged=True), Billing.UNKNOWN), Outcome.DOUBT, "provider_error", True),
        (ZeroDivisionError("a defect"), Outcome.DOUBT, "internal", True),
    ],
)
async def test_a_failure_is_told_and_settled_alike(
    ledger: LedgerStandIn,
    gate: Gate,
    worker: Worker,
    evaluator: Evaluator,
    failure: Exception,
    outcome: Outcome,
    code: str,
    charged: bool,
) -> None:
    gate.says = failure
    await evaluator.ask()
    fault, settle = await fault_for(evaluator), await soon(ledger.settles)
    assert (fault.code, fault.charged, settle.outcome) == (code, charged, outcome)
    assert settle.fault == fault
    assert settle.reply is None


async def test_a_session_that_keeps_no_replies_settles_without_one(
    ledger: LedgerStandIn, worker: Worker, evaluator: Evaluator
) -> None:
    ledger.judge = lambda ask: grant(ask, store_replies=False)
    await evaluator.ask()
    settle = await soon(ledger.settles)
    assert (settle.outcome, settle.reply, settle.token_usage) == (Outcome.RESULT, None, TokenUsage(input=1, output=2))


async def test_a_grant_that_comes_too_late_calls_nobody_and_costs_nothing(
    ledger: LedgerStandIn, gate: Gate, worker: Worker, evaluator: Evaluator
) -> None:
    ledger.judge = lambda ask: grant(ask, seconds=-1)
    await evaluator.ask()
    fault, settle = await fault_for(evaluator), await soon(ledger.settles)
    assert (fault.code, fault.charged, settle.outcome) == ("expired", False, Outcome.REFUND)
    assert gate.asked.empty()


async def test_a_silent_ledger_is_given_up_with_a_last_word_that_voids_a_late_grant(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator
) -> None:
    async with working(ledger, gate, timings=timings(admit_repeat_seconds=0.02, ledger_silence_seconds=0.1)):
        ledger.judge = lambda _: None
        await evaluator.ask()
        fault, settle = await fault_for(evaluator), await soon(ledger.settles)
        assert (fault.code, fault.retryable, fault.charged) == ("budget_unavailable", True, False)
        assert (settle.outcome, settle.attempt_id) == (Outcome.NEVER_SENT, (await ledger.admits.get()).attempt_id)
        assert settle.fault == fault  # its caller was refused: a reservation ends with it
        await ledger.tell(grant(await ledger.admits.get()))
        await evaluator.ask("c2", headers={TOKEN_HEADER: "junk"})  # a round trip: by now the grant was heard
        assert (await fault_for(evaluator)).code == "unauthorized"
        assert gate.asked.empty()


@pytest.mark.parametrize("token", [None, "", "junk", "qtn_ses_AAAAAAAAAAAA_short_000000"])
async def test_a_token_of_the_wrong_shape_is_refused_without_asking_the_ledger(
    ledger: LedgerStandIn, gate: Gate, worker: Worker, evaluator: Evaluator, token: str | None
) -> None:
    await evaluator.ask(body=b"{", headers={TOKEN_HEADER: token})
    reply = await soon(evaluator.replies)
    assert FaultReply.from_wire(reply.body).code == "unauthorized"
    assert reply.headers[REQUEST_ID_HEADER] == "r-c1"
    assert ledger.admits.empty()
    assert gate.asked.empty()


@pytest.mark.parametrize(
    ("body", "headers", "sentence"),
    [
        (b"{", {}, "The body is not JSON"),
        (b"{}", {}, "Missing required field: question"),
        (b'{"question": "x", "target": "b"}', {}, "target: the body names 'b', the routing key 'a'"),
        (b'{"question": "x"}', {PROTOCOL_HEADER: 2}, "this fleet speaks version 1, not 2"),
        (b'{"question": "x"}', {PROTOCOL_HEADER: "two"}, f"{PROTOCOL_HEADER}: a whole number"),
        (b'{"question": "x"}', {DEADLINE_HEADER: "soon"}, f"{DEADLINE_HEADER}: a whole number"),
        (b'{"question": "x"}', {DEADLINE_HEADER: "9" * 5000}, f"{DEADLINE_HEADER}: a whole number"),
        (b'{"question": "x"}', {DEADLINE_HEADER: 1.5}, f"{DEADLINE_HEADER}: a whole number"),
        (b'{"question": "x"}', {DEADLINE_HEADER: True}, f"{DEADLINE_HEADER}: a whole number"),
        (b'{"question": "x"}', {REQUEST_ID_HEADER: "r" * 129}, f"{REQUEST_ID_HEADER}: 1 to 128 characters"),
        (b'{"question": "%s"}' % (b"x" * 1024 * 1024), {}, "the limit is 1048576"),
    ],
)
async def test_what_is_wrong_with_a_request_is_left_to_the_ledger_to_refuse_after_the_token(
    ledger: LedgerStandIn,
    gate: Gate,
    worker: Worker,
    evaluator: Evaluator,
    body: bytes,
    headers: dict[str, str | int | float | bool | None],
    sentence: str,
) -> None:
    ledger.judge = lambda ask: Admission(attempt_id=ask.attempt_id, fault=ask.problem)
    await evaluator.ask(body=body, headers=headers)
    fault = await fault_for(evaluator)
    assert sentence in fault.error
    assert fault.code in {"bad_request", "payload_too_large"}
    assert gate.asked.empty()


async def test_a_sentence_that_quotes_the_caller_is_no_burden_to_its_neighbours(
    ledger: LedgerStandIn, worker: Worker, evaluator: Evaluator
) -> None:
    ledger.judge = lambda ask: Admission(attempt_id=ask.attempt_id, fault=ask.problem)
    for body in ({"question": "x", "target": "b" * 900_000}, {"question": "x", "metadata": {"b" * 900_000: 1}}):
        await evaluator.ask(body=json.dumps(body).encode())
        fault = await fault_for(evaluator)
        assert fault.code == "bad_request"
        assert len(fault.error) < 600


@pytest.mark.parametrize("missing", ["reply_to", "correlation_id"])
async def test_what_cannot_be_answered_is_a_dead_letter(
    ledger: LedgerStandIn, gate: Gate, worker: Worker, evaluator: Evaluator, missing: str
) -> None:
    dead: asyncio.Queue[Delivery] = asyncio.Queue()

    async def bury(delivery: Delivery) -> None:
        await delivery.ack()
        dead.put_nowait(delivery)

    await ledger.bus.consume(DEAD_QUEUE, bury, prefetch=1)
    await evaluator.ask(**{missing: None})  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        assert (await dead.get()).headers["x-first-death-reason"] == "rejected"
    assert ledger.admits.empty()
    assert gate.asked.empty()


async def test_half_a_character_is_carried_as_a_whole_one_and_loses_no_neighbour(
    ledger: LedgerStandIn, gate: Gate, worker: Worker, evaluator: Evaluator
) -> None:
    gate.open.clear()
    gate.says = Answer(text="cut off: \ud83d")
    for number in range(3):
        await evaluator.ask(f"c{number}")
        await gate.asked.get()
    gate.open.set()
    texts = {(await result_for(evaluator)).raw_text for _ in range(3)}
    assert texts == {"cut off: \N{REPLACEMENT CHARACTER}"}
    assert [(await soon(ledger.settles)).outcome for _ in range(3)] == [Outcome.RESULT] * 3


@pytest.mark.parametrize(
    "answer",
    [
        Answer(text=7),  # type: ignore[arg-type]
        Answer(text="x", model="\ud83d"),
        Answer(text="x", token_usage="many"),  # type: ignore[arg-type]
        Answer(text="x", output=["not a message"]),  # type: ignore[list-item]
    ],
)
async def test_an_answer_that_no_reply_can_carry_is_charged_and_loses_no_neighbour(
    ledger: LedgerStandIn, evaluator: Evaluator, answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = Gate(answer), Gate()
    async with working(ledger, broken, sound):
        neighbour = Evaluator(ledger.bus, "b")
        await neighbour.start()
        for gate in (broken, sound):
            gate.open.clear()
        await evaluator.ask()
        await neighbour.ask("c2")
        await broken.asked.get()
        await sound.asked.get()
        for gate in (broken, sound):
            gate.open.set()
        fault = await fault_for(evaluator)
        assert (fault.code, fault.charged) == ("provider_error", True)
        assert (await result_for(neighbour)).raw_text == "yes"
        assert {(await soon(ledger.settles)).outcome for _ in range(2)} == {Outcome.CHARGED, Outcome.RESULT}
    assert "cannot be carried" in caplog.text


async def test_an_answer_larger_than_a_reply_may_be_is_charged(
    ledger: LedgerStandIn, gate: Gate, worker: Worker, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "MOST_REPLY_BYTES", 1000)
    gate.says = Answer(text="ü" * 400)  # 400 characters, and 1,600 bytes: the text is in a result twice
    await evaluator.ask()
    fault, settle = await fault_for(evaluator), await soon(ledger.settles)
    assert (fault.code, fault.charged, settle.outcome) == ("reply_too_large", True, Outcome.CHARGED)


async def test_large_results_are_settled_alone_and_small_ones_together(
    ledger: LedgerStandIn, gate: Gate, worker: Worker, evaluator: Evaluator
) -> None:
    for size, batches in ((desk.ALONE_BYTES, [1] * 5), (10, [5])):
        gate.open.clear()
        gate.says = Answer(text="x" * size)
        for number in range(5):
            await evaluator.ask(f"c{number}")
            await gate.asked.get()
        ledger.settle_batches.clear()
        gate.open.set()
        for _ in range(5):
            assert (await soon(ledger.settles)).outcome is Outcome.RESULT
        assert ledger.settle_batches == batches


async def test_a_handler_outlives_its_connection_settles_late_and_is_answered_the_same_twice(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator
) -> None:
    gate.open.clear()
    async with working(ledger, gate) as (_, bus):
        await evaluator.ask()
        await gate.asked.get()
        bus.cut()
        gate.open.set()
        first, settle = await result_for(evaluator), await soon(ledger.settles)
        assert settle.outcome is Outcome.RESULT
        assert settle.attempt_id == (await ledger.admits.get()).attempt_id
        again = await result_for(evaluator)
        assert (first.replayed, again.replayed) == (False, True)
        assert again == first.model_copy(update={"replayed": True})
        assert gate.asked.empty()  # one call of the provider, whatever the broker did
        assert (ledger.settles.empty(), ledger.admits.empty()) == (True, True)
    assert not ledger.memory.queue(target_queue("a").name).ready


async def test_a_drain_finishes_what_runs_and_takes_no_more(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator
) -> None:
    gate.open.clear()
    async with working(ledger, gate) as (worker, _):
        await evaluator.ask("c1")
        await gate.asked.get()
        stopping = asyncio.get_running_loop().create_task(worker.stop(grace_seconds=5))
        await asyncio.sleep(0)
        await evaluator.ask("c2")
        assert not stopping.done()
        gate.open.set()
        await stopping
        reply = await soon(evaluator.replies)
        assert (reply.type, reply.correlation_id) == ("result", "c1")
        assert (await soon(ledger.settles)).outcome is Outcome.RESULT
        assert gate.closed
    assert [stored.envelope.correlation_id for stored in ledger.memory.queue(target_queue("a").name).ready] == ["c2"]
    assert evaluator.replies.empty()


async def test_a_drain_gives_back_what_has_not_started(ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator) -> None:
    ledger.judge = lambda _: "held"
    async with working(ledger, gate) as (worker, _):
        await evaluator.ask("c1", headers={"traceparent": "t", "x-mine": 1})
        admit = await ledger.admits.get()
        async with asyncio.timeout(2):
            await worker.stop(grace_seconds=30)
        settle = await soon(ledger.settles)
        assert (settle.outcome, settle.attempt_id, settle.fault) == (Outcome.NEVER_SENT, admit.attempt_id, None)
    (waiting,) = ledger.memory.queue(target_queue("a").name).ready
    assert (waiting.envelope.correlation_id, waiting.envelope.reply_to) == ("c1", evaluator.key)
    assert (waiting.headers["traceparent"], waiting.headers["x-mine"]) == ("t", 1)
    assert waiting.headers[TOKEN_HEADER] == evaluator.token
    assert waiting.returns == 0  # a copy: nothing counts against the queue's delivery limit
    assert waiting.envelope.expiration_ms is not None
    assert waiting.envelope.expiration_ms <= 60_000
    assert evaluator.replies.empty()
    other = Gate()
    ledger.judge = grant
    async with working(ledger, other):
        assert (await result_for(evaluator)).raw_text == "yes"


async def test_all_targets_share_one_grace(ledger: LedgerStandIn, caplog: pytest.LogCaptureFixture) -> None:
    gates = [Gate() for _ in range(3)]
    loop = asyncio.get_running_loop()
    async with working(ledger, *gates) as (worker, _):
        for gate, name in zip(gates, "abc", strict=True):
            gate.open.clear()
            await Evaluator(ledger.bus, name).ask()
        for gate in gates:
            await gate.asked.get()
        began = loop.time()
        await worker.stop(grace_seconds=0.2)
        assert 0.2 <= loop.time() - began < 0.39
    assert "outlived the grace" in caplog.text


async def test_a_worker_that_comes_first_waits_for_the_metadata_service(gate: Gate) -> None:
    memory = MemoryBroker()
    bus = memory.connect()
    card = TargetCard(name="a", provider="mock", max_concurrency=1)
    worker = Worker(bus, {"a": Served(name="a", provider=gate)}, [card], timings=timings(register_pause_seconds=0.05))
    starting = asyncio.get_running_loop().create_task(worker.start())
    await asyncio.sleep(0.05)
    assert not starting.done()
    late = LedgerStandIn(memory, memory.connect())
    await late.start()
    async with asyncio.timeout(5):
        await starting
    assert (await late.registers.get()).targets == [card]
    await worker.stop(grace_seconds=0)
    for one in (bus, late.bus):
        await one.close()
    memory.close()


async def test_a_worker_renews_its_lease_under_one_incarnation(ledger: LedgerStandIn, gate: Gate) -> None:
    async with working(ledger, gate, timings=timings(heartbeat_seconds=0.01)):
        beats = [await soon(ledger.heartbeats) for _ in range(3)]
        registered = await ledger.registers.get()
    assert {beat.incarnation for beat in beats} == {registered.incarnation}
    assert ledger.registers.empty()


async def test_a_ledger_that_forgot_the_worker_hears_its_targets_again_however_long_that_takes(
    ledger: LedgerStandIn, gate: Gate
) -> None:
    async with working(ledger, gate, timings=timings(heartbeat_seconds=0.05, register_timeout_seconds=0.05)):
        await soon(ledger.registers)
        ledger.deaf_to.add("register")
        ledger.known = False
        await soon(ledger.heartbeats)
        await soon(ledger.registers)
        ledger.known = True  # the ledger says so only once: the heartbeat itself made the worker known
        ledger.deaf_to.clear()
        await soon(ledger.registers)

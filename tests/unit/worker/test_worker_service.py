"""A call's life in the worker: admitted, asked, settled and answered, acknowledged; and what survives what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import Delivery
from quintain.bus.memory import MemoryBroker
from quintain.contracts.headers import DEADLINE_HEADER, PROTOCOL_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.invoke import FaultReply, Result, TokenUsage
from quintain.contracts.ledger import Admission, AttemptOutcome, TargetCard
from quintain.contracts.message import MAX_BODY_BYTES
from quintain.errors import BadRequest
from quintain.topology import DEAD_QUEUE, HEARTBEAT_QUEUE, target_queue
from quintain_worker.providers.provider import ProviderAnswer
from quintain_worker.target import WorkerTarget
from quintain_worker.worker import Worker
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, grant, next_item
from support.quick import timings
from support.running_worker import GatedProvider, next_fault, next_result, running_worker
from support.skipped_time import skip_waits
from support.waiting import wait_until


@pytest.fixture
def gated_provider() -> GatedProvider:
    return GatedProvider()


@pytest.fixture
async def worker(ledger: FakeLedgerService, gated_provider: GatedProvider) -> AsyncIterator[Worker]:
    async with running_worker(ledger, gated_provider) as (worker, _):
        yield worker


async def test_a_granted_call_is_asked_settled_and_answered(
    ledger: FakeLedgerService, gated_provider: GatedProvider, worker: Worker, evaluator: FakeEvaluator
) -> None:
    await evaluator.send_request(body=b'{"question": "why?", "systemPrompt": "be brief"}')
    reply = await next_item(evaluator.replies)
    assert (reply.type, reply.correlation_id, reply.headers[REQUEST_ID_HEADER]) == ("result", "c1", "r-c1")
    result = Result.from_wire(reply.body)
    assert (result.raw_text, result.target, result.call_count, result.max_calls) == ("yes", "a", 1, 10)
    asked = await gated_provider.requests.get()
    assert (asked.system_prompt, asked.target) == ("be brief", "a"), "the target's name, though the body has none"
    settle, admit = await next_item(ledger.settles), await ledger.admits.get()
    assert (settle.outcome, settle.attempt_id, settle.request_id) == (AttemptOutcome.RESULT, admit.attempt_id, "r-c1")
    assert settle.reply == reply.body.decode()
    assert (settle.queued_ms, settle.duration_ms) == (result.queued_ms, result.duration_ms)
    assert settle.token_usage == TokenUsage(input=1, output=2)
    assert settle.session_id == evaluator.token.split("_")[2]
    assert admit.token == evaluator.token


async def test_a_session_that_keeps_no_replies_settles_without_one(
    ledger: FakeLedgerService, worker: Worker, evaluator: FakeEvaluator
) -> None:
    ledger.admit_policy = lambda ask: grant(ask, store_replies=False)
    await evaluator.send_request()
    settle = await next_item(ledger.settles)
    assert (settle.outcome, settle.reply, settle.token_usage) == (
        AttemptOutcome.RESULT,
        None,
        TokenUsage(input=1, output=2),
    )


async def test_a_silent_ledger_is_given_up_with_a_last_word_that_voids_a_late_grant(
    ledger: FakeLedgerService, gated_provider: GatedProvider, evaluator: FakeEvaluator
) -> None:
    skip_waits()
    async with running_worker(
        ledger, gated_provider, timings=timings(admit_repeat_seconds=0.02, ledger_silence_seconds=0.1)
    ):
        ledger.admit_policy = lambda _: None
        await evaluator.send_request()
        admit, repeat = await next_item(ledger.admits), await next_item(ledger.admits)
        fault, settle = await next_fault(evaluator), await next_item(ledger.settles)
        assert (fault.code, fault.retryable, fault.charge_unknown) == ("budget_unavailable", True, True)
        assert (settle.outcome, settle.attempt_id) == (AttemptOutcome.NEVER_SENT, admit.attempt_id)
        assert settle.fault == fault  # its caller was refused: a reservation ends with it
        await ledger.answer_last_admit(grant(repeat))
        await evaluator.send_request("c2", headers={TOKEN_HEADER: "junk"})  # a round trip: by now the grant was heard
        assert (await next_fault(evaluator)).code == "unauthorized"
        assert gated_provider.requests.empty()


@pytest.mark.parametrize("token", [None, "", "junk", "qtn_ses_AAAAAAAAAAAA_short_000000"])
async def test_a_token_of_the_wrong_shape_is_refused_without_asking_the_ledger(
    ledger: FakeLedgerService,
    gated_provider: GatedProvider,
    worker: Worker,
    evaluator: FakeEvaluator,
    token: str | None,
) -> None:
    await evaluator.send_request(body=b"{", headers={TOKEN_HEADER: token})
    reply = await next_item(evaluator.replies)
    assert FaultReply.from_wire(reply.body).code == "unauthorized"
    assert reply.headers[REQUEST_ID_HEADER] == "r-c1"
    assert ledger.admits.empty()
    assert gated_provider.requests.empty()


@pytest.mark.parametrize(
    ("body", "headers", "sentence"),
    [
        (b"{", {}, "The body is not JSON"),
        (b"{}", {}, "Missing required field: question"),
        (b'{"question": "x", "target": "b"}', {}, "target: the body names 'b', the routing key 'a'"),
        (b'{"question": "x"}', {PROTOCOL_HEADER: 2}, "this fleet speaks version 1, not 2"),
        (b'{"question": "x"}', {PROTOCOL_HEADER: "two"}, f"{PROTOCOL_HEADER}: it must be a whole number"),
        (b'{"question": "x"}', {DEADLINE_HEADER: "soon"}, f"{DEADLINE_HEADER}: it must be a whole number"),
        (b'{"question": "x"}', {DEADLINE_HEADER: "9" * 5000}, f"{DEADLINE_HEADER}: it must be a whole number"),
        (b'{"question": "x"}', {DEADLINE_HEADER: 1.5}, f"{DEADLINE_HEADER}: it must be a whole number"),
        (b'{"question": "x"}', {DEADLINE_HEADER: True}, f"{DEADLINE_HEADER}: it must be a whole number"),
        (b'{"question": "x"}', {REQUEST_ID_HEADER: "r" * 129}, f"{REQUEST_ID_HEADER}: 1 to 128 characters"),
        (b'{"question": "x"}', {REQUEST_ID_HEADER: ""}, f"{REQUEST_ID_HEADER}: 1 to 128 characters"),
        (b'{"question": "x"}', {REQUEST_ID_HEADER: 7}, f"{REQUEST_ID_HEADER}: 1 to 128 characters"),
        (b'{"question": "x", "question": "y"}', {}, "question: the name stands twice"),
        (b'{"question": "x", "settings": {"seed": 1, "seed": 2}}', {}, "seed: the name stands twice"),
        (b'{"question": "%s"}' % (b"x" * MAX_BODY_BYTES), {}, "no session may send more than 16777216"),
    ],
)
async def test_what_is_wrong_with_a_request_is_left_to_the_ledger_to_refuse_after_the_token(
    ledger: FakeLedgerService,
    gated_provider: GatedProvider,
    worker: Worker,
    evaluator: FakeEvaluator,
    body: bytes,
    headers: dict[str, str | int | float | bool | None],
    sentence: str,
) -> None:
    ledger.admit_policy = lambda ask: Admission(attempt_id=ask.attempt_id, fault=ask.problem)
    await evaluator.send_request(body=body, headers=headers)
    fault = await next_fault(evaluator)
    assert sentence in fault.error
    assert fault.code in {"bad_request", "payload_too_large"}
    assert gated_provider.requests.empty()


@pytest.mark.parametrize("missing", ["reply_to", "correlation_id"])
async def test_what_cannot_be_answered_is_a_dead_letter(
    ledger: FakeLedgerService, gated_provider: GatedProvider, worker: Worker, evaluator: FakeEvaluator, missing: str
) -> None:
    dead: asyncio.Queue[Delivery] = asyncio.Queue()

    async def bury(delivery: Delivery) -> None:
        await delivery.ack()
        dead.put_nowait(delivery)

    await ledger.bus.consume(DEAD_QUEUE, bury, prefetch=1)
    await evaluator.send_request(**{missing: None})  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        assert (await dead.get()).headers["x-first-death-reason"] == "rejected"
    assert ledger.admits.empty()
    assert gated_provider.requests.empty()


@pytest.mark.parametrize(
    "answer",
    [
        ProviderAnswer(text=7),  # type: ignore[arg-type]
        ProviderAnswer(text="x", model="\ud83d"),
        ProviderAnswer(text="x", token_usage="many"),  # type: ignore[arg-type]
        ProviderAnswer(text="x", output=["not a message"]),  # type: ignore[list-item]
    ],
)
async def test_an_answer_that_no_reply_can_carry_is_charged_and_loses_no_neighbour(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, answer: ProviderAnswer, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = GatedProvider(answer), GatedProvider()
    async with running_worker(ledger, broken, sound):
        neighbour = FakeEvaluator(ledger.bus, "b")
        await neighbour.start()
        for gate in (broken, sound):
            gate.open.clear()
        await evaluator.send_request()
        await neighbour.send_request("c2")
        await broken.requests.get()
        await sound.requests.get()
        for gate in (broken, sound):
            gate.open.set()
        fault = await next_fault(evaluator)
        assert (fault.code, fault.charged) == ("provider_error", True)
        assert (await next_result(neighbour)).raw_text == "yes"
        assert {(await next_item(ledger.settles)).outcome for _ in range(2)} == {
            AttemptOutcome.CHARGED,
            AttemptOutcome.RESULT,
        }
    assert "cannot be encoded as a reply" in caplog.text


async def test_a_drain_gives_back_what_has_not_started(
    ledger: FakeLedgerService, gated_provider: GatedProvider, evaluator: FakeEvaluator
) -> None:
    ledger.admit_policy = lambda _: "held"
    async with running_worker(ledger, gated_provider) as (worker, _):
        await evaluator.send_request("c1", headers={"traceparent": "t", "x-mine": 1})
        admit = await ledger.admits.get()
        async with asyncio.timeout(2):
            await worker.stop(grace_seconds=30)
        settle = await next_item(ledger.settles)
        assert (settle.outcome, settle.attempt_id, settle.fault) == (AttemptOutcome.NEVER_SENT, admit.attempt_id, None)
    (waiting,) = ledger.memory.queue(target_queue("a").name).ready
    assert (waiting.envelope.correlation_id, waiting.envelope.reply_to) == ("c1", evaluator.reply_key)
    assert (waiting.headers["traceparent"], waiting.headers["x-mine"]) == ("t", 1)
    assert waiting.headers[TOKEN_HEADER] == evaluator.token
    assert waiting.return_count == 0  # a copy: nothing counts against the queue's delivery limit
    assert waiting.envelope.expiration_ms is not None
    assert waiting.envelope.expiration_ms <= 60_000
    assert evaluator.replies.empty()
    other = GatedProvider()
    ledger.admit_policy = grant
    async with running_worker(ledger, other):
        assert (await next_result(evaluator)).raw_text == "yes"


async def test_all_targets_share_one_grace(ledger: FakeLedgerService, caplog: pytest.LogCaptureFixture) -> None:
    skip_waits()
    gates = [GatedProvider() for _ in range(3)]
    loop = asyncio.get_running_loop()
    async with running_worker(ledger, *gates) as (worker, _):
        for gate, name in zip(gates, "abc", strict=True):
            gate.open.clear()
            await FakeEvaluator(ledger.bus, name).send_request()
        for gate in gates:
            await gate.requests.get()
        began = loop.time()
        await worker.stop(grace_seconds=0.2)
        assert loop.time() - began == pytest.approx(0.2)
    assert "A call did not end within" in caplog.text


async def test_a_worker_that_comes_first_waits_for_the_metadata_service(gated_provider: GatedProvider) -> None:
    memory = MemoryBroker()
    bus = memory.connect()
    card = TargetCard(name="a", provider="mock", max_concurrency=1)
    worker = Worker(
        bus,
        {"a": WorkerTarget(name="a", provider=gated_provider)},
        [card],
        timings=timings(register_pause_seconds=0.05),
    )
    starting = asyncio.get_running_loop().create_task(worker.start())
    await asyncio.sleep(0.05)
    assert not starting.done()
    late = FakeLedgerService(memory, memory.connect())
    await late.start()
    async with asyncio.timeout(5):
        await starting
    assert (await late.registers.get()).targets == [card]
    await worker.stop(grace_seconds=0)
    for one in (bus, late.bus):
        await one.close()
    memory.close()


async def test_a_worker_that_is_refused_beats_all_the_same_and_its_card_says_why(
    ledger: FakeLedgerService, gated_provider: GatedProvider, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.refusal = BadRequest("protocol: 99 is not spoken here")
    bus, target_card = ledger.memory.connect(), TargetCard(name="a", provider="mock", max_concurrency=1)
    worker = Worker(
        bus,
        {"a": WorkerTarget(name="a", provider=gated_provider)},
        [target_card],
        timings=timings(register_pause_seconds=0.01, heartbeat_seconds=0.01),
    )
    starting = asyncio.get_running_loop().create_task(worker.start())
    incarnations = {(await next_item(ledger.heartbeats)).incarnation for _ in range(5)}
    await wait_until(lambda: worker.card().problem)
    assert (worker.card().problem, worker.card().targets) == ("protocol: 99 is not spoken here", [])
    assert not starting.done()
    told = [message for message in caplog.messages if "99" in message]
    assert told == ["Not registered yet: protocol: 99 is not spoken here"]
    ledger.refusal = None
    async with asyncio.timeout(30):
        await starting
    assert {(await next_item(ledger.registers)).incarnation} == incarnations
    assert (worker.card().problem, [one.name for one in worker.card().targets]) == (None, ["a"])
    await worker.stop(grace_seconds=0)
    await bus.close()


async def test_heartbeats_go_on_at_their_interval_without_an_answer_and_wait_until_leases_are_kept_anyway(
    ledger: FakeLedgerService, gated_provider: GatedProvider
) -> None:
    beating = timings(heartbeat_seconds=0.3, gap_seconds=3)
    async with running_worker(ledger, gated_provider, timings=beating):
        await ledger.bus.close()
        waiting = ledger.memory.queue(HEARTBEAT_QUEUE.name).ready
        async with asyncio.timeout(20):
            # Ten at most; five, if each began an interval after the last one's time was over.
            while len(waiting) < 7:
                await asyncio.sleep(0.05)


async def test_a_ledger_that_forgot_the_worker_hears_its_targets_again_however_long_that_takes(
    ledger: FakeLedgerService, gated_provider: GatedProvider
) -> None:
    async with running_worker(
        ledger, gated_provider, timings=timings(heartbeat_seconds=0.05, register_timeout_seconds=0.05)
    ):
        await next_item(ledger.registers)
        ledger.unanswered.add("register")
        ledger.known = False
        await next_item(ledger.heartbeats)
        await next_item(ledger.registers)
        ledger.known = True  # the ledger says so only once: the heartbeat itself made the worker known
        ledger.unanswered.clear()
        await next_item(ledger.registers)

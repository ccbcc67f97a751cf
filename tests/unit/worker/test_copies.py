"""Messages that a worker may not hold for as long as their calls last: copies of them, and calls that are put back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest

from quintain.contracts.group import GROUP_CONTENT_TYPE, INVOKE_GROUP_TYPE, encode_group
from quintain.contracts.headers import COPY_HEADER, PROTOCOL_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.invoke import OutputMessage, Result
from quintain.contracts.ledger import Admission, Admit
from quintain.errors import QueueFull
from quintain.topology import INVOKE, target_queue
from quintain_worker.inflight import HELD_PART
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, grant, next_item
from support.quick import timings
from support.running_worker import FlakyBus, GatedProvider, next_fault, next_result, running_worker
from support.waiting import wait_until
from unit.worker.test_quota_attempts import QUOTA, FailingProvider, throttled
from unit.worker.test_worker_groups import call_item, next_replies

Item = TypeVar("Item")

#: The consumer timeout of these tests: what it does to a message is seen after a moment.
TIMEOUT_SECONDS = 0.5

QUICK = timings(publish_pause_seconds=0.01, admit_repeat_seconds=0.05, deadline_grace_seconds=0.05)


@pytest.fixture
async def worker_bus(ledger: FakeLedgerService, gate: GatedProvider) -> AsyncIterator[FlakyBus]:
    """The bus of a worker with two slots."""
    served = running_worker(ledger, gate, timings=QUICK, max_concurrency=2, consumer_timeout_seconds=TIMEOUT_SECONDS)
    async with served as (_, bus):
        yield bus


@pytest.fixture
async def patient_bus(ledger: FakeLedgerService, gate: GatedProvider) -> AsyncIterator[FlakyBus]:
    """The bus of a worker with two slots that holds messages for as long as it does by default."""
    async with running_worker(ledger, gate, timings=QUICK, max_concurrency=2) as (_, bus):
        yield bus


@pytest.fixture
def gate() -> GatedProvider:
    """The provider, closed until a test opens it."""
    gate = GatedProvider()
    gate.open.clear()
    return gate


def messages(ledger: FakeLedgerService) -> int:
    """How many messages there are at the target's queue, delivered or not."""
    queue = ledger.memory.queue(target_queue("a").name)
    return len(queue.ready) + sum(len(consumer._unsettled) for consumer in queue.consumers)  # type: ignore[attr-defined]


async def wait_settled(ledger: FakeLedgerService) -> None:
    await wait_until(lambda: not messages(ledger))


def drain(queue: asyncio.Queue[Item]) -> list[Item]:
    return [queue.get_nowait() for _ in range(queue.qsize())]


async def watch(ledger: FakeLedgerService, seconds: float) -> set[int]:
    """The numbers of messages that there were in this time."""
    seen, loop = set[int](), asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    while loop.time() < ends_at:
        seen.add(messages(ledger))
        await asyncio.sleep(0)
    return seen


def replay(admit: Admit) -> Admission:
    result = Result(
        output=[OutputMessage(content="kept")],
        target="a",
        attempts=1,
        replayed=True,
        cached=False,
        duration_ms=1,
        queued_ms=0,
        call_count=1,
        max_calls=10,
    )
    return Admission(attempt_id=admit.attempt_id, replay=result)


async def test_a_call_that_lasts_is_carried_by_copies_and_answered_once(
    ledger: FakeLedgerService, worker_bus: FlakyBus, evaluator: FakeEvaluator, gate: GatedProvider
) -> None:
    await evaluator.send_request(expiration_ms=60_000)
    await next_item(gate.requests)
    # One message holds the body at every moment; while it is published again there are two.
    assert await watch(ledger, 3 * TIMEOUT_SECONDS) <= {1, 2}
    gate.open.set()
    assert (await next_result(evaluator)).raw_text == "yes"
    await wait_settled(ledger)
    assert (gate.requests.qsize(), evaluator.replies.qsize()) == (0, 0)


async def test_a_copy_says_what_the_message_said_and_expires_with_the_call(
    ledger: FakeLedgerService,
    worker_bus: FlakyBus,
    evaluator: FakeEvaluator,
    gate: GatedProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published, publish = [], worker_bus.publish

    async def record(exchange: object, key: str, envelope: object, **options: object) -> None:
        if exchange == INVOKE:
            published.append(envelope)
        await publish(exchange, key, envelope, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(worker_bus, "publish", record)
    ledger.admit_policy = lambda admit: grant(admit, seconds=30)
    await evaluator.send_request("c1", expiration_ms=60_000, headers={"timestamp_in_ms": 5})
    await next_item(gate.requests)
    attempt_id = (await next_item(ledger.admits)).attempt_id
    await wait_until(lambda: len(published) >= 2)
    for copy in published:
        assert (copy.body, copy.type, copy.correlation_id) == (b'{"question": "x"}', "invoke", "c1")
        assert copy.headers[REQUEST_ID_HEADER] == "r-c1"
        assert (copy.headers[TOKEN_HEADER], copy.headers["timestamp_in_ms"]) == (evaluator.token, 5)
        assert copy.headers[COPY_HEADER] == attempt_id
        assert 28_000 < copy.expiration_ms <= 30_000
    gate.open.set()


async def test_a_copy_that_cannot_be_published_is_tried_again_and_its_message_kept(
    ledger: FakeLedgerService,
    worker_bus: FlakyBus,
    evaluator: FakeEvaluator,
    gate: GatedProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish, failures = worker_bus.publish, 2

    async def fail_twice(exchange: object, key: str, envelope: object, **options: object) -> None:
        nonlocal failures
        if exchange == INVOKE and failures:
            failures -= 1
            assert messages(ledger) == 1
            raise QueueFull("nacked")
        await publish(exchange, key, envelope, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(worker_bus, "publish", fail_twice)
    await evaluator.send_request()
    await next_item(gate.requests)
    assert await watch(ledger, 2 * TIMEOUT_SECONDS) <= {1, 2}
    assert not failures
    gate.open.set()
    await next_result(evaluator)
    await wait_settled(ledger)


async def test_calls_of_a_group_are_copied_singly_and_those_that_wait_are_put_back(
    ledger: FakeLedgerService, worker_bus: FlakyBus, evaluator: FakeEvaluator, gate: GatedProvider
) -> None:
    group = [call_item(name) for name in "uvw"]
    headers = {TOKEN_HEADER: evaluator.token, PROTOCOL_HEADER: 1}
    await evaluator.send_request(
        "the group", body=encode_group(group), headers=headers, type=INVOKE_GROUP_TYPE, content_type=GROUP_CONTENT_TYPE
    )
    for _ in range(2):
        await next_item(gate.requests)
    await asyncio.sleep(3 * TIMEOUT_SECONDS)
    assert messages(ledger) == 3
    gate.open.set()
    assert await next_replies(evaluator, 3) == {f"c-{name}": "result" for name in "uvw"}
    await wait_settled(ledger)
    assert evaluator.replies.empty()


async def test_a_call_that_waits_for_its_admission_is_copied_and_keeps_its_attempt(
    ledger: FakeLedgerService, worker_bus: FlakyBus, evaluator: FakeEvaluator, gate: GatedProvider
) -> None:
    gate.open.set()
    ledger.admit_policy = lambda _: "held"
    await evaluator.send_request()
    first = await next_item(ledger.admits)
    # One message holds the body at every moment; while it is published again there are two.
    assert await watch(ledger, 3 * TIMEOUT_SECONDS) <= {1, 2}
    ledger.admit_policy = grant
    assert (await next_result(evaluator)).raw_text == "yes"
    await wait_settled(ledger)
    admits = [first, *drain(ledger.admits)]
    assert {(admit.attempt_id, admit.copy_of) for admit in admits} == {(first.attempt_id, None)}
    assert [settle.attempt_id for settle in drain(ledger.settles)] == [first.attempt_id]
    assert evaluator.replies.empty()


async def test_a_copied_call_that_is_throttled_waits_on_with_its_tries_wherever_its_copy_is(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = FailingProvider(throttled(), throttled())
    limits = {"timings": QUICK, "max_concurrency": 2, "consumer_timeout_seconds": TIMEOUT_SECONDS, "quota": QUOTA}
    async with running_worker(ledger, provider, **limits) as (_, bus):  # type: ignore[arg-type]
        publish, elsewhere = bus.publish, list[object]()

        async def let_another_worker_have_copies(exchange: object, key: str, envelope: object, **more: object) -> None:
            if exchange == INVOKE:
                elsewhere.append(envelope)
            else:
                await publish(exchange, key, envelope, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(bus, "publish", let_another_worker_have_copies)
        ledger.admit_policy = lambda _: "held"
        await evaluator.send_request()
        await wait_until(lambda: elsewhere and not messages(ledger))
        ledger.admit_policy = grant
        result = await next_result(evaluator)
        assert (result.raw_text, result.attempts, len(elsewhere)) == ("yes", 3, 1)


async def test_a_message_that_is_delivered_again_takes_its_own_place_and_no_slot(
    ledger: FakeLedgerService, patient_bus: FlakyBus, evaluator: FakeEvaluator, gate: GatedProvider
) -> None:
    await evaluator.send_request("c1")
    await next_item(gate.requests)
    for _ in range(3):
        patient_bus.drop_connection()
        await asyncio.sleep(0.02)
    await evaluator.send_request("c2")
    await next_item(gate.requests)
    gate.open.set()
    assert {(await next_item(evaluator.replies)).correlation_id for _ in range(2)} == {"c1", "c2"}
    await wait_settled(ledger)
    assert (ledger.admits.qsize(), evaluator.replies.qsize()) == (2, 0)


class CopiesOfOthers:
    """A ledger that holds the copies of a call that another worker runs, until the test says what becomes of it."""

    def __init__(self) -> None:
        self.decide = self.hold
        self.asked: list[Admit] = []

    def __call__(self, admit: Admit) -> Admission | str:
        if admit.copy_of is None:
            return grant(admit)
        self.asked.append(admit)
        return self.decide(admit)

    def hold(self, _: Admit) -> Admission | str:
        return "held"


@pytest.fixture
def others(ledger: FakeLedgerService) -> CopiesOfOthers:
    ledger.admit_policy = others = CopiesOfOthers()
    return others


async def send_copies(evaluator: FakeEvaluator, count: int) -> None:
    for number in range(count):
        await evaluator.send_request(f"copy {number}", headers={COPY_HEADER: f"attempt {number}"})


async def test_copies_of_others_calls_take_no_slot_and_keep_no_call_out(
    ledger: FakeLedgerService,
    worker_bus: FlakyBus,
    evaluator: FakeEvaluator,
    gate: GatedProvider,
    others: CopiesOfOthers,
) -> None:
    await send_copies(evaluator, 9)
    async with asyncio.timeout(5):
        while len({admit.copy_of for admit in others.asked}) < 9:
            await asyncio.sleep(0.005)
        for name in ("c1", "c2"):
            await evaluator.send_request(name)
        for _ in range(2):
            await gate.requests.get()
    gate.open.set()
    assert {(await next_item(evaluator.replies)).correlation_id for _ in range(2)} == {"c1", "c2"}
    # They are copied on in time, each still as a copy of the same attempt.
    await wait_until(lambda: len({admit.attempt_id for admit in others.asked}) >= 27)
    assert {admit.copy_of for admit in others.asked} == {f"attempt {number}" for number in range(9)}
    others.decide = replay
    texts = {(await next_item(evaluator.replies)).correlation_id for _ in range(9)}
    assert texts == {f"copy {number}" for number in range(9)}
    await wait_settled(ledger)


async def test_a_copy_whose_call_has_lost_its_worker_takes_a_slot_and_runs(
    ledger: FakeLedgerService,
    patient_bus: FlakyBus,
    evaluator: FakeEvaluator,
    gate: GatedProvider,
    others: CopiesOfOthers,
) -> None:
    others.decide = lambda admit: Admission(attempt_id=admit.attempt_id, needs_slot=True)
    gate.open.set()
    await send_copies(evaluator, 1)
    asked = [await next_item(ledger.admits) for _ in range(2)]
    assert [admit.copy_of for admit in asked] == ["attempt 0", None]
    assert asked[0].attempt_id != asked[1].attempt_id
    assert (await next_result(evaluator)).raw_text == "yes"
    await wait_settled(ledger)


async def test_a_copy_of_a_call_that_was_answered_here_is_not_answered_again(
    ledger: FakeLedgerService, worker_bus: FlakyBus, evaluator: FakeEvaluator, gate: GatedProvider
) -> None:
    await evaluator.send_request("c1")
    await next_item(gate.requests)
    attempt_id = (await next_item(ledger.admits)).attempt_id
    await asyncio.sleep(TIMEOUT_SECONDS)
    gate.open.set()
    await next_result(evaluator)
    await evaluator.send_request("c1", headers={COPY_HEADER: attempt_id})
    await wait_settled(ledger)
    assert (ledger.admits.qsize(), evaluator.replies.qsize()) == (0, 0)


async def test_a_refused_copy_is_answered_with_its_fault(
    ledger: FakeLedgerService, patient_bus: FlakyBus, evaluator: FakeEvaluator, others: CopiesOfOthers
) -> None:
    others.decide = lambda admit: Admission.model_validate(
        {"attempt_id": admit.attempt_id, "fault": {"error": "no", "code": "timeout", "status": 504, "charged": True}}
    )
    await send_copies(evaluator, 1)
    assert (await next_fault(evaluator)).code == "timeout"
    await wait_settled(ledger)


def test_a_message_is_copied_before_half_of_the_timeout_has_passed() -> None:
    assert HELD_PART < 0.5

"""Messages that the broker delivers again although a worker has their calls: no call is asked twice."""

from __future__ import annotations

import asyncio

import pytest

from quintain.bus.base import Envelope
from quintain.contracts.headers import REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit
from quintain.errors import Cancelled, QueueFull
from quintain.topology import BACKLOG, Exchange, Queue, backlog_queue, held_key, target_queue
from quintain_worker import call as calls
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, grant, next_item, send_again
from support.quick import timings
from support.running_worker import GatedProvider, next_fault, next_result, running_worker, wait_acknowledged
from support.waiting import wait_until
from unit.worker.test_cancellation import call_key

QUICK = timings(admit_repeat_seconds=0.05)


async def test_a_message_that_is_delivered_again_takes_its_own_place_and_no_slot(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, closed_gate: GatedProvider
) -> None:
    async with running_worker(ledger, closed_gate, max_concurrency=2) as (_, bus):
        await evaluator.send_request("c1")
        await next_item(closed_gate.requests)
        for _ in range(3):
            bus.drop_connection()
            await asyncio.sleep(0.02)
        await evaluator.send_request("c2")
        await next_item(closed_gate.requests)
        closed_gate.open.set()
        assert {(await next_item(evaluator.replies)).correlation_id for _ in range(2)} == {"c1", "c2"}
        await wait_acknowledged(ledger.memory)
    assert not ledger.memory.queue(target_queue("a").name).ready
    assert (ledger.admits.qsize(), evaluator.replies.qsize()) == (2, 0)


@pytest.mark.parametrize("differs", ["correlation id", "token", "body", "target"])
async def test_another_message_with_the_same_request_id_is_left_to_the_ledger(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, closed_gate: GatedProvider, differs: str
) -> None:
    other = FakeEvaluator(ledger.bus, "b")
    await other.start()
    headers = {REQUEST_ID_HEADER: "r", TOKEN_HEADER: evaluator.token}
    asking, name, body = evaluator, "c", b'{"question": "x"}'
    async with running_worker(ledger, closed_gate, closed_gate):
        await evaluator.send_request(name, headers=headers)
        await next_item(ledger.admits)
        if differs == "correlation id":
            name = "d"
        elif differs == "token":
            headers[TOKEN_HEADER] = other.token
        elif differs == "body":
            body = b'{"question": "y"}'
        else:
            asking = other
        await asking.send_request(name, headers=headers, body=body, reply_to=evaluator.reply_key)
        assert (await next_item(ledger.admits)).request_id == "r"


async def test_the_ledger_says_what_becomes_of_a_cancelled_call_that_another_worker_may_run(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    ledger.admit_policy = lambda _: "held"
    async with running_worker(ledger, GatedProvider(), timings=QUICK):
        await send_again(ledger, evaluator, "c1")
        assert (await next_item(ledger.admits)).redelivered
        await ledger.send_cancellation(call_key(evaluator))
        for _ in range(2):
            await next_item(ledger.admits)
        assert evaluator.replies.empty()

        def refuse(admit: Admit) -> Admission:
            return Admission(attempt_id=admit.attempt_id, fault=FaultReply.from_fault(Cancelled(charged=True)))

        ledger.admit_policy = refuse
        fault = await next_fault(evaluator)
        assert (fault.code, fault.charged, fault.charge_unknown) == ("cancelled", True, None)


@pytest.fixture
def quick_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOVE_SECONDS", 0.05)


def messages(ledger: FakeLedgerService, queue: Queue) -> int:
    """How many messages there are in a queue, delivered or not."""
    found = ledger.memory.queue(queue.name)
    return len(found.ready) + sum(len(consumer._unsettled) for consumer in found.consumers)  # type: ignore[attr-defined]


async def test_the_message_of_a_call_that_lasts_is_moved_once_and_its_call_is_answered_once(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, closed_gate: GatedProvider, quick_move: None
) -> None:
    async with running_worker(ledger, closed_gate, max_concurrency=1) as (_, bus):
        await evaluator.send_request("c1", expiration_ms=60_000, headers={"timestamp_in_ms": 5})
        await next_item(closed_gate.requests)
        await wait_until(lambda: messages(ledger, backlog_queue("a")) == 1)
        await wait_until(lambda: messages(ledger, target_queue("a")) == 0)
        bus.drop_connection()
        await asyncio.sleep(0.2)
        assert messages(ledger, backlog_queue("a")) == 1
        closed_gate.open.set()
        assert (await next_result(evaluator)).raw_text == "yes"
        await wait_acknowledged(ledger.memory)
    assert messages(ledger, backlog_queue("a")) == 0
    assert (ledger.admits.qsize(), evaluator.replies.qsize()) == (1, 0)


async def test_moved_messages_of_calls_elsewhere_take_no_slot_and_go_on_where_their_worker_is_lost(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    lost = False

    def decide(admit: Admit) -> Admission | str:
        return grant(admit) if lost or not admit.redelivered else "held"

    ledger.admit_policy = decide
    async with running_worker(ledger, GatedProvider(), timings=QUICK, max_concurrency=2) as (worker, bus):
        for number in range(2):
            await bus.publish(BACKLOG, held_key("a"), evaluator.request(f"long {number}"))
        assert {(await next_item(ledger.admits)).redelivered for _ in range(2)} == {True}
        for number in range(2):
            await evaluator.send_request(f"c{number}")
        assert {(await next_item(evaluator.replies)).correlation_id for _ in range(2)} == {"c0", "c1"}
        assert worker.card().in_flight == 0
        lost = True
        assert {(await next_item(evaluator.replies)).correlation_id for _ in range(2)} == {"long 0", "long 1"}


async def test_a_message_that_cannot_be_moved_is_kept(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, closed_gate: GatedProvider, quick_move: None
) -> None:
    async with running_worker(ledger, closed_gate) as (_, bus):
        publish, tried = bus.publish, 0

        async def refuse(exchange: Exchange, key: str, envelope: Envelope, **options: float) -> None:
            nonlocal tried
            if exchange == BACKLOG:
                tried += 1
                raise QueueFull("full")
            await publish(exchange, key, envelope, **options)

        bus.publish = refuse  # type: ignore[method-assign]
        await evaluator.send_request()
        await wait_until(lambda: tried >= 2)
        assert messages(ledger, target_queue("a")) == 1
        closed_gate.open.set()
        await next_result(evaluator)
        await wait_acknowledged(ledger.memory)

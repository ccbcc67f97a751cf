"""Duplicates of a call that this worker runs itself: they wait for it, and the ledger hears of none of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit, Outcome
from quintain.errors import ProviderFailed
from quintain.routes import DEADLINE_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.topology import target_queue
from quintain_worker.port import Billing, ProviderFailure
from support.ledger_stand_in import Evaluator, LedgerStandIn, grant, soon, stand_in
from support.quick import timings
from support.working import Gate, fault_for, result_for, working

SAME = {REQUEST_ID_HEADER: "r"}


@pytest.fixture
async def ledger() -> AsyncIterator[LedgerStandIn]:
    async with stand_in() as ledger:
        yield ledger


@pytest.fixture
async def evaluator(ledger: LedgerStandIn) -> Evaluator:
    evaluator = Evaluator(ledger.bus, "a")
    await evaluator.start()
    return evaluator


@pytest.fixture
async def gate(ledger: LedgerStandIn) -> AsyncIterator[Gate]:
    """The provider of a worker at work, closed until a test opens it."""
    gate = Gate()
    gate.open.clear()
    quick = timings(publish_pause_seconds=0.01, deadline_grace_seconds=0.05)
    async with working(ledger, gate, timings=quick):
        yield gate


async def taken(ledger: LedgerStandIn, target: str = "a") -> None:
    """Wait until the worker has taken all there is, and looked at it."""
    async with asyncio.timeout(5):
        while ledger.memory.queue(target_queue(target).name).ready:
            await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)


async def begin(evaluator: Evaluator, gate: Gate, *duplicates: str) -> None:
    """A call that the provider works at, and duplicates of it."""
    await evaluator.ask("c0", headers=SAME)
    await soon(gate.asked)
    for correlation_id in duplicates:
        await evaluator.ask(correlation_id, headers=SAME)


async def test_duplicates_are_answered_from_the_call_they_join_and_the_ledger_hears_of_none(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator
) -> None:
    await begin(evaluator, gate, "c1", "c2", "c3", "c4")
    await taken(ledger)
    gate.open.set()
    replies = {reply.correlation_id: reply for reply in [await soon(evaluator.replies) for _ in range(5)]}
    assert sorted(str(each) for each in replies) == ["c0", "c1", "c2", "c3", "c4"]
    bodies = {name: reply.body for name, reply in replies.items()}
    assert b'"replayed":false' in bodies["c0"]
    assert {bodies[f"c{number}"] for number in (1, 2, 3, 4)} == {
        bodies["c0"].replace(b'"replayed":false', b'"replayed":true')
    }
    assert {reply.headers[REQUEST_ID_HEADER] for reply in replies.values()} == {"r"}
    assert (ledger.admits.qsize(), ledger.settles.qsize(), gate.asked.qsize()) == (1, 1, 0)


async def test_a_duplicate_is_answered_although_the_session_keeps_no_replies(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator
) -> None:
    ledger.judge = lambda ask: grant(ask, store_replies=False)
    await begin(evaluator, gate, "c1")
    await taken(ledger)
    gate.open.set()
    assert {(await result_for(evaluator)).replayed for _ in range(2)} == {False, True}


async def test_a_fifth_duplicate_is_told_that_too_many_wait(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator
) -> None:
    await begin(evaluator, gate, "c1", "c2", "c3", "c4", "c5")
    reply = await soon(evaluator.replies)
    assert reply.correlation_id == "c5"
    evaluator.replies.put_nowait(reply)
    fault = await fault_for(evaluator)
    assert (fault.code, fault.retryable, fault.charged, fault.retry_after_ms) == ("overloaded", True, False, 1000)
    gate.open.set()
    assert [(await result_for(evaluator)).raw_text for _ in range(5)] == ["yes"] * 5


async def test_a_duplicate_is_answered_only_after_the_settle_is_out(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator
) -> None:
    await begin(evaluator, gate, "c1")
    await taken(ledger)
    await ledger.lose_settle_queue()
    gate.open.set()
    await asyncio.sleep(0.05)
    assert evaluator.replies.empty()
    await ledger.find_settle_queue()
    assert {(await result_for(evaluator)).replayed for _ in range(2)} == {False, True}
    assert ledger.settles.qsize() == 1


async def test_what_ends_without_a_result_sends_its_duplicates_to_the_ledger_one_after_the_other(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator
) -> None:
    failed = ProviderFailed("broke", charged=True)
    gate.says = ProviderFailure(failed, Billing.BILLED)
    stored: list[Admission] = []

    def judge(ask: Admit) -> Admission:
        if not stored:
            stored.append(grant(ask))
            return stored[0]
        return Admission(attempt_id=ask.attempt_id, fault=FaultReply.of(failed))

    ledger.judge = judge
    await begin(evaluator, gate, "c1", "c2")
    await taken(ledger)
    gate.open.set()
    assert [(await fault_for(evaluator)).error for _ in range(3)] == ["broke"] * 3
    assert (ledger.admits.qsize(), ledger.settles.qsize(), gate.asked.qsize()) == (3, 1, 0)


async def test_a_duplicate_of_what_is_given_back_for_nothing_may_run_and_is_joined_in_turn(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator
) -> None:
    gate.says = ProviderFailure(ProviderFailed("not taken", charged=False), Billing.UNBILLED)
    await begin(evaluator, gate, "c1", "c2")
    await taken(ledger)
    gate.open.set()
    assert (await fault_for(evaluator)).code == "provider_error"
    gate.says = Gate().says
    assert {(await result_for(evaluator)).replayed for _ in range(2)} == {False, True}
    outcomes = [(await soon(ledger.settles)).outcome for _ in range(2)]
    assert outcomes == [Outcome.REFUND, Outcome.RESULT]
    assert ledger.admits.qsize() == 2


@pytest.mark.parametrize("differs", ["token", "body", "target", "request id"])
async def test_what_differs_in_anything_goes_to_the_ledger(ledger: LedgerStandIn, differs: str) -> None:
    first, second = Gate(), Gate()
    first.open.clear()
    async with working(ledger, first, second):
        one, other = Evaluator(ledger.bus, "a"), Evaluator(ledger.bus, "b")
        await one.start()
        await other.start()
        await one.ask("c0", headers=SAME)
        await soon(first.asked)
        await soon(ledger.admits)
        headers = {**SAME, TOKEN_HEADER: one.token}
        asking, body = one, b'{"question": "x"}'
        if differs == "token":
            headers[TOKEN_HEADER] = other.token
        elif differs == "body":
            body = b'{"question": "y"}'
        elif differs == "target":
            asking = other
        else:
            headers[REQUEST_ID_HEADER] = "another"
        await asking.ask("c1", headers=headers, body=body)
        admit = await soon(ledger.admits)
        assert admit.token == headers[TOKEN_HEADER]


async def test_a_duplicate_with_a_broken_header_is_refused_by_the_ledger(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator
) -> None:
    ledger.judge = lambda ask: grant(ask) if ask.problem is None else Admission(attempt_id="", fault=ask.problem)
    await begin(evaluator, gate)
    await soon(ledger.admits)
    await evaluator.ask("c1", headers={**SAME, DEADLINE_HEADER: "soon"})
    assert (await soon(ledger.admits)).problem is not None


async def test_a_duplicate_that_waits_keeps_to_its_own_deadline(
    ledger: LedgerStandIn, gate: Gate, evaluator: Evaluator
) -> None:
    await begin(evaluator, gate)
    await evaluator.ask("c1", headers=SAME, seconds=0.1)
    fault = await fault_for(evaluator)
    assert (fault.code, fault.charged, fault.retryable) == ("expired", True, False)
    assert ledger.settles.empty()
    gate.open.set()
    assert not (await result_for(evaluator)).replayed
    assert ledger.admits.qsize() == 1


async def test_a_duplicate_with_the_same_deadline_hears_how_the_call_ended_at_it(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    gate = Gate()
    gate.open.clear()
    seen: list[str] = []

    def judge(ask: Admit) -> Admission:
        seen.append(ask.attempt_id)
        if len(seen) == 1:
            return grant(ask, seconds=0.3)
        stored = FaultReply(error="stored", code="timeout", status=504, charged=True)
        return Admission(attempt_id=ask.attempt_id, fault=stored)

    ledger.judge = judge
    async with working(ledger, gate):
        for correlation_id in ("c0", "c1"):
            await evaluator.ask(correlation_id, headers=SAME, seconds=0.3)
        assert {(await fault_for(evaluator)).code for _ in range(2)} == {"timeout"}


async def test_a_drain_answers_duplicates_from_what_it_finishes(ledger: LedgerStandIn, evaluator: Evaluator) -> None:
    gate = Gate()
    gate.open.clear()
    async with working(ledger, gate) as (worker, _):
        await begin(evaluator, gate, "c1")
        await taken(ledger)
        stopping = asyncio.get_running_loop().create_task(worker.stop(grace_seconds=5))
        await asyncio.sleep(0.01)
        gate.open.set()
        await stopping
        assert {(await result_for(evaluator)).replayed for _ in range(2)} == {False, True}
    assert not ledger.memory.queue(target_queue("a").name).ready


async def test_a_duplicate_of_what_has_ended_without_a_result_goes_to_the_ledger_although_its_reply_is_not_out(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    gate = Gate()
    gate.says = ProviderFailure(ProviderFailed("broke", charged=True), Billing.BILLED)
    async with working(ledger, gate) as (_, bus):
        bus.away = True
        await evaluator.ask("c0", headers=SAME)
        assert (await soon(ledger.settles)).outcome is Outcome.CHARGED
        await soon(ledger.admits)
        await evaluator.ask("c1", headers=SAME)
        assert (await soon(ledger.admits)).request_id == "r"

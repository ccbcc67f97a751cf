"""Duplicates of a call that this worker runs itself: they wait for it, and the ledger hears of none of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.contracts.headers import REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit, AttemptOutcome
from quintain.errors import ProviderFailed
from quintain.topology import target_queue
from quintain_worker.providers.provider import Billing, ProviderFailure
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, grant, next_item
from support.quick import timings
from support.running_worker import GatedProvider, next_fault, next_result, running_worker

SAME = {REQUEST_ID_HEADER: "r"}


#: A quarter of them takes all duplicates of one call that may wait.
SLOTS = 64


@pytest.fixture
async def gated_provider(ledger: FakeLedgerService) -> AsyncIterator[GatedProvider]:
    """The provider of a worker at work, closed until a test opens it."""
    gate = GatedProvider()
    gate.open.clear()
    quick = timings(publish_pause_seconds=0.01, deadline_grace_seconds=0.05)
    async with running_worker(ledger, gate, timings=quick, max_concurrency=SLOTS):
        yield gate


async def wait_until_taken(ledger: FakeLedgerService, target: str = "a") -> None:
    """Wait until the worker has taken all there is, and looked at it."""
    async with asyncio.timeout(5):
        while ledger.memory.queue(target_queue(target).name).ready:
            await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)


async def start_call(evaluator: FakeEvaluator, gated_provider: GatedProvider, *duplicates: str) -> None:
    """A call that the provider works at, and duplicates of it."""
    await evaluator.send_request("c0", headers=SAME)
    await next_item(gated_provider.requests)
    for correlation_id in duplicates:
        await evaluator.send_request(correlation_id, headers=SAME)


async def test_duplicates_are_answered_from_the_call_they_join_and_the_ledger_hears_of_none(
    ledger: FakeLedgerService, gated_provider: GatedProvider, evaluator: FakeEvaluator
) -> None:
    await start_call(evaluator, gated_provider, "c1", "c2", "c3", "c4")
    await wait_until_taken(ledger)
    gated_provider.open.set()
    replies = {reply.correlation_id: reply for reply in [await next_item(evaluator.replies) for _ in range(5)]}
    assert sorted(str(each) for each in replies) == ["c0", "c1", "c2", "c3", "c4"]
    bodies = {name: reply.body for name, reply in replies.items()}
    assert b'"replayed":false' in bodies["c0"]
    assert {bodies[f"c{number}"] for number in (1, 2, 3, 4)} == {
        bodies["c0"].replace(b'"replayed":false', b'"replayed":true')
    }
    assert {reply.headers[REQUEST_ID_HEADER] for reply in replies.values()} == {"r"}
    assert (ledger.admits.qsize(), ledger.settles.qsize(), gated_provider.requests.qsize()) == (1, 1, 0)


async def test_a_duplicate_is_answered_although_the_session_keeps_no_replies(
    ledger: FakeLedgerService, gated_provider: GatedProvider, evaluator: FakeEvaluator
) -> None:
    ledger.admit_policy = lambda ask: grant(ask, store_replies=False)
    await start_call(evaluator, gated_provider, "c1")
    await wait_until_taken(ledger)
    gated_provider.open.set()
    assert {(await next_result(evaluator)).replayed for _ in range(2)} == {False, True}


async def test_a_seventeenth_duplicate_is_told_that_too_many_wait(
    ledger: FakeLedgerService, gated_provider: GatedProvider, evaluator: FakeEvaluator
) -> None:
    await start_call(evaluator, gated_provider, *(f"c{number}" for number in range(1, 18)))
    reply = await next_item(evaluator.replies)
    assert reply.correlation_id == "c17"
    evaluator.replies.put_nowait(reply)
    fault = await next_fault(evaluator)
    assert (fault.code, fault.retryable, fault.charge_unknown, fault.retry_after_ms) == ("overloaded", True, True, 1000)
    gated_provider.open.set()
    assert [(await next_result(evaluator)).raw_text for _ in range(17)] == ["yes"] * 17


@pytest.mark.parametrize(("slots", "waiting"), [(8, 4), (40, 10)])
async def test_duplicates_wait_in_a_quarter_of_the_slots(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, slots: int, waiting: int, closed_gate: GatedProvider
) -> None:
    async with running_worker(ledger, closed_gate, max_concurrency=slots):
        await start_call(evaluator, closed_gate, *(f"c{number}" for number in range(1, waiting + 2)))
        assert (await next_item(evaluator.replies)).correlation_id == f"c{waiting + 1}"
        closed_gate.open.set()
        assert [(await next_result(evaluator)).raw_text for _ in range(waiting + 1)] == ["yes"] * (waiting + 1)


async def test_a_duplicate_is_answered_only_after_the_settle_is_out(
    ledger: FakeLedgerService, gated_provider: GatedProvider, evaluator: FakeEvaluator
) -> None:
    await start_call(evaluator, gated_provider, "c1")
    await wait_until_taken(ledger)
    await ledger.unbind_settle_queue()
    gated_provider.open.set()
    await asyncio.sleep(0.05)
    assert evaluator.replies.empty()
    await ledger.rebind_settle_queue()
    assert {(await next_result(evaluator)).replayed for _ in range(2)} == {False, True}
    assert ledger.settles.qsize() == 1


async def test_what_ends_without_a_result_sends_its_duplicates_to_the_ledger_one_after_the_other(
    ledger: FakeLedgerService, gated_provider: GatedProvider, evaluator: FakeEvaluator
) -> None:
    failed = ProviderFailed("broke", charged=True)
    gated_provider.outcome = ProviderFailure(failed, Billing.BILLED)
    stored: list[Admission] = []

    def judge(ask: Admit) -> Admission:
        if not stored:
            stored.append(grant(ask))
            return stored[0]
        return Admission(attempt_id=ask.attempt_id, fault=FaultReply.from_fault(failed))

    ledger.admit_policy = judge
    await start_call(evaluator, gated_provider, "c1", "c2")
    await wait_until_taken(ledger)
    gated_provider.open.set()
    assert [(await next_fault(evaluator)).error for _ in range(3)] == ["broke"] * 3
    assert (ledger.admits.qsize(), ledger.settles.qsize(), gated_provider.requests.qsize()) == (3, 1, 0)


async def test_a_duplicate_of_what_is_given_back_for_nothing_may_run_and_is_joined_in_turn(
    ledger: FakeLedgerService, gated_provider: GatedProvider, evaluator: FakeEvaluator
) -> None:
    gated_provider.outcome = ProviderFailure(ProviderFailed("not taken", charged=False), Billing.UNBILLED)
    await start_call(evaluator, gated_provider, "c1", "c2")
    await wait_until_taken(ledger)
    gated_provider.open.set()
    assert (await next_fault(evaluator)).code == "provider_error"
    gated_provider.outcome = GatedProvider().outcome
    assert {(await next_result(evaluator)).replayed for _ in range(2)} == {False, True}
    outcomes = [(await next_item(ledger.settles)).outcome for _ in range(2)]
    assert outcomes == [AttemptOutcome.REFUND, AttemptOutcome.RESULT]
    assert ledger.admits.qsize() == 2


@pytest.mark.parametrize("differs", ["token", "body", "target", "request id"])
async def test_what_differs_in_anything_goes_to_the_ledger(ledger: FakeLedgerService, differs: str) -> None:
    first, second = GatedProvider(), GatedProvider()
    first.open.clear()
    async with running_worker(ledger, first, second):
        one, other = FakeEvaluator(ledger.bus, "a"), FakeEvaluator(ledger.bus, "b")
        await one.start()
        await other.start()
        await one.send_request("c0", headers=SAME)
        await next_item(first.requests)
        await next_item(ledger.admits)
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
        await asking.send_request("c1", headers=headers, body=body)
        admit = await next_item(ledger.admits)
        assert admit.token == headers[TOKEN_HEADER]


async def test_a_duplicate_that_waits_keeps_to_its_own_deadline(
    ledger: FakeLedgerService, gated_provider: GatedProvider, evaluator: FakeEvaluator
) -> None:
    await start_call(evaluator, gated_provider)
    await evaluator.send_request("c1", headers=SAME, seconds=0.1)
    fault = await next_fault(evaluator)
    assert (fault.code, fault.charged, fault.retryable) == ("expired", True, False)
    assert ledger.settles.empty()
    gated_provider.open.set()
    assert not (await next_result(evaluator)).replayed
    assert ledger.admits.qsize() == 1


async def test_a_duplicate_with_the_same_deadline_hears_how_the_call_ended_at_it(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, closed_gate: GatedProvider
) -> None:
    seen: list[str] = []

    def judge(ask: Admit) -> Admission:
        seen.append(ask.attempt_id)
        if len(seen) == 1:
            return grant(ask, seconds=0.3)
        stored = FaultReply(error="stored", code="timeout", status=504, charged=True)
        return Admission(attempt_id=ask.attempt_id, fault=stored)

    ledger.admit_policy = judge
    async with running_worker(ledger, closed_gate):
        for correlation_id in ("c0", "c1"):
            await evaluator.send_request(correlation_id, headers=SAME, seconds=0.3)
        assert {(await next_fault(evaluator)).code for _ in range(2)} == {"timeout"}


async def test_a_duplicate_of_what_has_ended_without_a_result_goes_to_the_ledger_although_its_reply_is_not_out(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    gate = GatedProvider()
    gate.outcome = ProviderFailure(ProviderFailed("broke", charged=True), Billing.BILLED)
    async with running_worker(ledger, gate) as (_, bus):
        bus.unavailable = True
        await evaluator.send_request("c0", headers=SAME)
        assert (await next_item(ledger.settles)).outcome is AttemptOutcome.CHARGED
        await next_item(ledger.admits)
        await evaluator.send_request("c1", headers=SAME)
        assert (await next_item(ledger.admits)).request_id == "r"

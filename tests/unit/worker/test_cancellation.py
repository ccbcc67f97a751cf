"""Calls that their callers take back: aborted here, down to the provider's HTTP request, and honestly charged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import AttemptOutcome, CallKey, Settle
from quintain.topology import target_queue
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, grant, next_item
from support.model_server import ModelServer, ScriptedResponse, model_server
from support.model_wires import WIRES, Wire
from support.quick import timings
from support.running_worker import GatedProvider, next_fault, next_result, running_worker, wait_acknowledged


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        server.set_responses(ScriptedResponse(stall=True))
        yield server


def call_key(evaluator: FakeEvaluator, request_id: str = "r-c1") -> CallKey:
    return CallKey(session_id=evaluator.token.split("_")[2], request_id=request_id)


async def cancelled_results(evaluator: FakeEvaluator, ledger: FakeLedgerService) -> tuple[FaultReply, Settle]:
    """What the caller of a cancelled call was told, and the ledger."""
    fault, settle = await next_fault(evaluator), await next_item(ledger.settles)
    assert (fault.code, fault.status, fault.retryable) == ("cancelled", 499, False)
    assert settle.fault == fault
    return fault, settle


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_a_call_that_is_taken_back_closes_its_request_at_the_provider(
    ledger: FakeLedgerService, server: ModelServer, evaluator: FakeEvaluator, wire: Wire
) -> None:
    async with running_worker(ledger, wire.provider(server.url), max_concurrency=1):
        await evaluator.send_request()
        async with asyncio.timeout(5):
            await server.arrived.wait()
        assert not server.disconnected.is_set()
        await ledger.send_cancellation(call_key(evaluator))
        async with asyncio.timeout(5):
            await server.disconnected.wait()
        fault, settle = await cancelled_results(evaluator, ledger)
        assert (settle.outcome, fault.charged) == (AttemptOutcome.IN_DOUBT, True)
        assert settle.attempt_id == (await next_item(ledger.admits)).attempt_id
        await wait_acknowledged(ledger.memory)
        assert len(server.requests) == 1
    assert not ledger.memory.queue(target_queue("a").name).ready


async def test_a_cancellation_that_was_missed_comes_with_the_next_heartbeat(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, closed_gate: GatedProvider
) -> None:
    async with running_worker(ledger, closed_gate, timings=timings(heartbeat_seconds=0.02)):
        await evaluator.send_request()
        await next_item(closed_gate.requests)
        ledger.cancelled = [call_key(evaluator, "somebody else's"), call_key(evaluator)]
        fault, settle = await cancelled_results(evaluator, ledger)
        assert (settle.outcome, fault.charged) == (AttemptOutcome.IN_DOUBT, True)
        for _ in range(3):  # it is repeated, and harms nobody
            while not ledger.heartbeats.empty():
                ledger.heartbeats.get_nowait()
            await next_item(ledger.heartbeats)
        assert (ledger.settles.empty(), evaluator.replies.empty()) == (True, True)


async def test_a_call_that_waits_for_admission_is_taken_back_for_nothing(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    gate = GatedProvider()
    ledger.admit_policy = lambda _: "held"
    async with running_worker(ledger, gate, max_concurrency=1):
        await evaluator.send_request()
        admit = await next_item(ledger.admits)
        await ledger.send_cancellation(call_key(evaluator))
        fault, settle = await cancelled_results(evaluator, ledger)
        assert (settle.outcome, fault.charged, settle.attempt_id) == (
            AttemptOutcome.NEVER_SENT,
            True,
            admit.attempt_id,
        )
        assert fault.charge_unknown
        await wait_acknowledged(ledger.memory)
        await ledger.answer_last_admit(grant(admit))  # a grant that was on its way is void
        await evaluator.send_request("c2")
        await next_item(ledger.admits)
        assert gate.requests.empty()


async def test_an_answer_that_is_here_stands_whatever_is_taken_back(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    gate = GatedProvider()
    async with running_worker(ledger, gate) as (_, bus):
        bus.unavailable = True  # its reply cannot go out yet
        await evaluator.send_request()
        assert (await next_item(ledger.settles)).outcome is AttemptOutcome.RESULT
        await ledger.send_cancellation(call_key(evaluator))
        await asyncio.sleep(0.01)
        bus.unavailable = False
        assert (await next_result(evaluator)).raw_text == "yes"
        assert ledger.settles.empty()

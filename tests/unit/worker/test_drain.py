"""A worker whom an administrator asks to drain: it hears it with a heartbeat, and tells how far it is the same way."""

from __future__ import annotations

import asyncio

import pytest

from quintain.contracts.ledger import DrainState, Heartbeat
from quintain.contracts.quota import QuotaCard, QuotaTerms
from quintain.errors import ProviderFailed
from quintain_worker.providers.provider import Billing, ProviderFailure
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, next_item
from support.quick import timings
from support.running_worker import GatedProvider, next_result, running_worker

#: A heartbeat comes every 0.1 s.
FAST = timings(heartbeat_seconds=0.1)


def new_heartbeats(ledger: FakeLedgerService) -> list[Heartbeat]:
    """What was heard since this was asked last."""
    return [ledger.heartbeats.get_nowait() for _ in range(ledger.heartbeats.qsize())]


async def test_it_says_at_once_that_it_drains_and_at_the_end_that_it_has(ledger: FakeLedgerService) -> None:
    gate, asked = GatedProvider(), asyncio.Event()
    gate.open.clear()
    evaluator = FakeEvaluator(ledger.bus, "a")
    await evaluator.start()
    async with running_worker(ledger, gate, drain=asked.set, timings=FAST) as (worker, _):
        assert (await next_item(ledger.registers)).drain is DrainState.SUPPORTED
        await evaluator.send_request()
        await next_item(gate.requests)
        ledger.drain = True
        async with asyncio.timeout(5):
            await asked.wait()
            while (await ledger.heartbeats.get()).drain is not DrainState.DRAINING:
                pass
        stopping = asyncio.get_running_loop().create_task(worker.stop(grace_seconds=5))
        new_heartbeats(ledger)
        await next_item(ledger.heartbeats)
        assert not stopping.done()
        assert {beat.drain for beat in new_heartbeats(ledger)} <= {DrainState.DRAINING}
        gate.open.set()
        await stopping
        assert (await next_result(evaluator)).raw_text == "yes"
        assert new_heartbeats(ledger)[-1].drain is DrainState.DRAINED
    assert new_heartbeats(ledger) == []


async def test_it_says_for_which_calls_it_waits_the_oldest_first_and_for_ten_at_most(
    ledger: FakeLedgerService, caplog: pytest.LogCaptureFixture, closed_gate: GatedProvider
) -> None:
    evaluator = FakeEvaluator(ledger.bus, "a")
    await evaluator.start()
    async with running_worker(ledger, closed_gate, max_concurrency=12) as (worker, _):
        for number in range(12):
            # The ids of a run are hashes, of which the beginning is enough.
            await evaluator.send_request(f"{number:02}{'f' * 60}")
            await next_item(closed_gate.requests)
        stopping = asyncio.get_running_loop().create_task(worker.stop(grace_seconds=5))
        async with asyncio.timeout(5):
            while not (told := [text for text in caplog.messages if "a r-00ffff (" in text]):
                await asyncio.sleep(0.01)
        closed_gate.open.set()
        await stopping
    (line,) = told
    names = [f"a r-{number:02}ffff (" for number in range(12)]
    assert [name for name in names if name in line] == names[:10]
    assert "12 running calls" in line
    assert "and 2 more" in line


async def test_one_that_was_not_asked_has_no_last_word(ledger: FakeLedgerService) -> None:
    async with running_worker(ledger, GatedProvider(), timings=FAST):
        assert (await next_item(ledger.registers)).drain is DrainState.UNSUPPORTED
        first = await next_item(ledger.heartbeats)
    assert {beat.drain for beat in (first, *new_heartbeats(ledger))} == {None}


async def test_a_last_word_that_nobody_answers_keeps_nobody_from_ending(ledger: FakeLedgerService) -> None:
    asked = asyncio.Event()
    async with running_worker(ledger, GatedProvider(), drain=asked.set, timings=FAST) as (worker, _):
        ledger.drain = True
        async with asyncio.timeout(5):
            await asked.wait()
        ledger.unanswered.add("heartbeat")
        async with asyncio.timeout(2):
            await worker.stop()
    assert new_heartbeats(ledger)[-1].drain is DrainState.DRAINED


async def test_calls_that_wait_for_another_try_end_at_once_and_are_not_told_as_running(
    ledger: FakeLedgerService, caplog: pytest.LogCaptureFixture
) -> None:
    gate, evaluator = GatedProvider(), FakeEvaluator(ledger.bus, "a")
    gate.outcome = ProviderFailure(ProviderFailed("HTTP 503", charged=False), Billing.UNBILLED, retryable=True)
    await evaluator.start()
    quota = QuotaCard(id="team", name="team", terms=QuotaTerms())
    async with running_worker(ledger, gate, max_tries=3, quota=quota) as (worker, _):
        # The first try fails, and the second has no place in its quota's line.
        await evaluator.send_request()
        await next_item(ledger.admits)
        ledger.admit_policy = lambda _: None
        await next_item(ledger.settles)
        await next_item(ledger.admits)
        async with asyncio.timeout(5):
            await worker.stop(grace_seconds=60)
    assert not [text for text in caplog.messages if "running calls" in text]

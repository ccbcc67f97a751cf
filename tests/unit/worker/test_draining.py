"""A worker whom an administrator asks to drain: it hears it with a heartbeat, and tells how far it is the same way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.contracts.ledger import Drain, Heartbeat
from support.ledger_stand_in import Evaluator, LedgerStandIn, soon, stand_in
from support.quick import timings
from support.working import Gate, result_for, working


@pytest.fixture
async def ledger() -> AsyncIterator[LedgerStandIn]:
    async with stand_in() as ledger:
        yield ledger


#: A heartbeat comes every 0.1 s.
FAST = timings(heartbeat_seconds=0.1)


def beats(ledger: LedgerStandIn) -> list[Heartbeat]:
    """What was heard since this was asked last."""
    return [ledger.heartbeats.get_nowait() for _ in range(ledger.heartbeats.qsize())]


async def test_it_says_at_once_that_it_drains_and_at_the_end_that_it_has(ledger: LedgerStandIn) -> None:
    gate, asked = Gate(), asyncio.Event()
    gate.open.clear()
    evaluator = Evaluator(ledger.bus, "a")
    await evaluator.start()
    async with working(ledger, gate, drain=asked.set, timings=FAST) as (worker, _):
        assert (await soon(ledger.registers)).drain is Drain.ABLE
        await evaluator.ask()
        await soon(gate.asked)
        ledger.drain = True
        async with asyncio.timeout(5):
            await asked.wait()
            while (await ledger.heartbeats.get()).drain is not Drain.DRAINING:
                pass
        stopping = asyncio.get_running_loop().create_task(worker.stop(grace_seconds=5))
        beats(ledger)
        await soon(ledger.heartbeats)
        assert not stopping.done()
        assert {beat.drain for beat in beats(ledger)} <= {Drain.DRAINING}
        gate.open.set()
        await stopping
        assert (await result_for(evaluator)).raw_text == "yes"
        assert beats(ledger)[-1].drain is Drain.DRAINED
    assert beats(ledger) == []


async def test_one_that_was_not_asked_has_no_last_word(ledger: LedgerStandIn) -> None:
    async with working(ledger, Gate(), timings=FAST):
        assert (await soon(ledger.registers)).drain is Drain.UNABLE
        first = await soon(ledger.heartbeats)
    assert {beat.drain for beat in (first, *beats(ledger))} == {None}


async def test_a_last_word_that_nobody_answers_keeps_nobody_from_ending(ledger: LedgerStandIn) -> None:
    asked = asyncio.Event()
    async with working(ledger, Gate(), drain=asked.set, timings=FAST) as (worker, _):
        ledger.drain = True
        async with asyncio.timeout(5):
            await asked.wait()
        ledger.deaf_to.add("heartbeat")
        async with asyncio.timeout(2):
            await worker.stop()
    assert beats(ledger)[-1].drain is Drain.DRAINED

"""A long call says that it still runs, to a caller that asked for it and to nobody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from quintain.caller import Caller
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.contracts.invoke import InvokeRequest, Progress
from quintain.contracts.token import SessionToken
from quintain.routes import ACCEPT_HEADER, REQUEST_ID_HEADER
from support.ledger_stand_in import Evaluator, LedgerStandIn, grant, soon, stand_in
from support.working import Gate, result_for, working

OFTEN_SECONDS = 0.01


@pytest.fixture
async def ledger() -> AsyncIterator[LedgerStandIn]:
    async with stand_in(lambda ask: grant(ask, attempt=2)) as ledger:
        yield ledger


@pytest.fixture
async def gate(ledger: LedgerStandIn) -> AsyncIterator[Gate]:
    gate = Gate()
    gate.open.clear()
    async with working(ledger, gate, progress_seconds=OFTEN_SECONDS):
        yield gate


@pytest.fixture
async def evaluator(ledger: LedgerStandIn) -> Evaluator:
    evaluator = Evaluator(ledger.bus, "a")
    await evaluator.start()
    return evaluator


@pytest.mark.parametrize("accept", ["progress", "chunk, progress", "progress,chunk"])
async def test_a_caller_that_asked_is_told_again_and_again_until_the_answer_comes(
    gate: Gate, evaluator: Evaluator, accept: str
) -> None:
    await evaluator.ask(headers={ACCEPT_HEADER: accept})
    told = [await soon(evaluator.replies) for _ in range(3)]
    gate.open.set()
    while (last := await soon(evaluator.replies)).type == "progress":
        told.append(last)
    assert last.type == "result"
    assert {(one.type, one.correlation_id, one.headers[REQUEST_ID_HEADER]) for one in told} == {
        ("progress", "c1", "r-c1")
    }
    bodies = [json.loads(one.body) for one in told]
    assert all(set(body) == {"state", "attempt", "elapsedMs"} for body in bodies)
    assert {(body["state"], body["attempt"]) for body in bodies} == {("running", 2)}
    elapsed = [body["elapsedMs"] for body in bodies]
    assert elapsed == sorted(elapsed)
    assert elapsed[0] > 0


async def test_nobody_else_is_told(gate: Gate, evaluator: Evaluator) -> None:
    await evaluator.ask("c1", headers={ACCEPT_HEADER: "progress"})
    await evaluator.ask("c2", headers={ACCEPT_HEADER: "chunk"})
    await evaluator.ask("c3")
    # The one that asked is the clock of the others.
    told = [await soon(evaluator.replies) for _ in range(3)]
    assert {one.correlation_id for one in told} == {"c1"}


async def test_a_quick_call_is_answered_and_nothing_more(ledger: LedgerStandIn, evaluator: Evaluator) -> None:
    async with working(ledger, Gate()):
        await evaluator.ask(headers={ACCEPT_HEADER: "progress"})
        await result_for(evaluator)
    assert evaluator.replies.empty()


async def test_the_client_asks_where_somebody_wants_to_hear(ledger: LedgerStandIn, gate: Gate) -> None:
    caller = Caller(ledger.bus)
    await caller.start()
    client = Client(AmqpTransport(caller, SessionToken.mint().text))
    heard: list[Progress] = []
    enough = asyncio.Event()

    def progress(one: Progress) -> None:
        heard.append(one)
        if len(heard) == 2:
            enough.set()

    call = asyncio.create_task(client.send(InvokeRequest(question="?", target="a"), progress=progress))
    async with asyncio.timeout(5):
        await enough.wait()
        gate.open.set()
        assert (await call).raw_text == "yes"
    assert {(one.state, one.attempt) for one in heard} == {("running", 2)}
    await client.close()
    await caller.close()

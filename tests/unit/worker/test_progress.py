"""A long call says that it still runs, to a caller that asked for it and to nobody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import ACCEPT_HEADER, REQUEST_ID_HEADER
from quintain.contracts.invoke import InvokeRequest, Progress
from quintain.rpc.requests import RpcClient
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, fake_ledger_service, grant, next_item
from support.running_worker import GatedProvider, running_worker

PROGRESS_INTERVAL_SECONDS = 0.01


@pytest.fixture
async def ledger() -> AsyncIterator[FakeLedgerService]:
    async with fake_ledger_service(lambda ask: grant(ask, attempt=2)) as ledger:
        yield ledger


@pytest.fixture
async def gated_provider(ledger: FakeLedgerService) -> AsyncIterator[GatedProvider]:
    gate = GatedProvider()
    gate.open.clear()
    async with running_worker(ledger, gate, progress_seconds=PROGRESS_INTERVAL_SECONDS):
        yield gate


@pytest.mark.parametrize("accept", ["progress", "chunk, progress", "progress,chunk"])
async def test_a_caller_that_asked_is_told_again_and_again_until_the_answer_comes(
    gated_provider: GatedProvider, evaluator: FakeEvaluator, accept: str
) -> None:
    await evaluator.send_request(headers={ACCEPT_HEADER: accept})
    told = [await next_item(evaluator.replies) for _ in range(3)]
    gated_provider.open.set()
    while (last := await next_item(evaluator.replies)).type == "progress":
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


async def test_nobody_else_is_told(gated_provider: GatedProvider, evaluator: FakeEvaluator) -> None:
    await evaluator.send_request("c1", headers={ACCEPT_HEADER: "progress"})
    await evaluator.send_request("c2", headers={ACCEPT_HEADER: "chunk"})
    await evaluator.send_request("c3")
    # The one that asked is the clock of the others.
    told = [await next_item(evaluator.replies) for _ in range(3)]
    assert {one.correlation_id for one in told} == {"c1"}


async def test_the_client_asks_where_somebody_wants_to_hear(
    ledger: FakeLedgerService, gated_provider: GatedProvider
) -> None:
    caller = RpcClient(ledger.bus)
    await caller.start()
    client = Client(AmqpTransport(caller, SessionToken.mint().text))
    heard: list[Progress] = []
    enough = asyncio.Event()

    def progress(one: Progress) -> None:
        heard.append(one)
        if len(heard) == 2:
            enough.set()

    call = asyncio.create_task(client.send(InvokeRequest(question="?", target="a"), on_progress=progress))
    async with asyncio.timeout(5):
        await enough.wait()
        gated_provider.open.set()
        assert (await call).raw_text == "yes"
    assert {(one.state, one.attempt) for one in heard} == {("running", 2)}
    await client.close()
    await caller.close()

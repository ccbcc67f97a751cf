"""Calls that their callers take back: aborted here, down to the provider's HTTP request, and honestly charged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import Envelope
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import CallKey, Outcome, Settle
from quintain.errors import ProviderFailed
from quintain.routes import REQUEST_ID_HEADER
from quintain.topology import CANCEL, target_queue
from quintain_worker.port import Billing, ProviderFailure
from support.ledger_stand_in import Evaluator, LedgerStandIn, grant, soon, stand_in
from support.model_server import ModelServer, Script, model_server
from support.model_wires import WIRES, Wire
from support.quick import timings
from support.working import Gate, acknowledged, fault_for, result_for, working


@pytest.fixture
async def ledger() -> AsyncIterator[LedgerStandIn]:
    async with stand_in() as ledger:
        yield ledger


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        server.reply(Script(stall=True))
        yield server


@pytest.fixture
async def evaluator(ledger: LedgerStandIn) -> Evaluator:
    evaluator = Evaluator(ledger.bus, "a")
    await evaluator.start()
    return evaluator


def call(evaluator: Evaluator, request_id: str = "r-c1") -> CallKey:
    return CallKey(session_id=evaluator.token.split("_")[2], request_id=request_id)


async def cancelled(evaluator: Evaluator, ledger: LedgerStandIn) -> tuple[FaultReply, Settle]:
    """What the caller of a cancelled call was told, and the ledger."""
    fault, settle = await fault_for(evaluator), await soon(ledger.settles)
    assert (fault.code, fault.status, fault.retryable) == ("cancelled", 499, False)
    assert settle.fault == fault
    return fault, settle


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_a_call_that_is_taken_back_closes_its_request_at_the_provider(
    ledger: LedgerStandIn, server: ModelServer, evaluator: Evaluator, wire: Wire
) -> None:
    async with working(ledger, wire.provider(server.url), at_once=1):
        await evaluator.ask()
        async with asyncio.timeout(5):
            await server.arrived.wait()
        assert not server.disconnected.is_set()
        await ledger.take_back(call(evaluator))
        async with asyncio.timeout(5):
            await server.disconnected.wait()
        fault, settle = await cancelled(evaluator, ledger)
        assert (settle.outcome, fault.charged) == (Outcome.DOUBT, True)
        assert settle.attempt_id == (await soon(ledger.admits)).attempt_id
        await acknowledged(ledger.memory)
        assert len(server.asked) == 1
    assert not ledger.memory.queue(target_queue("a").name).ready


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_the_deadline_closes_the_request_at_the_provider(
    ledger: LedgerStandIn, server: ModelServer, evaluator: Evaluator, wire: Wire
) -> None:
    ledger.judge = lambda ask: grant(ask, seconds=0.5)
    async with working(ledger, wire.provider(server.url), at_once=1, most_tries=3):
        began = asyncio.get_running_loop().time()
        await evaluator.ask()
        async with asyncio.timeout(5):
            await server.disconnected.wait()
        assert 0.3 < asyncio.get_running_loop().time() - began < 2
        fault, settle = await fault_for(evaluator), await soon(ledger.settles)
        assert (fault.code, fault.charged, settle.outcome) == ("timeout", True, Outcome.DOUBT)
        await acknowledged(ledger.memory)
        assert len(server.asked) == 1


async def test_a_cancellation_that_was_missed_comes_with_the_next_heartbeat(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    gate = Gate()
    gate.open.clear()
    async with working(ledger, gate, timings=timings(heartbeat_seconds=0.02)):
        await evaluator.ask()
        await soon(gate.asked)
        ledger.taken_back = [call(evaluator, "somebody else's"), call(evaluator)]
        fault, settle = await cancelled(evaluator, ledger)
        assert (settle.outcome, fault.charged) == (Outcome.DOUBT, True)
        for _ in range(3):  # it is repeated, and harms nobody
            while not ledger.heartbeats.empty():
                ledger.heartbeats.get_nowait()
            await soon(ledger.heartbeats)
        assert (ledger.settles.empty(), evaluator.replies.empty()) == (True, True)


async def test_a_call_that_waits_for_admission_is_taken_back_for_nothing(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    gate = Gate()
    ledger.judge = lambda _: "held"
    async with working(ledger, gate, at_once=1):
        await evaluator.ask()
        admit = await soon(ledger.admits)
        await ledger.take_back(call(evaluator))
        fault, settle = await cancelled(evaluator, ledger)
        assert (settle.outcome, fault.charged, settle.attempt_id) == (Outcome.NEVER_SENT, False, admit.attempt_id)
        await acknowledged(ledger.memory)
        await ledger.tell(grant(admit))  # a grant that was on its way is void
        await evaluator.ask("c2")
        await soon(ledger.admits)
        assert gate.asked.empty()


@pytest.mark.parametrize(
    ("billing", "outcome", "charged"),
    [
        (Billing.UNBILLED, Outcome.REFUND, False),
        (Billing.BILLED, Outcome.CHARGED, True),
        (Billing.UNKNOWN, Outcome.DOUBT, True),
    ],
)
async def test_a_call_between_two_tries_is_taken_back_for_what_it_owes_so_far(
    ledger: LedgerStandIn, evaluator: Evaluator, billing: Billing, outcome: Outcome, charged: bool
) -> None:
    gate = Gate()
    fault = ProviderFailed(charged=billing is not Billing.UNBILLED)
    gate.says = ProviderFailure(fault, billing, again=True, retry_after_seconds=2)
    async with working(ledger, gate, most_tries=3):
        await evaluator.ask()
        await soon(gate.asked)
        await asyncio.sleep(0.05)
        await ledger.take_back(call(evaluator))
        told, settle = await cancelled(evaluator, ledger)
        assert (settle.outcome, told.charged) == (outcome, charged)
        assert gate.asked.empty()


async def test_an_unbilled_call_with_an_unproven_past_is_charged(ledger: LedgerStandIn, evaluator: Evaluator) -> None:
    gate = Gate()
    fault = ProviderFailed(charged=False)
    gate.says = ProviderFailure(fault, Billing.UNBILLED, again=True, retry_after_seconds=2)
    ledger.judge = lambda ask: grant(ask, attempt=2, unproven=True)
    async with working(ledger, gate, most_tries=3):
        await evaluator.ask()
        await soon(gate.asked)
        await asyncio.sleep(0.05)
        await ledger.take_back(call(evaluator))
        told, settle = await cancelled(evaluator, ledger)
        assert (settle.outcome, told.charged) == (Outcome.REFUND, True)


async def test_a_call_that_somebody_joined_is_not_aborted_until_nobody_waits_for_it(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    gate = Gate()
    gate.open.clear()
    async with working(ledger, gate):
        await evaluator.ask("c1", headers={REQUEST_ID_HEADER: "r"})
        await soon(gate.asked)
        await evaluator.ask("c2", headers={REQUEST_ID_HEADER: "r"})
        await asyncio.sleep(0.01)
        await ledger.take_back(call(evaluator, "r"))
        await asyncio.sleep(0.05)
        assert evaluator.replies.empty()
        gate.open.set()
        assert {(await result_for(evaluator)).replayed for _ in range(2)} == {False, True}
        assert (await soon(ledger.settles)).outcome is Outcome.RESULT


async def test_an_answer_that_is_here_stands_whatever_is_taken_back(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    gate = Gate()
    async with working(ledger, gate) as (_, bus):
        bus.away = True  # its reply cannot go out yet
        await evaluator.ask()
        assert (await soon(ledger.settles)).outcome is Outcome.RESULT
        await ledger.take_back(call(evaluator))
        await asyncio.sleep(0.01)
        bus.away = False
        assert (await result_for(evaluator)).raw_text == "yes"
        assert ledger.settles.empty()


async def test_only_the_call_that_is_named_is_aborted(ledger: LedgerStandIn, evaluator: Evaluator) -> None:
    gate, stranger = Gate(), Evaluator(ledger.bus, "a")
    gate.open.clear()
    async with working(ledger, gate):
        for name in ("c1", "c2"):
            await evaluator.ask(name)
            await soon(gate.asked)
        await evaluator.ask("c3", headers={"x-quintain-session": stranger.token, REQUEST_ID_HEADER: "r-c1"})
        await soon(gate.asked)
        await ledger.take_back(call(evaluator))
        reply = await soon(evaluator.replies)
        assert (reply.type, reply.correlation_id) == ("fault", "c1")
        gate.open.set()
        assert {(await soon(evaluator.replies)).correlation_id for _ in range(2)} == {"c2", "c3"}


async def test_a_cancellation_nobody_can_read_is_logged_and_the_next_one_is_heard(
    ledger: LedgerStandIn, evaluator: Evaluator, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    gate.open.clear()
    async with working(ledger, gate):
        await evaluator.ask()
        await soon(gate.asked)
        for body in (b"", b"junk", b"[]", b'{"calls": [7]}', b'{"calls": [{"sessionId": "x"}]}'):
            await ledger.bus.publish(CANCEL, "", Envelope(body=body, type="cancel"))
        await ledger.take_back(call(evaluator, "not here"))
        await ledger.take_back(call(evaluator))
        await cancelled(evaluator, ledger)
    assert caplog.text.count("A cancellation nobody can read is dropped") == 5


async def test_every_worker_hears_of_a_cancellation(ledger: LedgerStandIn, evaluator: Evaluator) -> None:
    gates = [Gate(), Gate()]
    for gate in gates:
        gate.open.clear()
    async with working(ledger, gates[0], at_once=1), working(ledger, gates[1], at_once=1):
        for name in ("c1", "c2"):
            await evaluator.ask(name)
        for gate in gates:
            await soon(gate.asked)
        await ledger.take_back(call(evaluator, "r-c1"), call(evaluator, "r-c2"))
        codes = {(await fault_for(evaluator)).code for _ in range(2)}
    assert codes == {"cancelled"}

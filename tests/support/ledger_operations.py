"""What services ask of a ledger, each in one line; and several services on one database."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.invoke import OutputMessage, Result, TokenUsage
from quintain.contracts.ledger import Admission, Admit, AttemptOutcome, Register, Settle, TargetCard
from quintain.contracts.session import Info, OpenSession, SessionOpened
from quintain_metadata.ledger import audit, calls, leases, sessions
from quintain_metadata.ledger.calls import CallOperation, CancelResult
from quintain_metadata.ledger.decisions import AdmitOperation, Deferred
from quintain_metadata.store.base import Ledger, Moment, Operation, SqlProgram
from quintain_metadata.store.opening import open_ledger

WORKER = "w1"


@contextlib.asynccontextmanager
async def open_ledgers(url: str, count: int) -> AsyncIterator[list[Ledger]]:
    """So many ledgers on one database, as so many metadata services have them."""
    async with contextlib.AsyncExitStack() as stack:
        ledgers = [await open_ledger(url) for _ in range(count)]
        for ledger in ledgers:
            stack.push_async_callback(ledger.close)
        await register(ledgers[0])
        yield ledgers


async def register(ledger: Ledger, worker: str = WORKER) -> None:
    card = TargetCard(name="a", provider="mock", max_concurrency=10_000)
    request = Register(worker_id=worker, incarnation=worker, targets=[card], protocol=PROTOCOL_VERSION)
    await ledger.transact(lambda moment: leases.register_worker(moment.now, request))


async def open_session(ledger: Ledger, max_calls: int, parent: SessionOpened | None = None) -> SessionOpened:
    request = OpenSession(default_target="a", max_calls=max_calls)

    def steps(moment: Moment) -> SqlProgram[SessionOpened]:
        owner = None if parent is None else (yield from sessions.require_session(parent.session_id))
        return (yield from sessions.open_session(moment.now, request, SessionToken.mint(), owner))

    return await ledger.transact(steps)


def alone(operation: CallOperation) -> Operation[Any]:
    """One admit or settle in a transaction of its own, which raises its fault."""

    def steps(moment: Moment) -> SqlProgram[Any]:
        (outcome,) = yield from calls.run_batch(moment, [operation])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return steps


def admit_operation(
    session: SessionOpened, request_id: str, attempt_id: str, worker: str = WORKER
) -> Operation[Admission | Deferred]:
    return alone(one_admit(session, request_id, attempt_id, worker))


def settle_operation(
    session: SessionOpened, request_id: str, attempt_id: str, outcome: AttemptOutcome
) -> Operation[Any]:
    return alone(one_settle(session, request_id, attempt_id, outcome))


def one_admit(session: SessionOpened, request_id: str, attempt_id: str, worker: str = WORKER) -> AdmitOperation:
    request = Admit(
        token=session.token, request_id=request_id, attempt_id=attempt_id, target="a", body_sha256=f"of {request_id}"
    )
    return AdmitOperation(request, worker, request.credential())


async def admit(ledger: Ledger, session: SessionOpened, request_id: str, attempt_id: str) -> Admission | Deferred:
    return await ledger.transact(admit_operation(session, request_id, attempt_id))


def is_granted(decision: object) -> bool:
    return isinstance(decision, Admission) and decision.is_grant


def one_settle(session: SessionOpened, request_id: str, attempt_id: str, outcome: AttemptOutcome) -> Settle:
    reply = Result(output=[OutputMessage(content="yes")], target="a", call_count=1, max_calls=1)
    is_result = outcome is AttemptOutcome.RESULT
    return Settle(
        session_id=session.session_id,
        request_id=request_id,
        attempt_id=attempt_id,
        outcome=outcome,
        reply=reply.to_wire().decode() if is_result else None,
        token_usage=TokenUsage(input=3, output=2) if is_result else None,
    )


async def settle(
    ledger: Ledger, session: SessionOpened, request_id: str, attempt_id: str, outcome: AttemptOutcome
) -> None:
    await ledger.transact(settle_operation(session, request_id, attempt_id, outcome))


def reserve_operation(session: SessionOpened, request_ids: list[str]) -> Operation[int]:
    def steps(moment: Moment) -> SqlProgram[int]:
        owner = yield from sessions.authenticate(moment.now, SessionToken.parse(session.token))
        return (yield from calls.reserve(moment, owner, request_ids, moment.now + 600_000))

    return steps


async def reserve(ledger: Ledger, session: SessionOpened, request_ids: list[str]) -> int:
    return await ledger.transact(reserve_operation(session, request_ids))


def release_operation(session: SessionOpened, request_ids: list[str]) -> Operation[int]:
    def steps(moment: Moment) -> SqlProgram[int]:
        owner = yield from sessions.authenticate(moment.now, SessionToken.parse(session.token))
        return (yield from calls.release(moment, owner, request_ids))

    return steps


def cancel_operation(session: SessionOpened, request_ids: list[str]) -> Operation[CancelResult]:
    def steps(moment: Moment) -> SqlProgram[CancelResult]:
        owner = yield from sessions.authenticate(moment.now, SessionToken.parse(session.token))
        return (yield from calls.cancel(moment, owner, request_ids))

    return steps


def close_operation(session: SessionOpened) -> Operation[int]:
    def steps(moment: Moment) -> SqlProgram[int]:
        return (yield from calls.end_family(moment, [session.session_id]))

    return steps


async def info(ledger: Ledger, session: SessionOpened) -> Info:
    return await ledger.transact(lambda moment: sessions.info_by_id(moment.now, session.session_id))


async def assert_ledger_consistent(ledger: Ledger) -> None:
    assert (await ledger.transact(lambda _: audit.verify_counters())).findings == ()

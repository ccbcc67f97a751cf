"""Several services on one database, and what they ask of it as operations, which a test may hold or shift."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from quintain.contracts.credentials import SessionToken
from quintain.contracts.ledger import Admission, AttemptOutcome, Settle
from quintain.contracts.session import Info, SessionOpened
from quintain_metadata.ledger import calls, sessions
from quintain_metadata.ledger.calls import CancelResult
from quintain_metadata.ledger.decisions import AdmitOperation, Deferred
from quintain_metadata.store.base import Ledger, Moment, Operation, SqlProgram
from quintain_metadata.store.opening import open_ledger
from support.ledger_driver import Driver, admit_request, alone, settle_request

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
    await Driver(ledger).register(worker, limit=10_000)


async def open_session(ledger: Ledger, max_calls: int, parent: SessionOpened | None = None) -> SessionOpened:
    return await Driver(ledger).open_session(max_calls=max_calls, parent=parent)


async def admit(ledger: Ledger, session: SessionOpened, request_id: str, attempt_id: str) -> Admission | Deferred:
    return await Driver(ledger).ask(admit_request(session, request_id, attempt_id=attempt_id))


async def info(ledger: Ledger, session: SessionOpened) -> Info:
    return await Driver(ledger).info(session)


async def assert_ledger_consistent(ledger: Ledger) -> None:
    assert await Driver(ledger).audit_findings() == ()


def is_granted(decision: object) -> bool:
    return isinstance(decision, Admission) and decision.is_grant


def one_admit(session: SessionOpened, request_id: str, attempt_id: str, worker: str = WORKER) -> AdmitOperation:
    request = admit_request(session, request_id, attempt_id=attempt_id)
    return AdmitOperation(request, worker, request.credential())


def one_settle(session: SessionOpened, request_id: str, attempt_id: str, outcome: AttemptOutcome) -> Settle:
    return settle_request(session, admit_request(session, request_id, attempt_id=attempt_id), outcome)


def admit_operation(
    session: SessionOpened, request_id: str, attempt_id: str, worker: str = WORKER
) -> Operation[Admission | Deferred]:
    return alone(one_admit(session, request_id, attempt_id, worker))


def settle_operation(
    session: SessionOpened, request_id: str, attempt_id: str, outcome: AttemptOutcome
) -> Operation[Any]:
    return alone(one_settle(session, request_id, attempt_id, outcome))


def reserve_operation(session: SessionOpened, request_ids: list[str]) -> Operation[int]:
    def steps(moment: Moment) -> SqlProgram[int]:
        owner = yield from sessions.authenticate(moment.now, SessionToken.parse(session.token))
        return (yield from calls.reserve(moment, owner, request_ids, moment.now + 600_000))

    return steps


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

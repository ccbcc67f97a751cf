"""What services ask of a ledger, each in one line; and several services on one database."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from quintain.contracts.invoke import OutputMessage, Result, TokenUsage
from quintain.contracts.ledger import Admission, Admit, Outcome, Register, Settle, TargetCard
from quintain.contracts.metadata import Info, OpenSession, SessionOpened
from quintain.contracts.token import SessionToken
from quintain_metadata import audit, calls, cancels, reservations, sessions, upkeep
from quintain_metadata.cancels import TakenBack
from quintain_metadata.ledger import Ledger, Operation
from quintain_metadata.ledger_factory import open_ledger
from quintain_metadata.records import Held, Moment
from quintain_metadata.steps import Steps

WORKER = "w1"


@contextlib.asynccontextmanager
async def services_on(url: str, how_many: int) -> AsyncIterator[list[Ledger]]:
    """So many ledgers on one database, as so many metadata services have them."""
    async with contextlib.AsyncExitStack() as stack:
        ledgers = [await open_ledger(url) for _ in range(how_many)]
        for ledger in ledgers:
            stack.push_async_callback(ledger.close)
        await register(ledgers[0])
        yield ledgers


async def register(ledger: Ledger, worker: str = WORKER) -> None:
    card = TargetCard(name="a", provider="mock", max_concurrency=10_000)
    ask = Register(worker_id=worker, incarnation=worker, targets=[card])
    await ledger.do(lambda moment: upkeep.register(moment.now, ask))


async def open_session(ledger: Ledger, max_calls: int, parent: SessionOpened | None = None) -> SessionOpened:
    ask = OpenSession(default_target="a", max_calls=max_calls)

    def steps(moment: Moment) -> Steps[SessionOpened]:
        owner = None if parent is None else (yield from sessions.existing(parent.session_id))
        return (yield from sessions.open_session(moment.now, ask, SessionToken.mint(), owner))

    return await ledger.do(steps)


def admitting(
    session: SessionOpened, request_id: str, attempt_id: str, worker: str = WORKER
) -> Operation[Admission | Held]:
    ask = Admit(
        token=session.token, request_id=request_id, attempt_id=attempt_id, target="a", body_sha256=f"of {request_id}"
    )
    return lambda moment: calls.admit(moment, ask, worker)


async def admit(ledger: Ledger, session: SessionOpened, request_id: str, attempt_id: str) -> Admission | Held:
    return await ledger.do(admitting(session, request_id, attempt_id))


def granted(verdict: object) -> bool:
    return isinstance(verdict, Admission) and verdict.fault is None and verdict.replay is None


def settling(session: SessionOpened, request_id: str, attempt_id: str, outcome: Outcome) -> Operation[object]:
    reply = Result(output=[OutputMessage(content="yes")], raw_text="yes", target="a", call_count=1, max_calls=1)
    is_result = outcome is Outcome.RESULT
    ask = Settle(
        session_id=session.session_id,
        request_id=request_id,
        attempt_id=attempt_id,
        outcome=outcome,
        reply=reply if is_result else None,
        token_usage=TokenUsage(input=3, output=2) if is_result else None,
    )
    return lambda moment: calls.settle(moment, ask)


async def settle(ledger: Ledger, session: SessionOpened, request_id: str, attempt_id: str, outcome: Outcome) -> None:
    await ledger.do(settling(session, request_id, attempt_id, outcome))


def reserving(session: SessionOpened, request_ids: list[str]) -> Operation[int]:
    def steps(moment: Moment) -> Steps[int]:
        owner = yield from sessions.prove(moment.now, SessionToken.parse(session.token))
        return (yield from reservations.reserve(moment.now, owner, request_ids, moment.now + 600_000))

    return steps


async def reserve(ledger: Ledger, session: SessionOpened, request_ids: list[str]) -> int:
    return await ledger.do(reserving(session, request_ids))


def releasing(session: SessionOpened, request_ids: list[str]) -> Operation[int]:
    def steps(moment: Moment) -> Steps[int]:
        owner = yield from sessions.prove(moment.now, SessionToken.parse(session.token))
        return (yield from reservations.release(moment, owner, request_ids))

    return steps


def cancelling(session: SessionOpened, request_ids: list[str]) -> Operation[TakenBack]:
    def steps(moment: Moment) -> Steps[TakenBack]:
        owner = yield from sessions.prove(moment.now, SessionToken.parse(session.token))
        return (yield from cancels.cancel(moment, owner, request_ids))

    return steps


def closing(session: SessionOpened) -> Operation[int]:
    def steps(moment: Moment) -> Steps[int]:
        return (yield from reservations.release_all(moment, (yield from sessions.existing(session.session_id))))

    return steps


async def info(ledger: Ledger, session: SessionOpened) -> Info:
    return await ledger.do(lambda moment: sessions.show(moment.now, session.session_id))


async def assert_the_books_agree(ledger: Ledger) -> None:
    assert (await ledger.do(lambda _: audit.verify_counters())).findings == ()

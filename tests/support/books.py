"""A ledger in memory, and the few things that tests of the metadata service do to one in one line."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

from quintain.contracts.invoke import FaultReply, OutputMessage, Result
from quintain.contracts.ledger import Admit, Drain, Heartbeat, Outcome, Register, Settle, TargetCard
from quintain.contracts.metadata import AmendSession, Info, OpenSession, SessionOpened
from quintain.contracts.token import SessionToken
from quintain.errors import ProviderFailed
from quintain_metadata import calls, cancels, reservations, sessions, upkeep
from quintain_metadata.cancels import TakenBack
from quintain_metadata.ledger import Ledger
from quintain_metadata.records import Moment
from quintain_metadata.sqlite import SqliteLedger
from quintain_metadata.steps import Steps


@dataclass(frozen=True)
class Books:
    """A ledger, spoken to directly: what a service or a worker would say to it."""

    ledger: Ledger

    async def open(
        self, default_target: str = "a", *, parent: SessionOpened | None = None, **ask: object
    ) -> SessionOpened:
        question = OpenSession.model_validate({"default_target": default_target, **ask})

        def steps(moment: Moment) -> Steps[SessionOpened]:
            owner = None
            if parent is not None:
                owner = yield from sessions.prove(moment.now, SessionToken.parse(parent.token))
            return (yield from sessions.open_session(moment.now, question, SessionToken.mint(), owner))

        return await self.ledger.do(steps)

    async def register(self, *targets: str, incarnation: str = "w1", limit: int = 64) -> None:
        cards = [TargetCard(name=name, provider="mock", max_concurrency=limit) for name in targets]
        ask = Register(worker_id=incarnation, incarnation=incarnation, targets=cards, drain=Drain.ABLE)
        await self.ledger.do(lambda moment: upkeep.register(moment.now, ask))

    async def lapse(self, incarnation: str) -> None:
        """The worker's lease lapsed a minute ago."""
        beat = Heartbeat(worker_id=incarnation, incarnation=incarnation)
        await self.ledger.do(lambda moment: upkeep.renew(moment.now - 60_000, beat))

    async def admit(self, ask: Admit, incarnation: str = "w1") -> object:
        return await self.ledger.do(lambda moment: calls.admit(moment, ask, incarnation))

    async def reserve(self, session: SessionOpened, *request_ids: str) -> None:
        def steps(moment: Moment) -> Steps[int]:
            owner = yield from sessions.prove(moment.now, SessionToken.parse(session.token))
            return (yield from reservations.reserve(moment.now, owner, list(request_ids), moment.now + 60_000))

        await self.ledger.do(steps)

    async def settle(self, session: SessionOpened, ask: Admit, outcome: Outcome = Outcome.RESULT) -> None:
        item = settled(session, ask, outcome)
        await self.ledger.do(lambda moment: calls.settle(moment, item))

    async def amend(self, session: SessionOpened, **ask: object) -> None:
        change = AmendSession.model_validate({"session_id": session.session_id, **ask})
        await self.ledger.do(lambda moment: sessions.amend(moment.now, change))

    async def cancel(self, session: SessionOpened, *request_ids: str) -> TakenBack:
        def steps(moment: Moment) -> Steps[TakenBack]:
            owner = yield from sessions.prove(moment.now, SessionToken.parse(session.token))
            return (yield from cancels.cancel(moment, owner, request_ids))

        return await self.ledger.do(steps)

    async def pause(self, target: str, milliseconds: int) -> int | None:
        return await self.ledger.do(lambda moment: upkeep.pause(moment.now, target, milliseconds))

    async def info(self, session: SessionOpened) -> Info:
        return await self.ledger.do(lambda moment: sessions.show(moment.now, session.session_id))


def asked(session: SessionOpened, request_id: str, **more: object) -> Admit:
    """An admit of a new attempt."""
    ask = {
        "token": session.token,
        "request_id": request_id,
        "attempt_id": secrets.token_hex(8),
        "target": "a",
        "body_sha256": "body",
        **more,
    }
    return Admit.model_validate(ask)


def settled(session: SessionOpened, ask: Admit, outcome: Outcome = Outcome.RESULT) -> Settle:
    """What became of that attempt."""
    is_result = outcome is Outcome.RESULT
    return Settle(
        session_id=session.session_id,
        request_id=ask.request_id,
        attempt_id=ask.attempt_id,
        outcome=outcome,
        reply=result("yes") if is_result else None,
        fault=None if is_result else FaultReply.of(ProviderFailed("it broke", charged=True)),
    )


def result(text: str) -> Result:
    return Result(output=[OutputMessage(content=text)], raw_text=text, target="a", call_count=1, max_calls=1)


@contextlib.asynccontextmanager
async def books() -> AsyncIterator[Books]:
    """Books in memory, closed at the end."""
    ledger = SqliteLedger(":memory:", asyncio.get_running_loop())
    try:
        yield Books(ledger)
    finally:
        await ledger.close()

"""A ledger in memory, and the few things that tests of the metadata service do to one in one line."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.invoke import FaultReply, OutputMessage, Result
from quintain.contracts.ledger import Admit, AttemptOutcome, DrainState, Heartbeat, Register, Settle, TargetCard
from quintain.contracts.quota import QuotaCard
from quintain.contracts.session import AmendSession, Info, OpenSession, SessionOpened
from quintain.errors import ProviderFailed
from quintain_metadata.ledger import calls, leases, sessions
from quintain_metadata.ledger.calls import CancelResult
from quintain_metadata.ledger.decisions import AdmitOperation
from quintain_metadata.store.base import Ledger, Moment, SqlProgram
from quintain_metadata.store.sqlite import SqliteLedger
from support.ledger_operations import alone


@dataclass
class LedgerClient:
    """A ledger with a clock of its own: what a session's owner and an administrator say to it."""

    ledger: Ledger
    clock_ahead_ms: int = 0

    def with_clock(self, moment: Moment) -> Moment:
        return self.ledger.lease_expiry.moment(moment.now + self.clock_ahead_ms)

    async def open_session(
        self, default_target: str = "a", *, parent: SessionOpened | None = None, **fields: object
    ) -> SessionOpened:
        request = OpenSession.model_validate({"default_target": default_target, **fields})

        def steps(moment: Moment) -> SqlProgram[SessionOpened]:
            owner = None
            if parent is not None:
                owner = yield from sessions.authenticate(self.with_clock(moment).now, SessionToken.parse(parent.token))
            return (yield from sessions.open_session(self.with_clock(moment).now, request, SessionToken.mint(), owner))

        return await self.ledger.transact(steps)

    async def cancel(self, session: SessionOpened, *request_ids: str) -> CancelResult:
        def steps(moment: Moment) -> SqlProgram[CancelResult]:
            owner = yield from sessions.authenticate(self.with_clock(moment).now, SessionToken.parse(session.token))
            return (yield from calls.cancel(self.with_clock(moment), owner, request_ids))

        return await self.ledger.transact(steps)

    async def pause(self, target: str, milliseconds: int) -> int | None:
        return await self.ledger.transact(
            lambda moment: leases.extend_pause(self.with_clock(moment).now, target, milliseconds)
        )

    async def info(self, session: SessionOpened) -> Info:
        return await self.ledger.transact(
            lambda moment: sessions.info_by_id(self.with_clock(moment).now, session.session_id)
        )


@dataclass
class LedgerDriver(LedgerClient):
    """The same, and what a worker says, with the messages that it sends."""

    async def register(
        self, *targets: str, incarnation: str = "w1", limit: int = 64, quota: QuotaCard | None = None
    ) -> None:
        cards = [TargetCard(name=name, provider="mock", max_concurrency=limit, quota=quota) for name in targets]
        request = Register(
            worker_id=incarnation,
            incarnation=incarnation,
            targets=cards,
            drain=DrainState.SUPPORTED,
            protocol=PROTOCOL_VERSION,
        )
        await self.ledger.transact(lambda moment: leases.register_worker(moment.now, request))

    async def expire_lease(self, incarnation: str) -> None:
        """The worker's lease lapsed a minute ago."""
        heartbeat = Heartbeat(worker_id=incarnation, incarnation=incarnation)
        await self.ledger.transact(lambda moment: leases.renew_lease(moment.now - 60_000, heartbeat))

    async def admit(self, request: Admit, incarnation: str = "w1") -> object:
        return await self.ledger.transact(alone(AdmitOperation(request, incarnation, request.credential())))

    async def reserve(self, session: SessionOpened, *request_ids: str) -> None:
        def steps(moment: Moment) -> SqlProgram[int]:
            owner = yield from sessions.authenticate(moment.now, SessionToken.parse(session.token))
            return (yield from calls.reserve(moment, owner, list(request_ids), moment.now + 60_000))

        await self.ledger.transact(steps)

    async def settle(
        self, session: SessionOpened, admit: Admit, outcome: AttemptOutcome = AttemptOutcome.RESULT
    ) -> None:
        await self.ledger.transact(alone(settle_request(session, admit, outcome)))

    async def amend_session(self, session: SessionOpened, **fields: object) -> None:
        change = AmendSession.model_validate({"session_id": session.session_id, **fields})
        await self.ledger.transact(lambda moment: sessions.amend_session(moment.now, change))


def admit_request(session: SessionOpened, request_id: str, **overrides: object) -> Admit:
    """An admit of a new attempt."""
    fields = {
        "token": session.token,
        "request_id": request_id,
        "attempt_id": secrets.token_hex(8),
        "target": "a",
        "body_sha256": "body",
        **overrides,
    }
    return Admit.model_validate(fields)


def settle_request(session: SessionOpened, admit: Admit, outcome: AttemptOutcome = AttemptOutcome.RESULT) -> Settle:
    """What became of that attempt."""
    is_result = outcome is AttemptOutcome.RESULT
    return Settle(
        session_id=session.session_id,
        request_id=admit.request_id,
        attempt_id=admit.attempt_id,
        outcome=outcome,
        reply=result("yes").to_wire().decode() if is_result else None,
        fault=None if is_result else FaultReply.from_fault(ProviderFailed("it broke", charged=True)),
    )


def result(text: str) -> Result:
    return Result(output=[OutputMessage(content=text)], target="a", call_count=1, max_calls=1)


@contextlib.asynccontextmanager
async def memory_ledger_driver() -> AsyncIterator[LedgerDriver]:
    """Books in memory, closed at the end."""
    ledger = SqliteLedger(":memory:", asyncio.get_running_loop())
    try:
        yield LedgerDriver(ledger)
    finally:
        await ledger.close()

"""A ledger of either kind with a clock of its own, spoken to in one line a step, by the names of calls and attempts."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.invoke import FaultReply, OutputMessage, Result, TokenUsage
from quintain.contracts.ledger import (
    Admission,
    Admit,
    AttemptOutcome,
    DrainState,
    Heartbeat,
    LeaseRenewed,
    Register,
    Settle,
    TargetCard,
)
from quintain.contracts.session import AmendSession, Info, OpenSession, SessionOpened
from quintain.errors import BudgetUnavailable, Fault, ProviderFailed
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.ledger import audit, calls, leases, sessions, targets
from quintain_metadata.ledger.calls import CallOperation, CancelResult
from quintain_metadata.ledger.decisions import AdmitOperation, Deferred
from quintain_metadata.ledger.session_rows import SessionRow
from quintain_metadata.store.base import Ledger, Moment, Operation, Returned, SqlProgram, execute
from quintain_metadata.store.opening import open_ledger
from quintain_metadata.store.sqlite import SqliteLedger

#: What each answer took.
USED = TokenUsage(input=6, output=2, cached=1, cache_write=3)

#: Longer than a worker lease.
LAPSE_MS = 16_000


@dataclass
class Driver:
    """What a session's owner, an administrator, and workers say to a ledger; ``w1`` is the worker that is not named."""

    ledger: Ledger
    clock_ahead_ms: int = 0
    attempts: int = 0

    async def transact(self, operation: Callable[[Moment], SqlProgram[Returned]]) -> Returned:
        """Run an operation at this driver's time."""
        expiry = self.ledger.lease_expiry
        return await self.ledger.transact(lambda moment: operation(expiry.moment(moment.now + self.clock_ahead_ms)))

    async def at_now(
        self, program: Callable[..., SqlProgram[Returned]], *arguments: object, **named: object
    ) -> Returned:
        """Run a program that begins with the time."""
        return await self.transact(lambda moment: program(moment.now, *arguments, **named))

    async def as_owner(
        self, session: SessionOpened, program: Callable[[Moment, SessionRow], SqlProgram[Returned]]
    ) -> Returned:
        """Run a program of a session's owner."""

        def steps(moment: Moment) -> SqlProgram[Returned]:
            owner = yield from sessions.authenticate(moment.now, SessionToken.parse(session.token))
            return (yield from program(moment, owner))

        return await self.transact(steps)

    # Sessions.

    async def open_session(
        self, default_target: str = "a", *, parent: SessionOpened | None = None, **fields: object
    ) -> SessionOpened:
        request, token = OpenSession.model_validate({"default_target": default_target, **fields}), SessionToken.mint()
        if parent is None:
            return await self.at_now(sessions.open_session, request, token, None)
        return await self.as_owner(
            parent, lambda moment, owner: sessions.open_session(moment.now, request, token, owner)
        )

    async def info(self, session: SessionOpened) -> Info:
        return await self.at_now(sessions.info_by_id, session.session_id)

    async def amend(self, session: SessionOpened, **fields: object) -> Info:
        change = AmendSession.model_validate({"session_id": session.session_id, **fields})
        return await self.at_now(sessions.amend_session, change)

    async def close(self, session: SessionOpened) -> Info:
        """Close a session, as its owner does."""
        await self.transact(lambda moment: calls.end_family(moment, [session.session_id]))
        return await self.amend(session, state="closed")

    async def reserve(self, session: SessionOpened, ids: Sequence[str], *, seconds: float = 60) -> int:
        return await self.as_owner(
            session,
            lambda moment, owner: calls.reserve(moment, owner, [*ids], int(moment.now + seconds * 1000)),
        )

    async def cancel(self, session: SessionOpened, *request_ids: str) -> CancelResult:
        return await self.as_owner(session, lambda moment, owner: calls.cancel(moment, owner, request_ids))

    # Workers.

    async def register(
        self,
        incarnation: str = "w1",
        *,
        names: Iterable[str] = "a",
        limit: int = 64,
        worker_id: str = "",
        sole: bool = False,
        drain: DrainState | None = None,
        user: str = leases.DEFAULT_USER,
        **card: object,
    ) -> LeaseRenewed:
        """Register a worker that serves these targets, each with these fields."""
        fields = {"provider": "mock", "max_concurrency": limit, **card}
        request = Register(
            worker_id=worker_id or incarnation,
            incarnation=incarnation,
            targets=[TargetCard.model_validate({"name": name, **fields}) for name in names],
            drain=drain,
            sole=sole or None,
            protocol=PROTOCOL_VERSION,
        )
        return await self.at_now(leases.register_worker, request, user=user)

    async def renew(
        self, incarnation: str = "w1", *, worker_id: str = "", user: str = leases.DEFAULT_USER, **fields: object
    ) -> LeaseRenewed:
        beat = {"worker_id": worker_id or incarnation, "incarnation": incarnation, **fields}
        return (await self.renew_all((Heartbeat.model_validate(beat), user)))[0]

    async def renew_all(self, *of_users: tuple[Heartbeat, str]) -> list[LeaseRenewed]:
        """Read these heartbeats together."""
        rows = await self.transact(lambda _: execute("SELECT target, incarnation, running FROM running_calls"))
        running = {(row[0], row[1]): row[2] for row in rows}
        return await self.at_now(leases.renew_leases, of_users, DEFAULT_TIMINGS.lease_ms, running)

    async def lose_worker(self, follower: str = "w2") -> None:
        """All leases lapse, and another worker registers."""
        self.clock_ahead_ms += LAPSE_MS
        await self.register(follower)

    async def expire_lease(self, incarnation: str) -> None:
        """This worker's lease lapsed a minute ago."""
        heartbeat = Heartbeat(worker_id=incarnation, incarnation=incarnation)
        of_users = [(heartbeat, leases.DEFAULT_USER)]
        await self.transact(lambda moment: leases.renew_leases(moment.now - 60_000, of_users, DEFAULT_TIMINGS.lease_ms))

    async def pause(self, target: str, milliseconds: int) -> int | None:
        return await self.at_now(targets.extend_pause, target, milliseconds)

    async def paused(self) -> dict[str, int]:
        """The targets that are paused, each with the end of its pause."""
        told = await self.at_now(targets.list_targets)
        return {each.name: each.paused_until for each in told.targets if each.paused_until is not None}

    # Calls.

    async def run(self, operation: CallOperation) -> Any:
        """Run one admit or settle as a worker sends it."""
        return await self.transact(alone(operation))

    async def ask(self, request: Admit, by: str = "w1") -> Admission | Deferred:
        decision: Admission | Deferred = await self.run(AdmitOperation(request, by, request.credential()))
        return decision

    async def admit(
        self, session: SessionOpened, request_id: str, *, by: str = "w1", attempt: str = "", **overrides: object
    ) -> Admission | Deferred:
        self.attempts += 1
        fields = {"attempt_id": attempt or f"attempt-{self.attempts}", **overrides}
        request = admit_request(session, request_id, **fields)
        while True:
            # A worker repeats it, too: of many at once some wait for a connection for longer than the ledger does.
            with contextlib.suppress(BudgetUnavailable):
                return await self.ask(request, by)

    async def admit_granted(self, session: SessionOpened, request_id: str, **overrides: object) -> Admission:
        admission = await self.admit(session, request_id, **overrides)  # type: ignore[arg-type]
        assert admission.is_grant, admission
        return admission

    async def admit_fault(self, session: SessionOpened, request_id: str, **overrides: object) -> FaultReply:
        """The fault that another attempt is told, kept or raised."""
        try:
            admission = await self.admit(session, request_id, **overrides)  # type: ignore[arg-type]
        except Fault as fault:
            return FaultReply.from_fault(fault)
        assert admission.fault is not None
        return admission.fault

    async def settle(
        self,
        session: SessionOpened,
        request_id: str,
        attempt: str,
        outcome: AttemptOutcome = AttemptOutcome.RESULT,
        text: str = "yes",
        fault: Fault | None = None,
        **fields: object,
    ) -> None:
        admit = admit_request(session, request_id, attempt_id=attempt)
        await self.end(session, admit, outcome, text=text, fault=fault, **fields)

    async def end(
        self,
        session: SessionOpened,
        admit: Admit,
        outcome: AttemptOutcome = AttemptOutcome.RESULT,
        **fields: Any,
    ) -> None:
        await self.run(settle_request(session, admit, outcome, **fields))

    async def sweep(self) -> int:
        return await self.transact(calls.sweep)

    async def audit_findings(self) -> Sequence[audit.AuditFinding]:
        """What the audit finds wrong with the books."""
        return (await self.transact(lambda _: audit.verify_counters())).findings


def alone(operation: CallOperation) -> Operation[Any]:
    """One admit or settle in a transaction of its own, which raises its fault."""

    def steps(moment: Moment) -> SqlProgram[Any]:
        (outcome,) = yield from calls.run_batch(moment, [operation])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return steps


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


def settle_request(
    session: SessionOpened,
    admit: Admit,
    outcome: AttemptOutcome = AttemptOutcome.RESULT,
    text: str = "yes",
    fault: Fault | None = None,
    **fields: object,
) -> Settle:
    """What became of that attempt."""
    is_result = outcome is AttemptOutcome.RESULT
    told = {
        "session_id": session.session_id,
        "request_id": admit.request_id,
        "attempt_id": admit.attempt_id,
        "outcome": outcome,
        "reply": result(text).to_wire().decode() if is_result else None,
        "fault": None if is_result else FaultReply.from_fault(fault or ProviderFailed("it broke", charged=True)),
        "token_usage": USED if is_result else None,
    }
    return Settle.model_validate({**told, **fields})


def result(text: str) -> Result:
    return Result(output=[OutputMessage(content=text)], target="a", call_count=1, max_calls=1)


def counters(info: Info) -> dict[str, int]:
    return {
        "used": info.call_count,
        "reserved": info.reserved,
        "running": info.running,
        "committed": info.committed,
        "refunded": info.refunded,
        "in_doubt": info.in_doubt,
    }


async def open_emptied_ledger(url: str) -> Ledger:
    """The ledger at this URL, without the rows that other tests left there."""
    ledger = await open_ledger(url)
    if ledger.leadership is not None:
        tables = (
            "SELECT string_agg(tablename, ', ') FROM pg_tables"
            " WHERE schemaname = 'public' AND tablename NOT IN ('ledger_version', 'leader')"
        )
        ((names,),) = await ledger.transact(lambda _: execute(tables))
        await ledger.transact(lambda _: execute(f"TRUNCATE {names}"))
    return ledger


@contextlib.asynccontextmanager
async def memory_ledger_driver() -> AsyncIterator[Driver]:
    """Books in memory, closed at the end."""
    ledger = SqliteLedger(":memory:", asyncio.get_running_loop())
    try:
        yield Driver(ledger)
    finally:
        await ledger.close()

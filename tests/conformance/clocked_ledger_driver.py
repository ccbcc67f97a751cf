"""A ledger of either kind with a clock of its own, spoken to in one line a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.invoke import FaultReply, TokenUsage
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
from quintain.contracts.session import AmendSession, Info, SessionOpened
from quintain.errors import BudgetUnavailable, Fault, ProviderFailed
from quintain_metadata.ledger import audit, calls, leases, sessions
from quintain_metadata.ledger.decisions import AdmitOperation, Deferred
from quintain_metadata.store.base import Moment, Returned, SqlProgram
from support.ledger_driver import LedgerClient, result
from support.ledger_operations import alone

#: What each answer took.
USED = TokenUsage(input=6, output=2, cached=1, cache_write=3)

#: Longer than a worker lease.
LAPSE_MS = 16_000


@dataclass
class Driver(LedgerClient):
    """A ledger with a clock of its own, spoken to in one line a step, by the names of calls and attempts."""

    attempts: int = 0

    async def transact(self, operation: Callable[[Moment], SqlProgram[Returned]]) -> Returned:
        """Run an operation at this driver's time."""
        return await self.ledger.transact(lambda moment: operation(self.with_clock(moment)))

    async def at_now(
        self, program: Callable[..., SqlProgram[Returned]], *arguments: object, **named: object
    ) -> Returned:
        """Run a program that begins with the time."""
        return await self.transact(lambda moment: program(moment.now, *arguments, **named))

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
        return await self.at_now(leases.renew_lease, Heartbeat.model_validate(beat), user=user)

    async def lose_worker(self, follower: str = "w2") -> None:
        """All leases lapse, and another worker registers."""
        self.clock_ahead_ms += LAPSE_MS
        await self.register(follower)

    async def amend(self, session: SessionOpened, **fields: object) -> Info:
        change = AmendSession.model_validate({"session_id": session.session_id, **fields})
        return await self.at_now(sessions.amend_session, change)

    async def close(self, session: SessionOpened) -> Info:
        """Close a session, as its owner does."""
        await self.transact(lambda moment: calls.end_family(moment, [session.session_id]))
        return await self.amend(session, state="closed")

    async def admit(
        self, session: SessionOpened, request_id: str, *, by: str = "w1", attempt: str = "", **overrides: object
    ) -> Admission | Deferred:
        self.attempts += 1
        request = Admit.model_validate(
            {
                "token": session.token,
                "request_id": request_id,
                "attempt_id": attempt or f"attempt-{self.attempts}",
                "target": "a",
                "body_sha256": "body",
                **overrides,
            }
        )
        operation = alone(AdmitOperation(request, by, request.credential()))
        while True:
            try:
                admitted: Admission | Deferred = await self.transact(operation)
            except BudgetUnavailable:
                # A worker repeats it, too: of many at once some wait for a connection for longer than the ledger does.
                continue
            return admitted

    async def admit_granted(self, session: SessionOpened, request_id: str, **overrides: object) -> Admission:
        admission = await self.admit(session, request_id, **overrides)  # type: ignore[arg-type]
        assert isinstance(admission, Admission)
        assert admission.is_grant, admission
        return admission

    async def admit_fault(self, session: SessionOpened, request_id: str, **overrides: object) -> FaultReply:
        """The fault that another attempt is told, kept or raised."""
        try:
            admission = await self.admit(session, request_id, **overrides)  # type: ignore[arg-type]
        except Fault as fault:
            return FaultReply.from_fault(fault)
        assert isinstance(admission, Admission)
        assert admission.fault is not None
        return admission.fault

    async def settle(
        self,
        session: SessionOpened,
        request_id: str,
        attempt: str,
        outcome: AttemptOutcome,
        text: str = "yes",
        fault: Fault | None = None,
        **fields: object,
    ) -> None:
        is_result = outcome is AttemptOutcome.RESULT
        told = {
            "session_id": session.session_id,
            "request_id": request_id,
            "attempt_id": attempt,
            "outcome": outcome,
            "reply": result(text).to_wire().decode() if is_result else None,
            "fault": None if is_result else FaultReply.from_fault(fault or ProviderFailed("it broke", charged=True)),
            "token_usage": USED if is_result else None,
        }
        request = Settle.model_validate({**told, **fields})
        await self.transact(lambda moment: calls.run_batch(moment, [request]))

    async def sweep(self) -> int:
        return await self.transact(calls.sweep)

    async def reserve(self, session: SessionOpened, ids: list[str], *, seconds: float = 60) -> int:
        def steps(moment: Moment) -> SqlProgram[int]:
            owner = yield from sessions.authenticate(moment.now, SessionToken.parse(session.token))
            return (yield from calls.reserve(moment, owner, ids, int(moment.now + seconds * 1000)))

        return await self.transact(steps)

    async def release(self, session: SessionOpened, ids: list[str]) -> int:
        def steps(moment: Moment) -> SqlProgram[int]:
            owner = yield from sessions.authenticate(moment.now, SessionToken.parse(session.token))
            return (yield from calls.release(moment, owner, ids))

        return await self.transact(steps)

    async def audit_findings(self) -> Sequence[audit.AuditFinding]:
        """What the audit finds wrong with the books."""
        return (await self.transact(lambda _: audit.verify_counters())).findings


def counters(info: Info) -> dict[str, int]:
    return {
        "used": info.call_count,
        "reserved": info.reserved,
        "running": info.running,
        "committed": info.committed,
        "refunded": info.refunded,
        "in_doubt": info.in_doubt,
    }

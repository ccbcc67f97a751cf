"""A ledger of either kind with a clock of its own, spoken to in one line a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.invoke import FaultReply, TokenUsage
from quintain.contracts.ledger import (
    Admission,
    Admit,
    AttemptOutcome,
    Heartbeat,
    LeaseRenewed,
    Register,
    Settle,
    TargetCard,
)
from quintain.contracts.money import CostTerms
from quintain.contracts.session import Info, SessionOpened
from quintain.errors import BudgetUnavailable, Fault, ProviderFailed
from quintain_metadata.ledger import audit, calls, leases, sessions
from quintain_metadata.ledger.decisions import AdmitOperation, Deferred
from quintain_metadata.store.base import Moment, SqlProgram
from support.ledger_driver import LedgerClient, result
from support.ledger_operations import alone

#: What each answer took.
USED = TokenUsage(input=6, output=2, cached=1, cache_write=3)


@dataclass
class ClockedLedgerDriver(LedgerClient):
    """A ledger with a clock of its own, spoken to in one line a step, by the names of calls and attempts."""

    attempts: int = 0

    async def register(
        self, incarnation: str = "w1", *, limit: int = 64, sole_id: str | None = None, cost: CostTerms | None = None
    ) -> None:
        card = TargetCard(name="a", provider="mock", max_concurrency=limit, cost=cost)
        worker_id, sole = sole_id or incarnation, None if sole_id is None else True
        request = Register(
            worker_id=worker_id, incarnation=incarnation, targets=[card], sole=sole, protocol=PROTOCOL_VERSION
        )
        await self.ledger.transact(lambda moment: leases.register_worker(self.with_clock(moment).now, request))

    async def renew(self, incarnation: str = "w1", *, pauses: dict[str, int] | None = None) -> LeaseRenewed:
        heartbeat = Heartbeat(worker_id=incarnation, incarnation=incarnation, pauses=pauses)
        return await self.ledger.transact(lambda moment: leases.renew_lease(self.with_clock(moment).now, heartbeat))

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
                admitted: Admission | Deferred = await self.ledger.transact(
                    lambda moment: operation(self.with_clock(moment))
                )
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
    ) -> None:
        is_result = outcome is AttemptOutcome.RESULT
        request = Settle(
            session_id=session.session_id,
            request_id=request_id,
            attempt_id=attempt,
            outcome=outcome,
            reply=result(text).to_wire().decode() if is_result else None,
            fault=None if is_result else FaultReply.from_fault(fault or ProviderFailed("it broke", charged=True)),
            token_usage=USED if is_result else None,
        )
        await self.ledger.transact(lambda moment: calls.run_batch(self.with_clock(moment), [request]))

    async def sweep(self) -> int:
        return await self.ledger.transact(lambda moment: calls.sweep(self.with_clock(moment)))

    async def reserve(self, session: SessionOpened, ids: list[str], *, seconds: float = 60) -> int:
        def steps(moment: Moment) -> SqlProgram[int]:
            now = self.with_clock(moment).now
            owner = yield from sessions.authenticate(now, SessionToken.parse(session.token))
            return (yield from calls.reserve(self.with_clock(moment), owner, ids, int(now + seconds * 1000)))

        return await self.ledger.transact(steps)

    async def release(self, session: SessionOpened, ids: list[str]) -> int:
        def steps(moment: Moment) -> SqlProgram[int]:
            owner = yield from sessions.authenticate(self.with_clock(moment).now, SessionToken.parse(session.token))
            return (yield from calls.release(self.with_clock(moment), owner, ids))

        return await self.ledger.transact(steps)

    async def audit_findings(self) -> Sequence[audit.AuditFinding]:
        """What the audit finds wrong with the books."""
        return (await self.ledger.transact(lambda _: audit.verify_counters())).findings


def counters(info: Info) -> dict[str, int]:
    return {
        "used": info.call_count,
        "reserved": info.reserved,
        "running": info.running,
        "committed": info.committed,
        "refunded": info.refunded,
        "in_doubt": info.in_doubt,
    }

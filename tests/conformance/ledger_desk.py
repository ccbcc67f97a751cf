"""A ledger of either kind with a clock of its own, spoken to in one line a step."""

from __future__ import annotations

from collections.abc import Sequence

from quintain.contracts.invoke import FaultReply, OutputMessage, Result, TokenUsage
from quintain.contracts.ledger import (
    Admission,
    Admit,
    Heartbeat,
    LeaseRenewed,
    Outcome,
    Register,
    Settle,
    TargetCard,
)
from quintain.contracts.metadata import Info, OpenSession, SessionOpened
from quintain.contracts.token import SessionToken
from quintain.errors import Fault, ProviderFailed
from quintain_metadata import audit, calls, cancels, reservations, sessions, upkeep
from quintain_metadata.cancels import TakenBack
from quintain_metadata.ledger import Ledger
from quintain_metadata.records import Held, Moment
from quintain_metadata.steps import Steps


class Desk:
    """A ledger with a clock of its own, spoken to in one line a step."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.ahead = 0
        self._attempts = 0

    def at(self, moment: Moment) -> Moment:
        return Moment(moment.now + self.ahead, moment.mourn_from)

    async def open(self, *, parent: SessionOpened | None = None, **ask: object) -> SessionOpened:
        question = OpenSession.model_validate({"default_target": "a", **ask})

        def steps(moment: Moment) -> Steps[SessionOpened]:
            owner = None
            if parent is not None:
                owner = yield from sessions.prove(self.at(moment).now, SessionToken.parse(parent.token))
            return (yield from sessions.open_session(self.at(moment).now, question, SessionToken.mint(), owner))

        return await self.ledger.do(steps)

    async def register(self, incarnation: str = "w1", *, limit: int = 64, sole_id: str | None = None) -> None:
        card = TargetCard(name="a", provider="mock", max_concurrency=limit)
        worker_id, sole = sole_id or incarnation, None if sole_id is None else True
        ask = Register(worker_id=worker_id, incarnation=incarnation, targets=[card], sole=sole)
        await self.ledger.do(lambda moment: upkeep.register(self.at(moment).now, ask))

    async def renew(self, incarnation: str = "w1", *, pauses: dict[str, int] | None = None) -> LeaseRenewed:
        ask = Heartbeat(worker_id=incarnation, incarnation=incarnation, pauses=pauses)
        return await self.ledger.do(lambda moment: upkeep.renew(self.at(moment).now, ask))

    async def admit(
        self, session: SessionOpened, request_id: str, *, by: str = "w1", attempt: str = "", **more: object
    ) -> Admission | Held:
        self._attempts += 1
        ask = Admit.model_validate(
            {
                "token": session.token,
                "request_id": request_id,
                "attempt_id": attempt or f"attempt-{self._attempts}",
                "target": "a",
                "body_sha256": "body",
                **more,
            }
        )
        return await self.ledger.do(lambda moment: calls.admit(self.at(moment), ask, by))

    async def granted(self, session: SessionOpened, request_id: str, **more: object) -> Admission:
        admission = await self.admit(session, request_id, **more)  # type: ignore[arg-type]
        assert isinstance(admission, Admission)
        assert (admission.fault, admission.replay) == (None, None)
        return admission

    async def told(self, session: SessionOpened, request_id: str, **more: object) -> FaultReply:
        """The fault that another attempt is told, kept or raised."""
        try:
            admission = await self.admit(session, request_id, **more)  # type: ignore[arg-type]
        except Fault as fault:
            return FaultReply.of(fault)
        assert isinstance(admission, Admission)
        assert admission.fault is not None
        return admission.fault

    async def settle(
        self,
        session: SessionOpened,
        request_id: str,
        attempt: str,
        outcome: Outcome,
        text: str = "yes",
        fault: Fault | None = None,
    ) -> None:
        is_result = outcome is Outcome.RESULT
        ask = Settle(
            session_id=session.session_id,
            request_id=request_id,
            attempt_id=attempt,
            outcome=outcome,
            reply=result(text) if is_result else None,
            fault=None if is_result else FaultReply.of(fault or ProviderFailed("it broke", charged=True)),
            token_usage=TokenUsage(input=3, output=2) if is_result else None,
        )
        await self.ledger.do(lambda moment: calls.settle(self.at(moment), ask))

    async def sweep(self) -> int:
        return await self.ledger.do(lambda moment: upkeep.sweep(self.at(moment)))

    async def info(self, session: SessionOpened) -> Info:
        return await self.ledger.do(lambda moment: sessions.show(self.at(moment).now, session.session_id))

    async def reserve(self, session: SessionOpened, ids: list[str], *, seconds: float = 60) -> int:
        def steps(moment: Moment) -> Steps[int]:
            now = self.at(moment).now
            owner = yield from sessions.prove(now, SessionToken.parse(session.token))
            return (yield from reservations.reserve(now, owner, ids, int(now + seconds * 1000)))

        return await self.ledger.do(steps)

    async def release(self, session: SessionOpened, ids: list[str]) -> int:
        def steps(moment: Moment) -> Steps[int]:
            owner = yield from sessions.prove(self.at(moment).now, SessionToken.parse(session.token))
            return (yield from reservations.release(self.at(moment), owner, ids))

        return await self.ledger.do(steps)

    async def cancel(self, session: SessionOpened, *request_ids: str) -> TakenBack:
        def steps(moment: Moment) -> Steps[TakenBack]:
            owner = yield from sessions.prove(self.at(moment).now, SessionToken.parse(session.token))
            return (yield from cancels.cancel(self.at(moment), owner, request_ids))

        return await self.ledger.do(steps)

    async def pause(self, target: str, milliseconds: int) -> int | None:
        return await self.ledger.do(lambda moment: upkeep.pause(self.at(moment).now, target, milliseconds))

    async def findings(self) -> Sequence[audit.Finding]:
        """What the audit finds wrong with the books."""
        return (await self.ledger.do(lambda _: audit.verify_counters())).findings


def result(text: str) -> Result:
    return Result(output=[OutputMessage(content=text)], raw_text=text, target="a", call_count=1, max_calls=1)


def counters(info: Info) -> dict[str, int]:
    return {
        "used": info.call_count,
        "reserved": info.reserved,
        "running": info.running,
        "committed": info.committed,
        "refunded": info.refunded,
        "in_doubt": info.in_doubt,
    }

"""The admission queue of a metadata service over a ledger in memory: what was asked of it, and what it told."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from quintain.contracts.fleet import QuotaState
from quintain.contracts.ledger import Admission, Admit, AdmitBatch, AttemptOutcome
from quintain.contracts.quota import QuotaCard, QuotaTerms, TryOutcome, TryReport
from quintain.contracts.session import SessionOpened
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.line_ledger import LineLedger
from quintain_metadata.store.base import execute
from support.ledger_driver import Driver, admit_request, memory_ledger_driver, settle_request

ANSWERED = TryReport(outcome=TryOutcome.ANSWERED)


@dataclass
class QueueDriver:
    """An admission queue over a ledger in memory, with a clock of its own for its quotas, and a session that asks."""

    driver: Driver
    session: SessionOpened
    now: float = 0.0
    answers: dict[str, Admission] = field(default_factory=dict)
    running: dict[str, tuple[SessionOpened, Admit]] = field(default_factory=dict)
    asked: dict[str, tuple[SessionOpened, Admit]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    queue: AdmissionQueue = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        ledger = self.driver.ledger
        self.queue = AdmissionQueue(ledger, quotas=LineLedger(ledger, lambda: self.now + time.monotonic()))

    async def register(
        self, *targets: str, limit: int = 64, incarnation: str = "w1", without: bool = False, **terms: object
    ) -> None:
        fields = {"start": 2, "adaptive": False, **terms}
        quota = None if without else QuotaCard(id="key", name="team", terms=QuotaTerms.model_validate(fields))
        await self.driver.register(incarnation, names=targets, limit=limit, quota=quota)
        await self.queue.quotas.refresh()

    async def admit(
        self, *names: str, session: SessionOpened | None = None, incarnation: str = "w1", **fields: object
    ) -> list[str]:
        admits = [self.request(name, session=session, **fields) for name in names]
        return await self.send(*admits, session=session, incarnation=incarnation)

    def request(self, name: str, *, session: SessionOpened | None = None, **fields: object) -> Admit:
        """An admit of a new attempt at this call."""
        return admit_request(session or self.session, name, **fields)

    async def send(self, *admits: Admit, session: SessionOpened | None = None, incarnation: str = "w1") -> list[str]:
        for admit in admits:
            self.asked[admit.attempt_id] = session or self.session, admit
        await self.queue.admit(AdmitBatch(incarnation=incarnation, items=list(admits)), self.on_reply)
        await self.queue.ask_waiting()
        return [self.answer(admit.attempt_id) for admit in admits]

    async def on_reply(self, items: list[Admission], held: list[str]) -> None:
        self.held |= {*held}
        for item in items:
            self.answers[item.attempt_id] = item
            if item.is_grant:
                self.running[item.attempt_id] = self.asked[item.attempt_id]
                self.order.append(self.asked[item.attempt_id][1].request_id)

    def answer(self, attempt_id: str) -> str:
        """What it was told: that it waits, a grant, a replay, or a fault."""
        item = self.answers.get(attempt_id)
        if item is None:
            return "waits"
        return item.fault.code if item.fault else "granted" if item.is_grant else "replayed"

    async def settle(
        self,
        attempt_id: str,
        outcome: AttemptOutcome = AttemptOutcome.RESULT,
        report: TryReport | None = ANSWERED,
        **fields: object,
    ) -> None:
        session, admit = self.running.pop(attempt_id, None) or self.asked[attempt_id]
        item = settle_request(session, admit, outcome, report=report, **fields)
        self.queue.on_ended([(item, await self.driver.run(item))])
        await self.queue.ask_waiting()

    async def pause(self, target: str, milliseconds: int) -> None:
        """Do as the operation does."""
        await self.driver.pause(target, milliseconds)
        await self.queue.refresh()

    def due_seconds(self) -> float:
        """In how many seconds the queue looks again by itself."""
        return self.queue.line.due_at() - self.queue.quotas.clock()

    async def sweep(self) -> None:
        await self.queue.retry_waiting()
        await self.queue.ask_waiting()

    def attempts(self, name: str) -> list[str]:
        """The attempts that were asked for at this call, in order."""
        return [attempt_id for attempt_id, (_, admit) in self.asked.items() if admit.request_id == name]

    def attempt_of(self, name: str) -> str:
        return self.attempts(name)[-1]

    def told(self, *names: str) -> list[str]:
        """What the attempts at these calls were told."""
        return [self.answer(attempt_id) for name in names for attempt_id in self.attempts(name)]

    def taken(self) -> list[str]:
        """The calls that were granted since this was asked last."""
        taken, self.order = self.order, []
        return taken

    def state(self) -> QuotaState:
        return self.queue.quotas.states()[0]

    async def count_running(self) -> int:
        rows = await self.driver.ledger.transact(lambda _: execute("SELECT count(*) FROM call WHERE state = 'running'"))
        return int(rows[0][0])


@contextlib.asynccontextmanager
async def memory_queue_driver() -> AsyncIterator[QueueDriver]:
    """An admission queue over books in memory, which are closed at the end."""
    async with memory_ledger_driver() as driver:
        yield QueueDriver(driver, await driver.open_session(max_calls=1000))

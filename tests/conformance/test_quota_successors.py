"""A quota goes on with the next metadata service on a ledger of either kind: its limit, its calls, what was learned."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.ledger import Admission, Admit, AdmitBatch, AttemptOutcome, Register, TargetCard
from quintain.contracts.quota import QuotaCard, QuotaTerms, RateReport, TryOutcome, TryReport
from quintain.contracts.session import SessionOpened
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.ledger import leases
from quintain_metadata.line_ledger import LineLedger
from quintain_metadata.store.base import Ledger, Moment, SqlProgram, execute
from support.ledger_driver import Driver, admit_request, settle_request

LIMIT, CALLS = 2, 6

ANSWERED = TryReport(outcome=TryOutcome.ANSWERED)


@dataclass
class Succession:
    """One service after another over a ledger, the worker ``w1`` of target ``a``, and what it was told."""

    ledger: Ledger
    session: SessionOpened
    now: float = 1000.0
    asked: dict[str, Admit] = field(default_factory=dict)
    answers: dict[str, Admission] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    queue: AdmissionQueue = field(init=False)

    async def register(self, **terms: object) -> None:
        quota = QuotaCard(id="key", name="team", terms=QuotaTerms.model_validate({"adaptive": False, **terms}))
        card = TargetCard(name="a", provider="mock", max_concurrency=64, quota=quota)
        request = Register(worker_id="w1", incarnation="w1", targets=[card], protocol=PROTOCOL_VERSION)
        await self.ledger.transact(lambda moment: leases.register_worker(moment.now, request))

    async def start(self, away_seconds: float = 0.0) -> None:
        """The next service starts, so long after the last one was killed."""
        self.now += away_seconds
        self.queue = AdmissionQueue(self.ledger, quotas=LineLedger(self.ledger, lambda: self.now))
        await self.queue.quotas.refresh()

    async def admit(self, count: int) -> None:
        for _ in range(count):
            request = admit_request(self.session, f"r{len(self.asked)}", attempt_id=f"attempt-{len(self.asked)}")
            self.asked[request.attempt_id] = request
            await self.send(request)

    async def send(self, *admits: Admit) -> None:
        await self.queue.admit(AdmitBatch(incarnation="w1", items=list(admits)), self.on_answer)
        await self.queue.ask_waiting()

    async def on_answer(self, items: list[Admission], _: list[str]) -> None:
        self.answers |= {item.attempt_id: item for item in items}
        self.running |= {item.attempt_id for item in items if item.is_grant}

    async def settle(
        self, attempt_id: str, outcome: AttemptOutcome = AttemptOutcome.RESULT, report: TryReport = ANSWERED
    ) -> None:
        self.running.discard(attempt_id)
        item = settle_request(self.session, self.asked[attempt_id], outcome).model_copy(update={"report": report})
        (outcome_of,) = await self.queue.operations.run([item])
        self.queue.on_ended([(item, outcome_of)])
        await self.queue.ask_waiting()

    async def repeat(self) -> None:
        """The worker repeats the admits that have no answer."""
        await self.send(*(admit for attempt_id, admit in self.asked.items() if attempt_id not in self.answers))


@pytest.fixture
async def succession(driver: Driver) -> Succession:
    found = Succession(driver.ledger, await driver.open_session(max_calls=100))
    await found.register(start=LIMIT)
    await found.start()
    return found


#: Two calls run, others wait, and some end.
STEPS = ("admit", "admit", "admit", "admit", "settle", "sweep", "settle", "admit", "sweep", "settle", "admit")


@pytest.mark.parametrize("killed_after", range(len(STEPS)))
async def test_whenever_a_service_dies_the_limit_holds_and_every_call_runs_once(
    succession: Succession, killed_after: int
) -> None:
    for number, step in enumerate(STEPS):
        match step:
            case "admit":
                await succession.admit(1)
            case "settle" if succession.running:
                await succession.settle(min(succession.running))
            case "sweep":
                await succession.queue.retry_waiting()
        if number == killed_after:
            await succession.start(away_seconds=4)
            await succession.repeat()
        assert len(succession.running) <= LIMIT
    for _ in range(CALLS):
        await succession.repeat()
        assert len(succession.running) <= LIMIT
        for attempt_id in sorted(succession.running):
            await succession.settle(attempt_id)
    (state,) = succession.queue.quotas.states()
    assert (state.in_flight, state.waiting) == (0, 0)
    assert sum(answer.is_grant for answer in succession.answers.values()) == len(succession.asked) == CALLS


async def test_the_next_service_goes_on_with_what_was_learned(succession: Succession) -> None:
    await succession.register(start=8, min=1, max=8, adaptive=True)
    await succession.start()
    await succession.admit(8)
    assert len(succession.running) == 8
    slow_down = TryReport(outcome=TryOutcome.THROTTLED, rates=RateReport(retry_after_seconds=3600))
    await succession.settle("attempt-0", AttemptOutcome.RETRY, slow_down)
    (before,) = succession.queue.quotas.states()
    assert (before.limit, before.in_flight, before.throttled) == (5, 7, 1)
    await succession.queue.retry_waiting()
    await succession.start()
    (after,) = succession.queue.quotas.states()
    assert (after.limit, after.in_flight, after.throttled) == (5, 7, 1)
    assert after.paused_ms is not None
    assert before.paused_ms is not None
    assert after.paused_ms <= before.paused_ms
    assert (after.last_cut, before.last_cut) != (None, None)


async def test_a_rate_is_not_overspent_by_the_next_service(succession: Succession) -> None:
    await succession.register(start=64, max=64, requests_per_minute=60)
    await succession.start()
    await succession.admit(8)
    assert len(succession.running) == 1, "a second's worth"
    await succession.settle("attempt-0")
    await succession.queue.retry_waiting()
    await succession.start(away_seconds=6)
    await succession.repeat()
    assert not succession.running, "how much of the six seconds was used is not known"
    succession.now += 1.1
    await succession.queue.ask_waiting()
    assert len(succession.running) == 1


async def test_what_another_release_has_learned_keeps_no_service_from_its_quota(succession: Succession) -> None:
    await succession.admit(1)

    def write(moment: Moment) -> SqlProgram[object]:
        sql = "INSERT INTO quota_state (quota_id, saved_at, state) VALUES ('key', ?, ?)"
        return (yield from execute(sql, moment.now, '{"limits": {"limits": ["?"]}}'))

    await succession.ledger.transact(write)
    await succession.start()
    assert [(each.limit, each.in_flight) for each in succession.queue.quotas.states()] == [(LIMIT, 1)]

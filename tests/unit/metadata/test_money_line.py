"""Calls that wait for money: in which order they have it, what each settle decides again, and what they do not hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.ledger import Admission, Admit, AdmitBatch, AttemptOutcome, Register, TargetCard
from quintain.contracts.money import PICODOLLARS_PER_DOLLAR
from quintain.contracts.quota import QuotaCard, QuotaTerms
from quintain.contracts.session import SessionOpened
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.ledger import leases
from quintain_metadata.ledger.calls import CallOperation, Outcome
from quintain_metadata.ledger_queues import attempt_ended
from support.ledger_driver import LedgerDriver, admit_request, memory_ledger_driver, settle_request
from support.ledger_operations import alone

CENT = PICODOLLARS_PER_DOLLAR // 100


@dataclass
class MoneyDriver:
    """An admission queue, and the calls that it granted by their names, in order."""

    driver: LedgerDriver
    queue: AdmissionQueue
    admits: dict[str, tuple[SessionOpened, Admit]] = field(default_factory=dict)
    granted: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    #: How many admits the ledger was asked to decide.
    decided: int = 0

    async def ask(self, session: SessionOpened, *names: str, cents: int = 1, by: str = "w1", target: str = "a") -> None:
        """Ask for calls of these names."""
        fields = {"max_cost": cents * CENT, "target": target}
        admits = [admit_request(session, name, attempt_id=f"{name} {by}", **fields) for name in names]
        self.admits |= {admit.attempt_id: (session, admit) for admit in admits}
        await self.queue.admit(AdmitBatch(incarnation=by, items=admits), self.on_reply)

    async def on_reply(self, items: list[Admission], _: list[str]) -> None:
        for item in items:
            name = item.attempt_id.removesuffix(" w1")
            if item.fault is None:
                self.granted.append(name)
            else:
                self.refused[name] = item.fault.code

    async def end(self, name: str, cents: float = 0, outcome: AttemptOutcome = AttemptOutcome.RESULT) -> None:
        """The call ends, and costs so much."""
        session, admit = self.admits[f"{name} w1"]
        settle = settle_request(session, admit, outcome).with_fields(cost=round(cents * CENT))
        call, _ = await self.driver.ledger.transact(alone(settle))
        await self.queue.on_ended([attempt_ended(settle, call)])

    def taken(self) -> list[str]:
        """What was granted since this was asked last."""
        granted, self.granted = self.granted, []
        return granted

    def count_decisions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = self.queue.operations.run

        async def count(operations: Sequence[CallOperation]) -> list[Outcome]:
            self.decided += len(operations)
            return await run(operations)

        monkeypatch.setattr(self.queue.operations, "run", count)


@pytest.fixture
async def money() -> AsyncIterator[MoneyDriver]:
    async with memory_ledger_driver() as driver:
        await driver.register("a", incarnation="w1", limit=1000)
        yield MoneyDriver(driver, AdmissionQueue(driver.ledger))


def names(count: int, first: int = 0) -> list[str]:
    return [f"r{number}" for number in range(first, first + count)]


async def test_a_settle_decides_what_fits_by_now_and_no_more(
    money: MoneyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await money.driver.open_session(max_cost_usd=0.1)
    await money.ask(session, *names(266))
    assert money.taken() == names(10)
    money.count_decisions(monkeypatch)
    for number in range(20):
        await money.end(f"r{number}")
        assert money.taken() == names(1, first=10 + number)
    assert money.decided == 20


async def test_a_call_that_may_cost_much_is_not_overtaken_by_calls_that_may_cost_little(money: MoneyDriver) -> None:
    session = await money.driver.open_session(max_cost_usd=0.1)
    await money.ask(session, *names(10))
    money.taken()
    await money.ask(session, "dear", cents=5)
    await money.ask(session, "cheap")
    for number in range(4):
        await money.end(f"r{number}")
        await money.ask(session, f"cheap {number}")
        assert money.taken() == []
    await money.end("r4")
    assert money.taken() == ["dear"]
    await money.end("r5")
    await money.end("r6")
    assert money.taken() == ["cheap", "cheap 0"]


async def test_a_call_that_waits_for_the_money_of_its_own_session_keeps_none_of_its_parents(
    money: MoneyDriver,
) -> None:
    parent = await money.driver.open_session(max_cost_usd=0.05)
    narrow = await money.driver.open_session(parent=parent, max_cost_usd=0.02)
    other = await money.driver.open_session(parent=parent)
    await money.ask(narrow, "n0", "n1", "n2")
    await money.ask(other, "o0", "o1", "o2", "o3")
    assert money.taken() == ["n0", "n1", "o0", "o1", "o2"]
    await money.end("o0")
    assert money.taken() == ["o3"]
    await money.end("n0")
    assert money.taken() == ["n2"]


async def test_what_fits_no_more_is_refused_as_soon_as_that_is_known(money: MoneyDriver) -> None:
    session = await money.driver.open_session(max_cost_usd=0.03)
    await money.ask(session, "r0", cents=2)
    await money.ask(session, "dear", cents=3)
    await money.ask(session, "cheap", cents=2)
    await money.end("r0", cents=1)
    assert (money.taken(), money.refused) == (["r0", "cheap"], {"dear": "budget_exhausted"})


async def test_a_sweep_finds_money_that_another_service_or_a_higher_limit_freed(money: MoneyDriver) -> None:
    session = await money.driver.open_session(max_cost_usd=0.01)
    await money.ask(session, "r0", "r1")
    assert money.taken() == ["r0"]
    await money.driver.amend_session(session, max_cost_usd=0.02)
    await money.queue.retry_waiting()
    assert money.taken() == ["r1"]


async def test_a_take_over_waits_for_what_running_calls_reserve_and_comes_first(money: MoneyDriver) -> None:
    await money.driver.register("a", incarnation="w2", limit=1000)
    session = await money.driver.open_session(max_cost_usd=0.03)
    await money.ask(session, "lost", by="w2")
    await money.ask(session, "r0", "r1", "new")
    await money.ask(session, "lost")
    assert money.taken() == ["lost w2", "r0", "r1"]
    await money.driver.expire_lease("w2")
    await money.queue.retry_waiting()
    assert (money.taken(), money.refused) == ([], {})
    await money.end("r0")
    assert money.taken() == ["lost"]
    await money.end("lost")
    assert money.taken() == ["new"]


async def test_a_take_over_does_not_wait_for_what_lost_calls_reserve(money: MoneyDriver) -> None:
    await money.driver.register("a", incarnation="w2", limit=1000)
    session = await money.driver.open_session(max_cost_usd=0.03)
    await money.ask(session, "l0", "l1", by="w2")
    await money.ask(session, "r0", "l0", "l1")
    await money.driver.expire_lease("w2")
    await money.queue.retry_waiting()
    # Both wait for the call that runs; what it cost leaves no room, so that both end in doubt, and nobody waits.
    assert money.refused == {}
    await money.end("r0", cents=1)
    assert set(money.refused) == {"l0", "l1"}
    info = await money.driver.info(session)
    assert (info.in_doubt, info.running, info.cost and info.cost.held_usd) == (2, 0, 0.02)


async def test_a_call_that_waits_for_money_holds_no_place_of_its_quota(money: MoneyDriver) -> None:
    quota = QuotaCard(id="key", name="team", terms=QuotaTerms(start=2, adaptive=False))
    card = TargetCard(name="a", provider="mock", max_concurrency=64, quota=quota)
    request = Register(worker_id="w1", incarnation="w1", targets=[card], protocol=PROTOCOL_VERSION)
    await money.driver.ledger.transact(lambda moment: leases.register_worker(moment.now, request))
    await money.queue.quotas.start()
    limited, free = await money.driver.open_session(max_cost_usd=0.01), await money.driver.open_session()
    await money.ask(limited, "r0", "r1")
    await money.ask(free, "f0", "f1")
    assert money.taken() == ["r0", "f0"]
    await money.end("r0")
    # The place went to who waited for it; who waited for money waits for a place now.
    await money.queue.grant_quotas()
    await money.end("f0")
    await money.queue.grant_quotas()
    assert sorted(money.taken()) == ["f1", "r1"]


async def test_a_call_with_a_place_of_its_quota_does_not_overtake_who_waits_for_money(money: MoneyDriver) -> None:
    quota = QuotaCard(id="key", name="team", terms=QuotaTerms(start=2, adaptive=False))
    cards = [
        TargetCard(name="a", provider="mock", max_concurrency=64),
        TargetCard(name="b", provider="mock", max_concurrency=64, quota=quota),
    ]
    request = Register(worker_id="w1", incarnation="w1", targets=cards, protocol=PROTOCOL_VERSION)
    await money.driver.ledger.transact(lambda moment: leases.register_worker(moment.now, request))
    await money.queue.quotas.start()
    session = await money.driver.open_session(max_cost_usd=0.03)
    other = await money.driver.open_session()
    await money.ask(other, "q0", "q1", target="b")
    await money.ask(session, "r0", "dear", cents=2)
    await money.ask(session, "cheap", target="b")
    assert money.taken() == ["q0", "q1", "r0"]
    await money.end("q0")
    await money.queue.grant_quotas()
    assert money.taken() == []
    await money.end("r0")
    assert money.taken() == ["dear", "cheap"]

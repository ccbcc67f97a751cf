"""Whatever happens to the calls of a family of sessions, no level of it is billed more than it shows, nor shows more
than its limit: random rounds on every store, with a provider that bills each try when it is sent.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from conformance.test_ledger_money import CENT, amounts, settle
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.money import PICODOLLARS_PER_DOLLAR
from quintain.contracts.session import SessionOpened
from quintain.errors import Fault
from quintain_metadata.ledger.decisions import DeferReason
from support.ledger_driver import LAPSE_MS, Driver

#: How a try can end: its outcome, whether the worker knows the cost, and whether the provider may have billed it.
ENDS = [
    (AttemptOutcome.RESULT, True, True),
    (AttemptOutcome.RESULT, False, True),
    (AttemptOutcome.CHARGED, True, True),
    (AttemptOutcome.CHARGED, False, True),
    (AttemptOutcome.IN_DOUBT, False, True),
    (AttemptOutcome.REFUND, False, False),
    (AttemptOutcome.NEVER_SENT, False, False),
    (AttemptOutcome.RETRY, False, False),
    (AttemptOutcome.RETRY, False, True),
]


@dataclass
class Level:
    """A session of the family, and what is billed and limited here and above."""

    session: SessionOpened
    limit: int | None
    above: Level | None = None
    billed: int = 0

    def bill(self, cost: int) -> None:
        self.billed += cost
        if self.above is not None:
            self.above.bill(cost)


@dataclass
class Try:
    """One grant, and its report once it has ended."""

    level: Level
    call: str
    cost: int
    report: tuple[AttemptOutcome, int | None, bool] | None = None


@dataclass
class Rounds:
    """Random rounds with one family: a root, two children of which one is narrower, and a grandchild."""

    driver: Driver
    rng: random.Random
    levels: list[Level] = field(default_factory=list)
    tries: dict[str, Try] = field(default_factory=dict)
    workers: int = 1
    seen: set[object] = field(default_factory=set)

    async def open(self, limit: int) -> None:
        limits = [limit, limit // 2, None, limit // 5]
        for parent, own in zip((None, 0, 0, 1), limits, strict=True):
            above = None if parent is None else self.levels[parent]
            usd = None if own is None else own / PICODOLLARS_PER_DOLLAR
            fields = {"max_calls": 10_000, "max_cost_usd": usd}
            session = await self.driver.open_session(parent=above and above.session, **fields)
            self.levels.append(Level(session, own, above))

    async def run(self) -> None:
        await self.driver.renew(f"w{self.workers}")
        actions = (self.admit, self.end, self.repeat, self.cancel, self.lose_worker, self.sweep)
        await self.rng.choices(actions, (45, 30, 6, 4, 5, 5))[0]()

    async def admit(self) -> None:
        level, call, bound = self.rng.choice(self.levels), f"r{self.rng.randrange(12)}", self.rng.randrange(1, 2 * CENT)
        try:
            decision = await self.driver.admit(level.session, call, by=f"w{self.workers}", max_cost=bound)
        except Fault as refusal:
            self.seen.add(refusal.code)
            return
        if not isinstance(decision, Admission):
            self.seen |= {decision.reason, (decision.reason, decision.is_takeover)}
        elif decision.is_grant:
            self.seen.add("granted" if decision.attempt == 1 else "granted again")
            # The provider bills it as soon as it is sent; whether the worker ever hears of it is another question.
            cost = self.rng.randrange(bound + 1)
            level.bill(cost)
            self.tries[decision.attempt_id] = Try(level, call, cost)

    async def end(self) -> None:
        sent = [attempt for attempt, each in self.tries.items() if each.report is None]
        if sent:
            attempt = self.rng.choice(sent)
            one, (outcome, is_known, is_billed) = self.tries[attempt], self.rng.choice(ENDS)
            one.report = (outcome, one.cost if is_known else None, outcome is AttemptOutcome.RETRY and is_billed)
            if not is_billed:
                one.level.bill(-one.cost)
            await self.report(attempt)

    async def repeat(self) -> None:
        ended = [attempt for attempt, each in self.tries.items() if each.report is not None]
        if ended:
            await self.report(self.rng.choice(ended))

    async def report(self, attempt: str) -> None:
        one = self.tries[attempt]
        assert one.report is not None
        outcome, cost, unproven = one.report
        await settle(self.driver, one.level.session, one.call, attempt, outcome, cost, unproven=unproven)

    async def cancel(self) -> None:
        await self.driver.cancel(self.rng.choice(self.levels).session, f"r{self.rng.randrange(12)}")

    async def lose_worker(self) -> None:
        self.workers += 1
        await self.driver.lose_worker(f"w{self.workers}")

    async def sweep(self) -> None:
        self.driver.clock_ahead_ms += self.rng.choice((100, LAPSE_MS))
        await self.driver.sweep()

    async def check(self) -> None:
        for level in self.levels:
            shown = await amounts(self.driver, level.session)
            assert "excess" not in shown
            assert level.billed <= sum(shown.values())
            assert level.limit is None or sum(shown.values()) <= level.limit
        assert await self.driver.audit_findings() == ()


async def test_no_level_is_billed_more_than_it_shows_nor_shows_more_than_its_limit(driver: Driver) -> None:
    # To look at the books takes longer than a round.
    seen, rounds_between = set[object](), 10 if driver.ledger.kind == "postgresql" else 1
    for limit in (4 * CENT, 10 * CENT, 30 * CENT):
        rounds = Rounds(driver, random.Random(limit), seen=seen)
        await rounds.open(limit)
        for number in range(120):
            await rounds.run()
            if number % rounds_between == 0:
                await rounds.check()
        root = rounds.levels[0].session
        await driver.close(root)
        driver.clock_ahead_ms += 1_000_000
        await driver.sweep()
        assert "reserved" not in await amounts(driver, root)
        await driver.register()
    # Each kind of decision was among them.
    assert seen >= {"granted", "granted again", DeferReason.CALL, DeferReason.MONEY, "budget_exhausted"}

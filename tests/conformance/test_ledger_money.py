"""Money in the ledger: what a try may cost is reserved before it is sent, and the bill is never above what is shown."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from conformance.clocked_ledger_driver import ClockedLedgerDriver
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit, AttemptOutcome, Settle
from quintain.contracts.money import PICODOLLARS_PER_DOLLAR, CostTerms, dollars_text, picodollars
from quintain.contracts.session import AmendSession, ResumeTarget, SessionOpened
from quintain.errors import BadRequest, Fault, ProviderError, ProviderFailed, WorkerLost
from quintain_metadata.ledger import calls, held, sessions, targets
from quintain_metadata.ledger.decisions import AdmitOperation, DeferReason, Deferred
from support.ledger_operations import alone

CENT = PICODOLLARS_PER_DOLLAR // 100

#: How a try can end: its outcome, whether the worker knows the cost, and whether the provider may have billed it.
ENDS = [
    (AttemptOutcome.RESULT, True, True),
    (AttemptOutcome.RESULT, False, True),
    (AttemptOutcome.CHARGED, False, True),
    (AttemptOutcome.IN_DOUBT, False, True),
    (AttemptOutcome.REFUND, False, False),
    (AttemptOutcome.NEVER_SENT, False, False),
    (AttemptOutcome.THROTTLED, False, False),
    (AttemptOutcome.THROTTLED, False, True),
]


def settle_with(
    session: SessionOpened,
    call: str,
    attempt: str,
    outcome: AttemptOutcome,
    cost: int | None,
    *,
    unproven: bool = False,
    is_estimate: bool | None = None,
) -> Settle:
    return Settle(
        session_id=session.session_id,
        request_id=call,
        attempt_id=attempt,
        outcome=outcome,
        cost=cost,
        tries=1,
        unproven=int(unproven) or None,
        is_estimate=is_estimate,
    )


async def told(driver: ClockedLedgerDriver, session: SessionOpened, call: str, cost: int | None = CENT) -> object:
    """The attempt id of a grant, the reason of a wait, or the code of a refusal."""
    try:
        decision = await driver.admit(session, call, max_cost=cost)
    except Fault as fault:
        return fault.code
    if isinstance(decision, Deferred):
        return decision.reason
    return decision.attempt_id if decision.is_grant else decision.fault and decision.fault.code


async def settle(driver: ClockedLedgerDriver, item: Settle) -> None:
    await driver.ledger.transact(lambda moment: alone(item)(driver.with_clock(moment)))


async def amounts(driver: ClockedLedgerDriver, session: SessionOpened) -> dict[str, int]:
    cost = (await driver.info(session)).cost
    assert cost is not None
    shown = {"spent": cost.spent_usd, "held": cost.held_usd, "reserved": cost.reserved_usd, "excess": cost.excess_usd}
    return {name: picodollars(value) for name, value in shown.items() if value}


async def test_a_try_reserves_what_it_may_cost_until_its_bill_is_known(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_cost_usd=0.05)
    granted = await ledger_driver.admit_granted(session, "r1", max_cost=2 * CENT)
    assert granted.is_one_try
    assert await amounts(ledger_driver, session) == {"reserved": 2 * CENT}
    for _ in range(2):  # a settle may be delivered twice
        await settle(ledger_driver, settle_with(session, "r1", granted.attempt_id, AttemptOutcome.RESULT, CENT))
    assert await amounts(ledger_driver, session) == {"spent": CENT}
    assert await ledger_driver.audit_findings() == ()


async def test_a_call_waits_for_money_that_others_hold_and_is_refused_once_nobody_does(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session(max_cost_usd=0.03)
    first = await told(ledger_driver, session, "r1", 2 * CENT)
    assert await told(ledger_driver, session, "r2", 2 * CENT) is DeferReason.MONEY
    assert (await ledger_driver.info(session)).call_count == 1
    assert await told(ledger_driver, session, "r3", 4 * CENT) == "budget_exhausted"
    await settle(ledger_driver, settle_with(session, "r1", str(first), AttemptOutcome.RESULT, CENT))
    second = await told(ledger_driver, session, "r2", 2 * CENT)
    await settle(ledger_driver, settle_with(session, "r2", str(second), AttemptOutcome.IN_DOUBT, None))
    assert await amounts(ledger_driver, session) == {"spent": CENT, "held": 2 * CENT}
    assert await told(ledger_driver, session, "r4", 1) == "budget_exhausted"


async def test_a_report_beyond_what_was_reserved_is_recorded_outside_the_limit(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session(max_cost_usd=0.05)
    attempt = await told(ledger_driver, session, "r1")
    await settle(ledger_driver, settle_with(session, "r1", str(attempt), AttemptOutcome.RESULT, 3 * CENT))
    assert await amounts(ledger_driver, session) == {"spent": CENT, "excess": 2 * CENT}
    # What was billed is not there to be spent again.
    assert await told(ledger_driver, session, "r2", 3 * CENT) == "budget_exhausted"


async def test_a_session_is_told_what_is_left_to_it_and_to_those_above_it(ledger_driver: ClockedLedgerDriver) -> None:
    async def left(session: SessionOpened) -> tuple[int, int] | None:
        cost = (await ledger_driver.info(session)).cost
        if cost is None or cost.left_usd is None or cost.free_usd is None:
            return None
        return picodollars(cost.left_usd) // CENT, picodollars(cost.free_usd) // CENT

    parent = await ledger_driver.open_session(max_cost_usd=0.10)
    child = await ledger_driver.open_session(parent=parent, max_cost_usd=0.08)
    sibling = await ledger_driver.open_session(parent=parent)
    assert [await left(each) for each in (parent, child, sibling)] == [(10, 10), (8, 8), (10, 10)]
    attempt = await told(ledger_driver, sibling, "r1", 5 * CENT)
    assert [await left(each) for each in (parent, child, sibling)] == [(10, 5), (8, 5), (10, 5)]
    await settle(ledger_driver, settle_with(sibling, "r1", str(attempt), AttemptOutcome.RESULT, 3 * CENT))
    assert [await left(each) for each in (parent, child, sibling)] == [(7, 7), (7, 7), (7, 7)]
    assert await left(await ledger_driver.open_session()) is None


async def exceed_bound(driver: ClockedLedgerDriver, session: SessionOpened, call: str) -> None:
    """Have a call answered that cost two cents more than was reserved for it."""
    attempt = await told(driver, session, call)
    await settle(driver, settle_with(session, call, str(attempt), AttemptOutcome.RESULT, 3 * CENT))


async def test_a_target_whose_bound_was_wrong_is_not_called_under_a_limit_until_it_is_mended(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    driver = ledger_driver
    limited, free = await driver.open_session(max_cost_usd=1.0), await driver.open_session()
    running = await told(driver, limited, "r0")
    await exceed_bound(driver, free, "r1")
    assert (await driver.info(limited)).wrong_bounds == {"a": 0.02}
    fault = await driver.admit_fault(limited, "r2", max_cost=CENT)
    assert (fault.code, fault.charged) == ("target_unavailable", False)
    await settle(driver, settle_with(limited, "r0", str(running), AttemptOutcome.RESULT, CENT))
    assert await amounts(driver, limited) == {"spent": CENT}
    assert str(await told(driver, free, "r2")).startswith("attempt-")
    await driver.register()
    assert await told(driver, limited, "r3") == "target_unavailable"
    await driver.register(cost=CostTerms(per_call_usd=0.03))
    assert str(await told(driver, limited, "r3")).startswith("attempt-")
    await exceed_bound(driver, free, "r4")
    assert await told(driver, limited, "r5") == "target_unavailable"
    await driver.ledger.transact(lambda moment: targets.resume_target(moment.now, ResumeTarget(target="a")))
    assert str(await told(driver, limited, "r5")).startswith("attempt-")
    assert (await driver.info(limited)).wrong_bounds is None


async def test_a_take_over_of_a_target_whose_bound_was_wrong_ends_its_call_in_doubt(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    limited, free = await ledger_driver.open_session(max_cost_usd=1.0), await ledger_driver.open_session()
    await told(ledger_driver, limited, "r1")
    await exceed_bound(ledger_driver, free, "r2")
    ledger_driver.clock_ahead_ms += 20_000
    await ledger_driver.register("w2")
    assert (await ledger_driver.admit_fault(limited, "r1", by="w2", max_cost=CENT)).charged
    assert await amounts(ledger_driver, limited) == {"held": CENT}
    assert await ledger_driver.audit_findings() == ()


async def test_an_estimate_makes_the_limit_soft_and_is_no_bound(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_cost_usd=0.05)
    granted = await ledger_driver.admit_granted(session, "r1", max_cost=CENT, is_estimate=True)
    item = settle_with(session, "r1", granted.attempt_id, AttemptOutcome.RESULT, 3 * CENT, is_estimate=True)
    await settle(ledger_driver, item)
    info = await ledger_driver.info(session)
    assert info.cost is not None
    assert (info.cost.estimated, info.wrong_bounds) == (1, None)
    assert await amounts(ledger_driver, session) == {"spent": CENT, "excess": 2 * CENT}
    assert str(await told(ledger_driver, session, "r2")).startswith("attempt-")
    assert await told(ledger_driver, session, "r3", 3 * CENT) == "budget_exhausted"


async def test_a_lost_attempt_keeps_its_money_until_it_reports(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_cost_usd=0.05)
    lost = await told(ledger_driver, session, "r1")
    ledger_driver.clock_ahead_ms += 20_000
    await ledger_driver.register("w2")
    taken_over = await ledger_driver.admit_granted(session, "r1", by="w2", max_cost=CENT)
    assert await amounts(ledger_driver, session) == {"held": CENT, "reserved": CENT}
    await settle(ledger_driver, settle_with(session, "r1", str(lost), AttemptOutcome.RESULT, CENT // 2))
    assert await amounts(ledger_driver, session) == {"spent": CENT // 2, "held": CENT}
    await settle(ledger_driver, settle_with(session, "r1", taken_over.attempt_id, AttemptOutcome.RESULT, CENT // 4))
    assert await amounts(ledger_driver, session) == {"spent": CENT // 2 + CENT // 4}
    assert await ledger_driver.audit_findings() == ()


async def test_a_take_over_that_cannot_be_paid_ends_its_call_in_doubt(ledger_driver: ClockedLedgerDriver) -> None:
    """Nor does it wait: what it would wait for is what such calls hold."""
    session = await ledger_driver.open_session(max_cost_usd=0.02)
    await told(ledger_driver, session, "r1")
    await told(ledger_driver, session, "r2")
    ledger_driver.clock_ahead_ms += 20_000
    await ledger_driver.register("w2")
    for call in ("r1", "r2"):
        fault = await ledger_driver.admit_fault(session, call, by="w2", max_cost=CENT)
        assert fault.charged
    assert await amounts(ledger_driver, session) == {"held": 2 * CENT}
    assert await ledger_driver.audit_findings() == ()


async def test_a_take_over_waits_for_what_running_calls_of_its_family_reserve(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    parent = await ledger_driver.open_session(max_cost_usd=0.03)
    lost, other = [await ledger_driver.open_session(parent=parent) for _ in range(2)]
    await told(ledger_driver, lost, "r1")
    ledger_driver.clock_ahead_ms += 20_000
    await ledger_driver.register("w2")
    running = await ledger_driver.admit_granted(other, "r2", by="w2", max_cost=2 * CENT)
    taking_over = await ledger_driver.admit(lost, "r1", by="w2", max_cost=CENT)
    assert isinstance(taking_over, Deferred)
    assert (taking_over.reason, taking_over.is_takeover) == (DeferReason.MONEY, True)
    assert taking_over.payer == parent.session_id
    await settle(ledger_driver, settle_with(other, "r2", running.attempt_id, AttemptOutcome.RESULT, CENT))
    await ledger_driver.admit_granted(lost, "r1", by="w2", max_cost=CENT)
    assert await amounts(ledger_driver, parent) == {"spent": CENT, "held": CENT, "reserved": CENT}
    assert await ledger_driver.audit_findings() == ()


async def test_what_lost_calls_reserve_is_held_once_their_session_is_closed(ledger_driver: ClockedLedgerDriver) -> None:
    """Also where their workers were lost just before it, and their deadlines are far."""
    parent = await ledger_driver.open_session(max_cost_usd=0.03)
    child, open_one = [await ledger_driver.open_session(parent=parent) for _ in range(2)]
    await told(ledger_driver, child, "lost")
    await told(ledger_driver, open_one, "lost too")
    await ledger_driver.ledger.transact(
        lambda moment: sessions.amend_session(moment.now, AmendSession(session_id=child.session_id, state="closed"))
    )
    await ledger_driver.sweep()
    assert await amounts(ledger_driver, parent) == {"reserved": 2 * CENT}
    ledger_driver.clock_ahead_ms += 20_000
    await ledger_driver.sweep()
    assert await amounts(ledger_driver, child) == {"held": CENT}
    # Nobody may take over the one; the other waits for another worker.
    assert await amounts(ledger_driver, parent) == {"held": CENT, "reserved": CENT}
    assert await ledger_driver.audit_findings() == ()


async def test_the_calls_of_children_count_for_their_parents_too(ledger_driver: ClockedLedgerDriver) -> None:
    parent = await ledger_driver.open_session(max_cost_usd=0.02)
    with pytest.raises(BadRequest):
        await ledger_driver.open_session(parent=parent, max_cost_usd=0.03)
    child = await ledger_driver.open_session(parent=parent, max_cost_usd=0.01)
    other = await ledger_driver.open_session(parent=parent)
    await told(ledger_driver, child, "r1")
    assert await told(ledger_driver, child, "r2") is DeferReason.MONEY
    await told(ledger_driver, other, "r1")
    assert await told(ledger_driver, other, "r2") is DeferReason.MONEY
    assert await amounts(ledger_driver, parent) == {"reserved": 2 * CENT}


async def test_a_call_of_unknown_cost_is_refused_under_a_limit_and_counted_without_one(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    limited, free = await ledger_driver.open_session(max_cost_usd=1.0), await ledger_driver.open_session()
    fault = await ledger_driver.admit_fault(limited, "r1", cost_problem="no price of a")
    assert (fault.code, fault.charged) == ("bad_request", False)
    assert "no price of a" in str(fault.to_fault())
    attempt = await told(ledger_driver, free, "r1", None)
    await settle(ledger_driver, settle_with(free, "r1", str(attempt), AttemptOutcome.RESULT, None))
    cost = (await ledger_driver.info(free)).cost
    assert cost is not None
    assert cost.unknown == 1


async def test_a_limit_is_never_set_below_what_may_be_spent(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_cost_usd=1.0)
    await told(ledger_driver, session, "r1", 2 * CENT)
    request = AmendSession(session_id=session.session_id, max_cost_usd=0.01)
    info = await ledger_driver.ledger.transact(lambda moment: sessions.amend_session(moment.now, request))
    assert info.max_cost_usd == 0.02


@dataclass
class Bill:
    """What the provider of these rounds knows: what each try that it received cost, and which of them have ended."""

    limit: int
    tries: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    ended: list[Settle] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(cost for _, cost, _ in self.tries.values())


async def test_the_bill_stays_within_the_limit_whatever_happens(ledger_driver: ClockedLedgerDriver) -> None:
    """Workers die, reports come late, twice or never, providers bill what nobody hears of."""
    rng, rounds, driver = random.Random(7), 150, ledger_driver
    for limit in (3 * CENT, 40 * CENT, 200 * CENT):
        session = await driver.open_session(max_cost_usd=limit / PICODOLLARS_PER_DOLLAR, max_calls=10_000)
        bill, workers = Bill(limit), 1
        for _ in range(rounds):
            await driver.renew(f"w{workers}")
            action = rng.random()
            if action < 0.45:
                await begin(driver, session, bill, rng, f"w{workers}")
            elif action < 0.85 and bill.open:
                await end(driver, session, bill, rng)
            elif action < 0.92 and bill.ended:
                await settle(driver, rng.choice(bill.ended))
            elif action < 0.96:
                driver.clock_ahead_ms += rng.choice((100, 30_000))
                await driver.sweep()
            else:  # a kill of the worker, and its successor
                driver.clock_ahead_ms += 20_000
                workers += 1
                await driver.register(f"w{workers}")
            shown = await amounts(driver, session)
            assert bill.total <= sum(shown.values()) <= limit
            assert "excess" not in shown
        assert await driver.audit_findings() == ()
        await driver.ledger.transact(
            lambda moment, it=session: calls.end_family(driver.with_clock(moment), [it.session_id])
        )  # type: ignore[misc]
        driver.clock_ahead_ms += 1_000_000
        await driver.sweep()
        shown = await amounts(driver, session)
        assert "reserved" not in shown
        assert bill.total <= shown.get("spent", 0) + shown.get("held", 0) <= limit
        await driver.register(f"w{workers}")


async def begin(
    driver: ClockedLedgerDriver, session: SessionOpened, bill: Bill, rng: random.Random, worker: str
) -> None:
    call, bound = f"r{rng.randrange(60)}", rng.randrange(1, 2 * CENT)
    # In a batch, whose other changes are kept where one is refused.
    request = Admit(
        token=session.token,
        request_id=call,
        attempt_id=f"attempt-{rng.getrandbits(64)}",
        target="a",
        body_sha256="body",
        max_cost=bound,
    )
    operation = AdmitOperation(request, worker, request.credential())
    (decision,) = await driver.ledger.transact(lambda moment: calls.run_batch(driver.with_clock(moment), [operation]))
    if isinstance(decision, Admission) and decision.is_grant:
        # The provider bills it as soon as it is sent; whether the worker ever hears of it is another question.
        bill.tries[decision.attempt_id] = (call, rng.randrange(bound + 1), bound)
        bill.open.append(decision.attempt_id)


async def end(driver: ClockedLedgerDriver, session: SessionOpened, bill: Bill, rng: random.Random) -> None:
    attempt = bill.open.pop(rng.randrange(len(bill.open)))
    call, cost, bound = bill.tries[attempt]
    outcome, is_known, is_billed = rng.choice(ENDS)
    if not is_billed:
        bill.tries[attempt] = (call, 0, bound)
    item = settle_with(
        session,
        call,
        attempt,
        outcome,
        cost if is_known else None,
        unproven=outcome is AttemptOutcome.THROTTLED and is_billed,
    )
    bill.ended.append(item)
    await settle(driver, item)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "$0.00"), (25 * 10**12, "$25.00"), (62_500_000_000, "$0.0625"), (10**10, "$0.01"), (6_000_000, "$0.000006")],
)
def test_amounts_are_written_as_people_read_them(amount: int, text: str) -> None:
    assert dollars_text(amount) == text


@pytest.mark.parametrize("outcome", [AttemptOutcome.CHARGED, AttemptOutcome.IN_DOUBT, AttemptOutcome.THROTTLED])
async def test_a_failure_that_its_provider_does_not_bill_frees_what_it_reserved(
    ledger_driver: ClockedLedgerDriver, outcome: AttemptOutcome
) -> None:
    session = await ledger_driver.open_session(max_cost_usd=0.05)
    attempt = await told(ledger_driver, session, "r1")
    await settle(ledger_driver, settle_with(session, "r1", str(attempt), outcome, 0, unproven=True))
    assert await amounts(ledger_driver, session) == {}
    info = await ledger_driver.info(session)
    assert info.cost is not None
    assert (info.call_count, info.cost.unknown, info.unproven_tries) == (1, 0, 0)
    assert await ledger_driver.audit_findings() == ()


async def test_held_money_is_told_by_its_cause_and_released_by_the_bill(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_cost_usd=0.05)
    child = await ledger_driver.open_session(parent=session, max_calls=2, max_cost_usd=0.01)
    replaced = await told(ledger_driver, session, "replaced")
    ledger_driver.clock_ahead_ms += 20_000
    await ledger_driver.register("w2")
    taken_over = await ledger_driver.admit_granted(session, "replaced", by="w2", max_cost=CENT)
    failed = await ledger_driver.admit_granted(child, "failed", by="w2", max_cost=CENT)
    words = ProviderFailed("it broke", charged=True)
    words.provider_error = ProviderError(status=500)
    settled = settle_with(child, "failed", failed.attempt_id, AttemptOutcome.CHARGED, None, unproven=True)
    await settle(ledger_driver, settled.model_copy(update={"fault": FaultReply.from_fault(words)}))
    answered = settle_with(session, "replaced", taken_over.attempt_id, AttemptOutcome.RESULT, CENT // 4)
    await settle(ledger_driver, answered)
    assert await amounts(ledger_driver, session) == {"spent": CENT // 4, "held": 2 * CENT}
    found = await ledger_driver.ledger.transact(lambda _: held.held_tries(session.session_id))
    assert {(each.cause, each.tries, each.usd) for each in found} == {("HTTP 500", 1, 0.01), (WorkerLost.code, 1, 0.01)}

    with pytest.raises(BadRequest):
        await ledger_driver.ledger.transact(lambda _: held.release_held(session.session_id, 2 * CENT + 1))
    freed = await ledger_driver.ledger.transact(lambda _: held.release_held(session.session_id, CENT + CENT // 2))
    assert freed == CENT // 2
    assert await amounts(ledger_driver, session) == {"spent": CENT + CENT // 2 + CENT // 4}
    assert await amounts(ledger_driver, child) in ({"spent": CENT}, {"spent": CENT // 2})
    assert await ledger_driver.audit_findings() == ()
    # What reports after the administrator did is in that bill already.
    await settle(ledger_driver, settle_with(session, "replaced", str(replaced), AttemptOutcome.RESULT, CENT // 2))
    assert await amounts(ledger_driver, session) == {"spent": CENT + CENT // 2 + CENT // 4}
    assert await ledger_driver.audit_findings() == ()
    assert await ledger_driver.ledger.transact(lambda _: held.held_tries(session.session_id)) == []


async def test_a_lost_call_that_reports_after_the_release_changes_nothing(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_cost_usd=0.05)
    lost = await told(ledger_driver, session, "r1")
    ledger_driver.clock_ahead_ms += 700_000
    await ledger_driver.sweep()
    assert await amounts(ledger_driver, session) == {"held": CENT}
    assert await ledger_driver.ledger.transact(lambda _: held.release_held(session.session_id, 0)) == CENT
    await settle(ledger_driver, settle_with(session, "r1", str(lost), AttemptOutcome.RESULT, CENT // 2))
    info = await ledger_driver.info(session)
    assert await amounts(ledger_driver, session) == {}
    assert info.cost is not None
    assert (info.cost.unknown, info.tries) == (0, 1)
    assert await ledger_driver.audit_findings() == ()

"""Money in the ledger: what a try may cost is reserved before it is sent, and the bill is never above what is shown."""

from __future__ import annotations

import pytest

from quintain.contracts.ledger import AttemptOutcome
from quintain.contracts.money import PICODOLLARS_PER_DOLLAR, CostTerms, dollars_text, picodollars
from quintain.contracts.session import AmendSession, ResumeTarget, SessionOpened
from quintain.errors import BadRequest, Fault, ProviderError, ProviderFailed, WorkerLost
from quintain_metadata.ledger import held, sessions, targets
from quintain_metadata.ledger.decisions import DeferReason, Deferred
from support.ledger_driver import Driver

CENT = PICODOLLARS_PER_DOLLAR // 100


async def told(driver: Driver, session: SessionOpened, call: str, cost: int | None = CENT) -> object:
    """The attempt id of a grant, the reason of a wait, or the code of a refusal."""
    try:
        decision = await driver.admit(session, call, max_cost=cost)
    except Fault as fault:
        return fault.code
    if isinstance(decision, Deferred):
        return decision.reason
    return decision.attempt_id if decision.is_grant else decision.fault and decision.fault.code


async def settle(
    driver: Driver,
    session: SessionOpened,
    call: str,
    attempt: object,
    outcome: AttemptOutcome,
    cost: int | None = None,
    *,
    unproven: bool = False,
    **fields: object,
) -> None:
    """Tell how one try ended, and what it cost."""
    told = {"cost": cost, "tries": 1, "unproven": int(unproven) or None, **fields}
    await driver.settle(session, call, attempt, outcome, **told)


async def amounts(driver: Driver, session: SessionOpened) -> dict[str, int]:
    cost = (await driver.info(session)).cost
    assert cost is not None
    shown = {"spent": cost.spent_usd, "held": cost.held_usd, "reserved": cost.reserved_usd, "excess": cost.excess_usd}
    return {name: picodollars(value) for name, value in shown.items() if value}


async def test_a_try_reserves_what_it_may_cost_until_its_bill_is_known(driver: Driver) -> None:
    session = await driver.open_session(max_cost_usd=0.05)
    granted = await driver.admit_granted(session, "r1", max_cost=2 * CENT)
    assert await amounts(driver, session) == {"reserved": 2 * CENT}
    for _ in range(2):  # a settle may be delivered twice
        await settle(driver, session, "r1", granted.attempt_id, AttemptOutcome.RESULT, CENT)
    assert await amounts(driver, session) == {"spent": CENT}
    assert await driver.audit_findings() == ()


async def test_a_call_waits_for_money_that_others_hold_and_is_refused_once_nobody_does(driver: Driver) -> None:
    session = await driver.open_session(max_cost_usd=0.03)
    first = await told(driver, session, "r1", 2 * CENT)
    assert await told(driver, session, "r2", 2 * CENT) is DeferReason.MONEY
    assert (await driver.info(session)).call_count == 1
    assert await told(driver, session, "r3", 4 * CENT) == "budget_exhausted"
    await settle(driver, session, "r1", first, AttemptOutcome.RESULT, CENT)
    second = await told(driver, session, "r2", 2 * CENT)
    await settle(driver, session, "r2", second, AttemptOutcome.IN_DOUBT, None)
    assert await amounts(driver, session) == {"spent": CENT, "held": 2 * CENT}
    assert await told(driver, session, "r4", 1) == "budget_exhausted"


async def test_a_report_beyond_what_was_reserved_is_recorded_outside_the_limit(driver: Driver) -> None:
    session = await driver.open_session(max_cost_usd=0.05)
    attempt = await told(driver, session, "r1")
    await settle(driver, session, "r1", attempt, AttemptOutcome.RESULT, 3 * CENT)
    assert await amounts(driver, session) == {"spent": CENT, "excess": 2 * CENT}
    # What was billed is not there to be spent again.
    assert await told(driver, session, "r2", 3 * CENT) == "budget_exhausted"


async def test_a_session_is_told_what_is_left_to_it_and_to_those_above_it(driver: Driver) -> None:
    async def left(session: SessionOpened) -> tuple[int, int] | None:
        cost = (await driver.info(session)).cost
        if cost is None or cost.left_usd is None or cost.free_usd is None:
            return None
        return picodollars(cost.left_usd) // CENT, picodollars(cost.free_usd) // CENT

    parent = await driver.open_session(max_cost_usd=0.10)
    child = await driver.open_session(parent=parent, max_cost_usd=0.08)
    sibling = await driver.open_session(parent=parent)
    assert [await left(each) for each in (parent, child, sibling)] == [(10, 10), (8, 8), (10, 10)]
    attempt = await told(driver, sibling, "r1", 5 * CENT)
    assert [await left(each) for each in (parent, child, sibling)] == [(10, 5), (8, 5), (10, 5)]
    await settle(driver, sibling, "r1", attempt, AttemptOutcome.RESULT, 3 * CENT)
    assert [await left(each) for each in (parent, child, sibling)] == [(7, 7), (7, 7), (7, 7)]
    assert await left(await driver.open_session()) is None


async def exceed_bound(driver: Driver, session: SessionOpened, call: str) -> None:
    """Have a call answered that cost two cents more than was reserved for it."""
    attempt = await told(driver, session, call)
    await settle(driver, session, call, attempt, AttemptOutcome.RESULT, 3 * CENT)


async def test_a_target_whose_bound_was_wrong_is_not_called_under_a_limit_until_it_is_mended(driver: Driver) -> None:
    limited, free = await driver.open_session(max_cost_usd=1.0), await driver.open_session()
    running = await told(driver, limited, "r0")
    await exceed_bound(driver, free, "r1")
    assert (await driver.info(limited)).wrong_bounds == {"a": 0.02}
    fault = await driver.admit_fault(limited, "r2", max_cost=CENT)
    assert (fault.code, fault.charged) == ("target_unavailable", False)
    await settle(driver, limited, "r0", running, AttemptOutcome.RESULT, CENT)
    assert await amounts(driver, limited) == {"spent": CENT}
    assert str(await told(driver, free, "r2")).startswith("attempt-")
    await driver.register()
    assert await told(driver, limited, "r3") == "target_unavailable"
    await driver.register(cost=CostTerms(per_call_usd=0.03))
    assert str(await told(driver, limited, "r3")).startswith("attempt-")
    await exceed_bound(driver, free, "r4")
    assert await told(driver, limited, "r5") == "target_unavailable"
    await driver.transact(lambda moment: targets.resume_target(moment.now, ResumeTarget(target="a")))
    assert str(await told(driver, limited, "r5")).startswith("attempt-")
    assert (await driver.info(limited)).wrong_bounds is None


async def test_a_take_over_of_a_target_whose_bound_was_wrong_ends_its_call_in_doubt(driver: Driver) -> None:
    limited, free = await driver.open_session(max_cost_usd=1.0), await driver.open_session()
    await told(driver, limited, "r1")
    await exceed_bound(driver, free, "r2")
    await driver.lose_worker()
    assert (await driver.admit_fault(limited, "r1", by="w2", max_cost=CENT)).charged
    assert await amounts(driver, limited) == {"held": CENT}
    assert await driver.audit_findings() == ()


async def test_an_estimate_makes_the_limit_soft_and_is_no_bound(driver: Driver) -> None:
    session = await driver.open_session(max_cost_usd=0.05)
    granted = await driver.admit_granted(session, "r1", max_cost=CENT, is_estimate=True)
    await settle(driver, session, "r1", granted.attempt_id, AttemptOutcome.RESULT, 3 * CENT, is_estimate=True)
    info = await driver.info(session)
    assert info.cost is not None
    assert (info.cost.estimated, info.wrong_bounds) == (1, None)
    assert await amounts(driver, session) == {"spent": CENT, "excess": 2 * CENT}
    assert str(await told(driver, session, "r2")).startswith("attempt-")
    assert await told(driver, session, "r3", 3 * CENT) == "budget_exhausted"


async def test_a_lost_attempt_keeps_its_money_until_it_reports(driver: Driver) -> None:
    session = await driver.open_session(max_cost_usd=0.05)
    lost = await told(driver, session, "r1")
    await driver.lose_worker()
    taken_over = await driver.admit_granted(session, "r1", by="w2", max_cost=CENT)
    assert await amounts(driver, session) == {"held": CENT, "reserved": CENT}
    await settle(driver, session, "r1", lost, AttemptOutcome.RESULT, CENT // 2)
    assert await amounts(driver, session) == {"spent": CENT // 2, "held": CENT}
    await settle(driver, session, "r1", taken_over.attempt_id, AttemptOutcome.RESULT, CENT // 4)
    assert await amounts(driver, session) == {"spent": CENT // 2 + CENT // 4}
    assert await driver.audit_findings() == ()


async def test_a_take_over_that_cannot_be_paid_ends_its_call_in_doubt(driver: Driver) -> None:
    """Nor does it wait: what it would wait for is what such calls hold."""
    session = await driver.open_session(max_cost_usd=0.02)
    await told(driver, session, "r1")
    await told(driver, session, "r2")
    await driver.lose_worker()
    for call in ("r1", "r2"):
        fault = await driver.admit_fault(session, call, by="w2", max_cost=CENT)
        assert fault.charged
    assert await amounts(driver, session) == {"held": 2 * CENT}
    assert await driver.audit_findings() == ()


async def test_a_take_over_waits_for_what_running_calls_of_its_family_reserve(driver: Driver) -> None:
    parent = await driver.open_session(max_cost_usd=0.03)
    lost, other = [await driver.open_session(parent=parent) for _ in range(2)]
    await told(driver, lost, "r1")
    await driver.lose_worker()
    running = await driver.admit_granted(other, "r2", by="w2", max_cost=2 * CENT)
    taking_over = await driver.admit(lost, "r1", by="w2", max_cost=CENT)
    assert isinstance(taking_over, Deferred)
    assert (taking_over.reason, taking_over.is_takeover) == (DeferReason.MONEY, True)
    assert taking_over.payer == parent.session_id
    await settle(driver, other, "r2", running.attempt_id, AttemptOutcome.RESULT, CENT)
    await driver.admit_granted(lost, "r1", by="w2", max_cost=CENT)
    assert await amounts(driver, parent) == {"spent": CENT, "held": CENT, "reserved": CENT}
    assert await driver.audit_findings() == ()


async def test_what_lost_calls_reserve_is_held_once_their_session_is_closed(driver: Driver) -> None:
    """Also where their workers were lost just before it, and their deadlines are far."""
    parent = await driver.open_session(max_cost_usd=0.03)
    child, open_one = [await driver.open_session(parent=parent) for _ in range(2)]
    await told(driver, child, "lost")
    await told(driver, open_one, "lost too")
    await driver.amend(child, state="closed")
    await driver.sweep()
    assert await amounts(driver, parent) == {"reserved": 2 * CENT}
    driver.clock_ahead_ms += 20_000
    await driver.sweep()
    assert await amounts(driver, child) == {"held": CENT}
    # Nobody may take over the one; the other waits for another worker.
    assert await amounts(driver, parent) == {"held": CENT, "reserved": CENT}
    assert await driver.audit_findings() == ()


async def test_a_call_of_unknown_cost_is_refused_under_a_limit_and_counted_without_one(driver: Driver) -> None:
    limited, free = await driver.open_session(max_cost_usd=1.0), await driver.open_session()
    fault = await driver.admit_fault(limited, "r1", cost_problem="no price of a")
    assert (fault.code, fault.charged) == ("bad_request", False)
    assert "no price of a" in str(fault.to_fault())
    attempt = await told(driver, free, "r1", None)
    await settle(driver, free, "r1", attempt, AttemptOutcome.RESULT, None)
    cost = (await driver.info(free)).cost
    assert cost is not None
    assert cost.unknown == 1


async def test_a_limit_is_never_set_below_what_may_be_spent(driver: Driver) -> None:
    session = await driver.open_session(max_cost_usd=1.0)
    await told(driver, session, "r1", 2 * CENT)
    request = AmendSession(session_id=session.session_id, max_cost_usd=0.01)
    info = await driver.transact(lambda moment: sessions.amend_session(moment.now, request))
    assert info.max_cost_usd == 0.02


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "$0.00"), (25 * 10**12, "$25.00"), (62_500_000_000, "$0.0625"), (10**10, "$0.01"), (6_000_000, "$0.000006")],
)
def test_amounts_are_written_as_people_read_them(amount: int, text: str) -> None:
    assert dollars_text(amount) == text


@pytest.mark.parametrize("bill", [0, CENT // 3])
@pytest.mark.parametrize("outcome", [AttemptOutcome.CHARGED, AttemptOutcome.IN_DOUBT, AttemptOutcome.RETRY])
async def test_a_failure_of_known_bill_frees_what_it_reserved_beyond_it(
    driver: Driver, outcome: AttemptOutcome, bill: int
) -> None:
    session = await driver.open_session(max_cost_usd=0.05)
    attempt = await told(driver, session, "r1")
    await settle(driver, session, "r1", attempt, outcome, bill, unproven=True)
    assert await amounts(driver, session) == ({"spent": bill} if bill else {})
    info = await driver.info(session)
    assert info.cost is not None
    assert (info.call_count, info.cost.unknown, info.unproven_tries) == (1, 0, 0)
    assert await driver.audit_findings() == ()


async def test_held_money_is_told_by_its_cause_and_released_by_the_bill(driver: Driver) -> None:
    session = await driver.open_session(max_cost_usd=0.05)
    child = await driver.open_session(parent=session, max_calls=2, max_cost_usd=0.01)
    replaced = await told(driver, session, "replaced")
    await driver.lose_worker()
    taken_over = await driver.admit_granted(session, "replaced", by="w2", max_cost=CENT)
    failed = await driver.admit_granted(child, "failed", by="w2", max_cost=CENT)
    words = ProviderFailed("it broke", charged=True)
    words.provider_error = ProviderError(status=500)
    await settle(driver, child, "failed", failed.attempt_id, AttemptOutcome.CHARGED, unproven=True, fault=words)
    await settle(driver, session, "replaced", taken_over.attempt_id, AttemptOutcome.RESULT, CENT // 4)
    assert await amounts(driver, session) == {"spent": CENT // 4, "held": 2 * CENT}
    found = await driver.transact(lambda _: held.held_tries(session.session_id))
    assert {(each.cause, each.tries, each.usd) for each in found} == {("HTTP 500", 1, 0.01), (WorkerLost.code, 1, 0.01)}

    with pytest.raises(BadRequest):
        await driver.transact(lambda _: held.release_held(session.session_id, 2 * CENT + 1))
    freed = await driver.transact(lambda _: held.release_held(session.session_id, CENT + CENT // 2))
    assert freed == CENT // 2
    assert await amounts(driver, session) == {"spent": CENT + CENT // 2 + CENT // 4}
    assert await amounts(driver, child) in ({"spent": CENT}, {"spent": CENT // 2})
    assert await driver.audit_findings() == ()
    # What reports after the administrator did is in that bill already.
    await settle(driver, session, "replaced", replaced, AttemptOutcome.RESULT, CENT // 2)
    assert await amounts(driver, session) == {"spent": CENT + CENT // 2 + CENT // 4}
    assert await driver.audit_findings() == ()
    assert await driver.transact(lambda _: held.held_tries(session.session_id)) == []


# Calls of lost workers that cannot be paid again end at once, with a word that is true of their charge.


async def test_a_take_over_that_cannot_be_paid_does_not_wait_for_its_target(driver: Driver) -> None:
    session = await driver.open_session(max_cost_usd=0.05)
    for worker in ("w1", "w2"):
        for call in ("r1", "r2"):
            await driver.admit_granted(session, call, by=worker, max_cost=CENT)
        driver.clock_ahead_ms += 20_000
        await driver.register(f"w{int(worker[1]) + 1}")
    await driver.pause("a", 60_000)
    for call, redelivered in (("r1", None), ("r2", True)):
        fault = await driver.admit_fault(session, call, by="w3", max_cost=2 * CENT, redelivered=redelivered)
        assert (fault.code, fault.charged) == ("worker_lost", True)
    assert await amounts(driver, session) == {"held": 4 * CENT}
    assert await driver.audit_findings() == ()


async def test_lost_calls_that_cannot_be_paid_end_although_nobody_takes_them_over(driver: Driver) -> None:
    """All workers may be busy with calls that wait for what the lost ones reserve."""
    payable, unpayable = await driver.open_session(max_cost_usd=0.04), await driver.open_session(max_cost_usd=0.03)
    for session in (payable, unpayable):
        for call in ("r1", "r2"):
            await told(driver, session, call)
        driver.clock_ahead_ms += 1_000
    await driver.sweep()
    assert await amounts(driver, unpayable) == {"reserved": 2 * CENT}
    await driver.lose_worker()
    attempt = await driver.admit_granted(unpayable, "r3", by="w2", max_cost=CENT)
    await settle(driver, unpayable, "r3", attempt.attempt_id, AttemptOutcome.RESULT, CENT // 2)
    assert isinstance(await driver.admit(unpayable, "r4", by="w2", max_cost=CENT), Deferred)
    await driver.sweep()
    assert await amounts(driver, payable) == {"reserved": 2 * CENT}
    assert await amounts(driver, unpayable) == {"spent": CENT // 2, "held": 2 * CENT}
    fault = await driver.admit_fault(unpayable, "r1", by="w2", max_cost=CENT)
    assert (fault.code, fault.charged) == ("worker_lost", True)
    assert await told(driver, unpayable, "r4") == "budget_exhausted"
    assert await driver.audit_findings() == ()


@pytest.mark.parametrize("refused", [{"cost_problem": "no price of a"}, {"max_cost": CENT, "body_bytes": 2**24}])
async def test_a_take_over_that_is_refused_says_that_its_call_was_charged(
    driver: Driver, refused: dict[str, object]
) -> None:
    session = await driver.open_session(max_cost_usd=0.05)
    await told(driver, session, "r1")
    await driver.lose_worker()
    fault = await driver.admit_fault(session, "r1", by="w2", **refused)
    assert (fault.code, fault.charged) == ("worker_lost", True)
    assert (await driver.info(session)).in_doubt == 1

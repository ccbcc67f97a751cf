"""What calls took, by target and grader, and the export of one session's family: the same from every store."""

from __future__ import annotations

import pytest

from quintain.contracts.ledger import AttemptOutcome
from quintain.contracts.money import PICODOLLARS_PER_DOLLAR
from quintain.contracts.session import CostUsage, SessionOpened, Usage
from quintain.errors import ProviderFailed
from quintain_metadata.ledger import audit, usage
from support.ledger_driver import USED, Driver

CENT = PICODOLLARS_PER_DOLLAR // 100


async def usage_of(driver: Driver, session: SessionOpened) -> dict[tuple[str, str | None], Usage]:
    lines = await driver.transact(lambda _: usage.usage_lines(session.session_id))
    return {(line.target, line.grader): Usage(**dict(line)) for line in lines}


async def total_of(driver: Driver, session: SessionOpened) -> Usage:
    """The sum of a session's lines, which has what the session itself counts."""
    total = sum((await usage_of(driver, session)).values(), Usage())
    info = await driver.info(session)
    assert (total.tries, total.unproven_tries) == (info.tries, info.unproven_tries)
    cost = info.cost or CostUsage()
    assert total.cost == cost.model_copy(update={"spent_usd": cost.known_usd, "excess_usd": 0.0})
    assert await driver.audit_findings() == ()
    return total


async def complete_call(
    driver: Driver, session: SessionOpened, name: str, target: str = "a", grader: str | None = None
) -> None:
    grant = await driver.admit_granted(session, name, target=target, grader=grader)
    await driver.settle(session, name, grant.attempt_id, AttemptOutcome.RESULT)


async def settle_tries(
    driver: Driver,
    session: SessionOpened,
    call: str,
    attempt: str,
    outcome: AttemptOutcome = AttemptOutcome.RESULT,
    **told: object,
) -> None:
    for _ in range(2):  # a settle may be delivered twice
        await driver.settle(session, call, attempt, outcome, **{"tries": 1, "token_usage": None, **told})


def answered(calls: int, *, counted: int | None = None) -> Usage:
    """Calls that were answered, without known prices, by a driver that tells no tries."""
    counted = calls if counted is None else counted
    tokens = sum([USED] * counted, start=Usage().token_usage)
    return Usage(calls=calls, counted=counted, token_usage=tokens, cost=CostUsage(unknown=calls))


async def test_tokens_are_told_by_target_and_grader_a_childs_too(driver: Driver) -> None:
    parent = await driver.open_session(max_calls=9)
    child = await driver.open_session(parent=parent, max_calls=5, grader="style")
    grandchild = await driver.open_session(parent=child, max_calls=5)
    await complete_call(driver, parent, "r1")
    await complete_call(driver, parent, "r2", target="judge", grader="relevance")
    await complete_call(driver, child, "r3")
    await complete_call(driver, grandchild, "r4", target="judge")
    await complete_call(driver, child, "r5", target="judge")
    assert await usage_of(driver, parent) == {
        ("a", None): answered(1),
        ("a", "style"): answered(1),
        ("judge", "relevance"): answered(1),
        ("judge", "style"): answered(2),
    }
    assert (await usage_of(driver, grandchild)) == {("judge", "style"): answered(1)}
    await total_of(driver, parent)


async def test_a_charged_call_without_tokens_is_a_call_that_was_not_counted(driver: Driver) -> None:
    session = await driver.open_session(max_calls=9)
    await complete_call(driver, session, "r1")
    await driver.admit_granted(session, "runs")
    grant = await driver.admit_granted(session, "broke")
    await driver.settle(session, "broke", grant.attempt_id, AttemptOutcome.CHARGED)
    total = await total_of(driver, session)
    assert (total.calls, total.counted, total.token_usage, total.cost.unknown) == (3, 1, USED, 2)


async def test_what_was_given_back_was_not_spent(driver: Driver) -> None:
    session = await driver.open_session(max_calls=9)
    grant = await driver.admit_granted(session, "r1")
    await driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.REFUND, fault=ProviderFailed("refused"))
    await driver.reserve(session, ["r2"])
    assert await usage_of(driver, session) == {}


@pytest.mark.parametrize(
    ("outcome", "tries", "unproven", "cost", "counted"),
    [
        (AttemptOutcome.RESULT, 1, 0, CENT, Usage(calls=1, tries=1, cost=CostUsage(spent_usd=0.01))),
        (
            AttemptOutcome.RESULT,
            3,
            2,
            CENT,
            Usage(calls=1, tries=3, unproven_tries=2, cost=CostUsage(spent_usd=0.01, unknown=2)),
        ),
        (AttemptOutcome.RESULT, 2, 0, None, Usage(calls=1, tries=2, cost=CostUsage(unknown=1))),
        (AttemptOutcome.REFUND, 3, 0, None, Usage(tries=3)),
        (AttemptOutcome.CHARGED, 2, 1, None, Usage(calls=1, tries=2, unproven_tries=1, cost=CostUsage(unknown=1))),
        (AttemptOutcome.IN_DOUBT, 3, 3, None, Usage(calls=1, tries=3, unproven_tries=3, cost=CostUsage(unknown=3))),
        (AttemptOutcome.RETRY, 1, 1, None, Usage(tries=1, unproven_tries=1, cost=CostUsage(unknown=1))),
        (AttemptOutcome.NEVER_SENT, 0, 0, None, Usage()),
    ],
)
async def test_each_request_that_an_attempt_sent_is_counted_once(
    driver: Driver,
    outcome: AttemptOutcome,
    tries: int,
    unproven: int,
    cost: int | None,
    counted: Usage,
) -> None:
    session = await driver.open_session(max_calls=9)
    grant = await driver.admit_granted(session, "r1")
    await settle_tries(
        driver, session, "r1", grant.attempt_id, outcome, tries=tries, unproven=unproven or None, cost=cost
    )
    assert await total_of(driver, session) == counted


@pytest.mark.parametrize(
    "late", [AttemptOutcome.RESULT, AttemptOutcome.IN_DOUBT, AttemptOutcome.REFUND, AttemptOutcome.NEVER_SENT]
)
@pytest.mark.parametrize("is_taken_over", [True, False])
@pytest.mark.parametrize("bound", [CENT, None])
async def test_a_lost_attempt_is_a_request_that_may_be_billed_until_it_reports(
    driver: Driver, late: AttemptOutcome, is_taken_over: bool, bound: int | None
) -> None:
    session = await driver.open_session(max_calls=9)
    lost = await driver.admit_granted(session, "r1", max_cost=bound)
    await driver.lose_worker()
    if is_taken_over:
        other = await driver.admit_granted(session, "r1", by="w2", max_cost=bound)
    else:
        driver.clock_ahead_ms += 700_000
        await driver.sweep()
    total = await total_of(driver, session)
    assert (total.calls, total.tries, total.unproven_tries) == (1, 1, 1)
    assert (total.cost.held_usd, total.cost.unknown) == ((0.01, 0) if bound else (0.0, 1))
    is_doubtful, is_sent = late is AttemptOutcome.IN_DOUBT, late is not AttemptOutcome.NEVER_SENT
    cost = CENT // 2 if late is AttemptOutcome.RESULT else None
    tries = 2 if is_sent else 0
    await settle_tries(
        driver, session, "r1", lost.attempt_id, late, tries=tries, unproven=2 * is_doubtful or None, cost=cost
    )
    superseded = is_taken_over and late is AttemptOutcome.RESULT
    total = await total_of(driver, session)
    assert (total.tries, total.unproven_tries) == (tries + superseded, 2 * is_doubtful + superseded)
    assert total.cost.spent_usd == (0.005 if cost else 0.0)
    if not is_taken_over:
        return
    await settle_tries(driver, session, "r1", other.attempt_id, tries=3, cost=CENT // 4)
    total = await total_of(driver, session)
    assert (total.calls, total.tries, total.unproven_tries) == (1, 3 + tries, 2 * is_doubtful)
    assert total.cost.spent_usd == (0.0075 if cost else 0.0025)


async def test_one_family_can_be_exported_by_itself(driver: Driver) -> None:
    parent, stranger = await driver.open_session(max_calls=9), await driver.open_session(max_calls=9)
    child = await driver.open_session(parent=parent, max_calls=5)
    for session in (parent, child, stranger):
        await complete_call(driver, session, "r1")
    await driver.admit_granted(child, "runs")
    records = await driver.transact(lambda _: audit.export_page(("", ""), session_id=parent.session_id))
    assert sorted((record.session_id, record.request_id) for record in records) == sorted(
        [(parent.session_id, "r1"), (child.session_id, "r1"), (child.session_id, "runs")]
    )
    assert {record.request_id: record.token_usage for record in records} == {"r1": USED, "runs": None}
    rest = await driver.transact(
        lambda _: audit.export_page((records[0].session_id, records[0].request_id), session_id=parent.session_id)
    )
    assert rest == records[1:]
    assert len(await driver.transact(lambda _: audit.export_page(("", "")))) == 4

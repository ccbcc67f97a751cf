"""A child session that reserves its calls has them, whoever else calls: on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.contracts.credentials import SessionToken
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.session import OpenSession, SessionOpened, SessionState
from quintain.errors import BadRequest, BudgetExhausted, Unauthorized
from quintain_metadata.ledger import sessions
from support.ledger_driver import Driver


@pytest.fixture(autouse=True)
async def consistent_at_the_end(driver: Driver) -> AsyncIterator[None]:
    yield
    assert await driver.audit_findings() == ()


async def used(driver: Driver, *opened: SessionOpened) -> list[int]:
    infos = [await driver.info(session) for session in opened]
    for info in infos:
        assert info.call_count == info.reserved + info.running + info.committed + info.in_doubt
    return [info.call_count for info in infos]


async def test_a_child_moves_its_calls_out_of_its_parent_until_it_is_closed(driver: Driver) -> None:
    parent = await driver.open_session(max_calls=4)
    child = await driver.open_session(parent=parent, max_calls=3, reserve=True)
    assert await used(driver, parent, child) == [3, 0]
    await driver.admit_granted(parent, "p1")
    with pytest.raises(BudgetExhausted):
        await driver.admit(parent, "p2")
    grant = await driver.admit_granted(child, "c1")
    await driver.settle(child, "c1", grant.attempt_id, AttemptOutcome.RESULT)
    assert await used(driver, parent, child) == [4, 1]
    await driver.close(child)
    assert await used(driver, parent, child) == [2, 1]
    await driver.admit_granted(parent, "p2")
    await driver.close(child)
    assert await used(driver, parent, child) == [3, 1]


async def test_a_request_to_open_that_is_delivered_again_has_the_same_answer_and_reserves_once(driver: Driver) -> None:
    parent, token = await driver.open_session(max_calls=4), SessionToken.mint()
    request = OpenSession(default_target="a", max_calls=3, reserve=True)

    async def deliver() -> SessionOpened:
        return await driver.as_owner(
            parent, lambda moment, owner: sessions.open_session(moment.now, request, token, owner)
        )

    child = await deliver()
    assert (await deliver(), child.parent_id) == (child, parent.session_id)
    assert await used(driver, parent, child) == [3, 0]
    await driver.close(child)
    assert await deliver() == child
    assert (await used(driver, parent), (await driver.info(child)).state) == ([0], SessionState.CLOSED)


async def test_what_is_not_there_cannot_be_reserved_and_opens_no_session(driver: Driver) -> None:
    parent = await driver.open_session(max_calls=3)
    await driver.admit_granted(parent, "p1")
    with pytest.raises(BudgetExhausted):
        await driver.open_session(parent=parent, max_calls=3, reserve=True)
    with pytest.raises(BadRequest, match="reserve"):
        await driver.open_session(parent=parent, max_calls=1, reserve=2)
    with pytest.raises(BadRequest, match="reserve"):
        await driver.open_session(max_calls=1, reserve=True)
    assert await used(driver, parent) == [1]


async def test_a_part_is_reserved_and_the_rest_is_charged_as_it_is_used(driver: Driver) -> None:
    parent = await driver.open_session(max_calls=4)
    child = await driver.open_session(parent=parent, max_calls=4, reserve=2)
    for number, expected in enumerate((2, 2, 3), start=1):
        await driver.admit_granted(child, f"c{number}")
        assert await used(driver, parent, child) == [expected, number]
    await driver.admit_granted(parent, "p1")
    with pytest.raises(BudgetExhausted):
        await driver.admit(child, "c4")
    await driver.close(child)
    assert await used(driver, parent, child) == [4, 3]


async def test_a_refunded_call_is_reserved_again(driver: Driver) -> None:
    parent = await driver.open_session(max_calls=3)
    child = await driver.open_session(parent=parent, max_calls=2, reserve=1)
    grants = [await driver.admit_granted(child, name) for name in ("c1", "c2")]
    assert await used(driver, parent, child) == [2, 2]
    for name, grant in zip(("c1", "c2"), grants, strict=True):
        await driver.settle(child, name, grant.attempt_id, AttemptOutcome.REFUND)
    assert await used(driver, parent, child) == [1, 0]


async def test_a_grandchilds_reservation_is_all_its_ancestors(driver: Driver) -> None:
    root = await driver.open_session(max_calls=10)
    parent = await driver.open_session(parent=root, max_calls=6, reserve=4)
    child = await driver.open_session(parent=parent, max_calls=6, reserve=5)
    assert await used(driver, root, parent, child) == [5, 5, 0]
    await driver.admit_granted(child, "c1")
    await driver.admit_granted(parent, "p1")
    assert await used(driver, root, parent, child) == [6, 6, 1]
    await driver.close(child)
    assert await used(driver, root, parent, child) == [4, 2, 1]
    await driver.close(parent)
    assert await used(driver, root, parent, child) == [2, 2, 1]


@pytest.mark.parametrize("expires", [True, False])
async def test_the_parents_end_is_the_end_of_what_its_children_reserved(driver: Driver, expires: bool) -> None:
    root = await driver.open_session(max_calls=10)
    parent = await driver.open_session(parent=root, max_calls=6, expires_in_seconds=5 if expires else None)
    await driver.open_session(parent=parent, max_calls=5, reserve=True)
    if expires:
        driver.clock_ahead_ms = 6000
        await driver.sweep()
    else:
        await driver.close(parent)
    assert await used(driver, root, parent) == [0, 0]


async def test_an_expired_child_gives_back_what_it_reserved(driver: Driver) -> None:
    parent = await driver.open_session(max_calls=2)
    child = await driver.open_session(parent=parent, max_calls=2, reserve=True, expires_in_seconds=5)
    await driver.admit_granted(child, "c1")
    await driver.sweep()
    assert await used(driver, parent) == [2]
    driver.clock_ahead_ms = 6000
    await driver.sweep()
    await driver.sweep()
    assert await used(driver, parent) == [1]
    with pytest.raises(Unauthorized):
        await driver.admit(child, "c2")
    # The call that still runs is charged, and refunded, as any other.
    await driver.settle(child, "c1", "attempt-1", AttemptOutcome.REFUND)
    assert await used(driver, parent) == [0]


async def test_who_reserved_has_its_calls_whoever_else_calls_at_the_same_time(driver: Driver) -> None:
    parent = await driver.open_session(max_calls=30)
    opened = await asyncio.gather(
        *(driver.open_session(parent=parent, max_calls=4, reserve=2) for _ in range(20)),
        *(driver.admit(parent, f"p{number}") for number in range(20)),
        return_exceptions=True,
    )
    children = [one for one in opened if isinstance(one, SessionOpened)]
    granted = [one for one in opened if isinstance(one, Admission)]
    refused = [one for one in opened if isinstance(one, BudgetExhausted)]
    assert len(children) + len(granted) + len(refused) == 40
    assert 29 <= 2 * len(children) + len(granted) <= 30
    names = [(child, f"{number}") for child in children for number in range(2)]
    outcomes = await asyncio.gather(
        *(driver.admit(child, name) for child, name in names),
        *(driver.admit(parent, f"q{number}") for number in range(10)),
        return_exceptions=True,
    )
    assert all(isinstance(one, Admission) for one in outcomes[: len(names)])
    assert sum(isinstance(one, Admission) for one in outcomes[len(names) :]) <= 1
    assert (await used(driver, parent))[0] <= 30
    await asyncio.gather(*(driver.close(child) for child in children))
    assert (await used(driver, parent))[0] <= 30


async def test_reserving_again_renews_a_reservation_and_takes_one_that_ended(driver: Driver) -> None:
    session = await driver.open_session(max_calls=2)
    assert await driver.reserve(session, ["r1", "r2"], seconds=10) == 2
    driver.clock_ahead_ms = 8000
    assert await driver.reserve(session, ["r1"], seconds=10) == 0
    driver.clock_ahead_ms = 12_000
    await driver.sweep()
    # The second ended with its deadline, the first was renewed.
    assert await used(driver, session) == [1]
    assert await driver.reserve(session, ["r1", "r2"], seconds=10) == 1
    assert await used(driver, session) == [2]
    await driver.cancel(session, "r2")
    assert await driver.reserve(session, ["r2"], seconds=10) == 0
    assert await used(driver, session) == [1]

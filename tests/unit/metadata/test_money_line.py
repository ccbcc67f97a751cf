"""Calls that wait for money: in which order they have it, what each settle decides again, and what they do not hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from quintain.contracts.money import PICODOLLARS_PER_DOLLAR
from quintain_metadata.ledger.calls import CallOperation, Outcome
from support.queue_driver import QueueDriver, memory_queue_driver

CENT = PICODOLLARS_PER_DOLLAR // 100


async def ask(desk: QueueDriver, *names: str, cents: int = 1, **fields: object) -> None:
    """Ask for calls that may cost so much."""
    await desk.admit(*names, max_cost=cents * CENT, **fields)  # type: ignore[arg-type]


async def end(desk: QueueDriver, name: str, cents: float = 0) -> None:
    """The call ends, and costs so much."""
    await desk.settle(desk.attempt_of(name), cost=round(cents * CENT))


@pytest.fixture
async def desk() -> AsyncIterator[QueueDriver]:
    async with memory_queue_driver() as desk:
        for worker in ("w1", "w2"):
            await desk.register("a", incarnation=worker, limit=1000, without=True)
        yield desk


def names(count: int, first: int = 0) -> list[str]:
    return [f"r{number}" for number in range(first, first + count)]


async def test_a_settle_decides_what_fits_by_now_and_no_more(
    desk: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.session = await desk.driver.open_session(max_cost_usd=0.1)
    run, decided = desk.queue.operations.run, 0
    await ask(desk, *names(266))
    assert desk.taken() == names(10)

    async def count(operations: Sequence[CallOperation]) -> list[Outcome]:
        nonlocal decided
        decided += len(operations)
        return await run(operations)

    monkeypatch.setattr(desk.queue.operations, "run", count)
    for number in range(20):
        await end(desk, f"r{number}")
        assert desk.taken() == names(1, first=10 + number)
    assert decided == 20


async def test_a_call_that_may_cost_much_is_not_overtaken_by_calls_that_may_cost_little(desk: QueueDriver) -> None:
    desk.session = await desk.driver.open_session(max_cost_usd=0.1)
    await ask(desk, *names(10))
    desk.taken()
    await ask(desk, "dear", cents=5)
    await ask(desk, "cheap")
    for number in range(4):
        await end(desk, f"r{number}")
        await ask(desk, f"cheap {number}")
        assert desk.taken() == []
    await end(desk, "r4")
    assert desk.taken() == ["dear"]
    await end(desk, "r5")
    await end(desk, "r6")
    assert desk.taken() == ["cheap", "cheap 0"]


async def test_a_call_that_waits_for_the_money_of_its_own_session_keeps_none_of_its_parents(
    desk: QueueDriver,
) -> None:
    parent = await desk.driver.open_session(max_cost_usd=0.05)
    narrow = await desk.driver.open_session(parent=parent, max_cost_usd=0.02)
    other = await desk.driver.open_session(parent=parent)
    await ask(desk, "n0", "n1", "n2", session=narrow)
    await ask(desk, "o0", "o1", "o2", "o3", session=other)
    assert desk.taken() == ["n0", "n1", "o0", "o1", "o2"]
    await end(desk, "o0")
    assert desk.taken() == ["o3"]
    await end(desk, "n0")
    assert desk.taken() == ["n2"]


async def test_what_fits_no_more_is_refused_as_soon_as_that_is_known(desk: QueueDriver) -> None:
    desk.session = await desk.driver.open_session(max_cost_usd=0.03)
    await ask(desk, "r0", cents=2)
    await ask(desk, "dear", cents=3)
    await ask(desk, "cheap", cents=2)
    await end(desk, "r0", cents=1)
    assert (desk.taken(), desk.told("dear")) == (["r0", "cheap"], ["budget_exhausted"])


async def test_a_sweep_finds_money_that_another_service_or_a_higher_limit_freed(desk: QueueDriver) -> None:
    desk.session = await desk.driver.open_session(max_cost_usd=0.01)
    await ask(desk, "r0", "r1")
    assert desk.taken() == ["r0"]
    await desk.driver.amend(desk.session, max_cost_usd=0.02)
    await desk.sweep()
    assert desk.taken() == ["r1"]


async def test_a_take_over_waits_for_what_running_calls_reserve_and_comes_first(desk: QueueDriver) -> None:
    desk.session = await desk.driver.open_session(max_cost_usd=0.03)
    await ask(desk, "lost", incarnation="w2")
    await ask(desk, "r0", "r1", "new")
    await ask(desk, "lost")
    assert desk.taken() == ["lost", "r0", "r1"]
    await desk.driver.expire_lease("w2")
    await desk.sweep()
    assert (desk.taken(), desk.told("lost", "new")) == ([], ["granted", "waits", "waits"])
    await end(desk, "r0")
    assert desk.taken() == ["lost"]
    await end(desk, "lost")
    assert desk.taken() == ["new"]


async def test_a_take_over_does_not_wait_for_what_lost_calls_reserve(desk: QueueDriver) -> None:
    desk.session = await desk.driver.open_session(max_cost_usd=0.03)
    await ask(desk, "l0", "l1", incarnation="w2")
    await ask(desk, "r0", "l0", "l1")
    await desk.driver.expire_lease("w2")
    await desk.sweep()
    # Both wait for the call that runs; what it cost leaves no room, so that both end in doubt, and nobody waits.
    assert desk.told("l0", "l1") == ["granted", "waits"] * 2
    await end(desk, "r0", cents=1)
    assert desk.told("l0", "l1") == ["granted", "worker_lost"] * 2
    info = await desk.driver.info(desk.session)
    assert (info.in_doubt, info.running, info.cost and info.cost.held_usd) == (2, 0, 0.02)


async def test_a_call_that_waits_for_money_holds_no_place_of_its_quota(desk: QueueDriver) -> None:
    await desk.register("a", start=2)
    limited, free = await desk.driver.open_session(max_cost_usd=0.01), await desk.driver.open_session()
    await ask(desk, "r0", "r1", session=limited)
    await ask(desk, "f0", "f1", session=free)
    assert desk.taken() == ["r0", "f0"]
    await end(desk, "r0")
    # The place went to who waited for it; who waited for money waits for a place now.
    await end(desk, "f0")
    assert sorted(desk.taken()) == ["f1", "r1"]


async def test_a_call_with_a_place_of_its_quota_does_not_overtake_who_waits_for_money(desk: QueueDriver) -> None:
    await desk.register("a", without=True)
    await desk.register("b", start=2)
    desk.session = await desk.driver.open_session(max_cost_usd=0.03)
    other = await desk.driver.open_session()
    await ask(desk, "q0", "q1", target="b", session=other)
    await ask(desk, "r0", "dear", cents=2)
    await ask(desk, "cheap", target="b")
    assert desk.taken() == ["q0", "q1", "r0"]
    await end(desk, "q0")
    assert desk.taken() == []
    await end(desk, "r0")
    assert desk.taken() == ["dear", "cheap"]

"""Which worker serves a target with which fingerprint: what `info` and the administrator's list say, on every store."""

from __future__ import annotations

import pytest

from quintain.contracts.fleet import RegisteredTarget
from quintain.contracts.ledger import DrainState, Heartbeat
from quintain.contracts.money import CostTerms
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.ledger import leases, targets
from support.ledger_driver import Driver

LEASE_MS = DEFAULT_TIMINGS.lease_ms

HALF, QUARTER = CostTerms(per_call_usd=0.5), CostTerms(per_call_usd=0.25)


async def listed(driver: Driver) -> tuple[RegisteredTarget, int | None]:
    """The target, and for how many seconds its workers have differed."""
    found = await driver.at_now(targets.list_targets)
    (target,) = found.targets
    return target, None if target.different_since is None else (found.now - target.different_since) // 1000


async def later(driver: Driver, seconds: int, *alive: str) -> None:
    """Let this time pass; these workers renew their leases."""
    driver.clock_ahead_ms += seconds * 1000
    for worker in alive:
        await driver.renew(worker)


async def test_workers_that_differ_are_known_with_the_time_since_they_do(driver: Driver) -> None:
    await driver.register("old-1", fingerprint="a")
    await driver.register("old-2", fingerprint="a")
    assert (await listed(driver))[1] is None
    await later(driver, 100, "old-1", "old-2")
    await driver.register("new-1", fingerprint="b")
    await later(driver, 60, "old-1", "old-2", "new-1")
    # A registration that is repeated, and more workers of either kind, begin no new difference.
    await driver.register("new-1", fingerprint="b")
    await driver.register("new-2", fingerprint="b")
    target, seconds = await listed(driver)
    assert (target.workers_by_fingerprint, seconds) == ({"b": ["new-1", "new-2"], "a": ["old-1", "old-2"]}, 60)
    session = await driver.open_session()
    info = await driver.info(session)
    assert {name: (info.now - since) // 1000 for name, since in (info.different_since or {}).items()} == {"a": 60}
    await later(driver, LEASE_MS // 1000 + 1, "new-1", "new-2")
    target, seconds = await listed(driver)
    assert (target.workers_by_fingerprint, seconds) == ({"b": ["new-1", "new-2"]}, None)
    assert (await driver.info(session)).different_since is None


@pytest.mark.parametrize(
    ("field", "registered", "told_by", "told"),
    [
        ("timeout_seconds", [None, 7200.5, None], "target_timeouts", [None, {"a": 7200.5}, None]),
        ("keeps_conversation", [True, False, True], "one_question_targets", [None, ["a"], None]),
        ("cost", [None, HALF, QUARTER], "target_costs", [None, {"a": HALF}, {"a": QUARTER}]),
    ],
)
async def test_what_a_target_was_registered_with_last_is_told(
    driver: Driver, field: str, registered: list[object], told_by: str, told: list[object]
) -> None:
    session = await driver.open_session()
    for value, expected in zip(registered, told, strict=True):
        await driver.register("w", **{field: value})
        assert getattr(await driver.info(session), told_by) == expected


async def test_workers_that_restart_do_not_begin_a_new_difference(driver: Driver) -> None:
    await driver.register("old-1", fingerprint="a")
    await later(driver, 100, "old-1")
    await driver.register("new-1", fingerprint="b")
    for number in range(2, 5):
        await later(driver, 240)
        await driver.register(f"old-{number}", fingerprint="a")
        await driver.register(f"new-{number}", fingerprint="b")
    assert (await listed(driver))[1] == 3 * 240
    # What was served longer ago than a restart takes is another rollout.
    await later(driver, 600)
    await driver.register("old-5", fingerprint="a")
    await driver.register("new-5", fingerprint="b")
    assert (await listed(driver))[1] == 0


async def test_info_has_the_fingerprint_of_the_live_worker_that_changed_last(driver: Driver) -> None:
    await driver.register("one", fingerprint="a")
    session = await driver.open_session()

    async def told() -> dict[str, str] | None:
        return (await driver.info(session)).target_fingerprints

    assert await told() == {"a": "a"}
    await later(driver, 1, "one")
    await driver.register("two", fingerprint="b")
    assert await told() == {"a": "b"}
    await later(driver, LEASE_MS // 1000 + 1, "one")
    assert await told() == {"a": "a"}, "the worker that said b is gone"
    await later(driver, LEASE_MS // 1000 + 1)
    assert await told() == {"a": "b"}, "of no worker that lives, the last that was heard"
    await driver.register("one", fingerprint="c")
    assert await told() == {"a": "c"}
    await later(driver, 1, "one")
    await driver.register("three", fingerprint=None)
    assert await told() is None
    assert (await listed(driver))[1] is None, "of a worker that reports none, nothing is known"


async def group_slots(driver: Driver) -> dict[str, int]:
    return await driver.at_now(targets.group_slots)


async def other_slots(driver: Driver, *workers: str) -> list[dict[str, int] | None]:
    """What the answers to heartbeats of these workers, which are read together, say."""
    heartbeats = [(Heartbeat(worker_id=worker, incarnation=worker), leases.DEFAULT_USER) for worker in workers]
    return [answer.other_slots for answer in await driver.renew_all(*heartbeats)]


async def test_a_group_has_as_many_calls_as_the_live_worker_with_the_fewest_slots_takes(driver: Driver) -> None:
    await driver.register("w1", limit=10, worker_concurrency=8)
    assert await group_slots(driver) == {"a": 8}
    await driver.register("w2", limit=10, worker_concurrency=4)
    assert await group_slots(driver) == {"a": 4}
    await later(driver, LEASE_MS // 1000 + 1, "w1")
    assert await group_slots(driver) == {"a": 8}


async def test_a_worker_learns_the_free_slots_that_others_have_for_its_targets(driver: Driver) -> None:
    session = await driver.open_session(max_calls=20)
    await driver.register("w1", limit=10, worker_concurrency=8)
    assert await other_slots(driver, "w1") == [None]
    await driver.register("w2", limit=10, worker_concurrency=4)
    assert await other_slots(driver, "w1", "w2") == [{"a": 4}, {"a": 8}]
    await driver.admit_granted(session, "one", by="w2")
    assert await other_slots(driver, "w1") == [{"a": 3}]
    for number in range(7):
        await driver.admit_granted(session, f"n{number}")
    # The target's own limit has room for two more.
    assert await other_slots(driver, "w1") == [{"a": 2}]
    await driver.register("w2", limit=10, worker_concurrency=4, drain=DrainState.DRAINING)
    assert await other_slots(driver, "w1") == [None]

"""Which worker serves a target with which fingerprint: what `info` and the administrator's list say, on every store."""

from __future__ import annotations

from conformance.clocked_ledger_driver import ClockedLedgerDriver
from quintain.contracts.fleet import RegisteredTarget
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.ledger import DrainState, Heartbeat, Register, TargetCard
from quintain.contracts.money import CostTerms
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.ledger import leases, targets

LEASE_MS = DEFAULT_TIMINGS.lease_ms


async def register(ledger_driver: ClockedLedgerDriver, worker: str, fingerprint: str | None) -> None:
    card = TargetCard(name="a", provider="mock", max_concurrency=64, fingerprint=fingerprint)
    request = Register(worker_id=worker, incarnation=worker, targets=[card], protocol=PROTOCOL_VERSION)
    await ledger_driver.ledger.transact(
        lambda moment: leases.register_worker(ledger_driver.with_clock(moment).now, request)
    )


async def listed(ledger_driver: ClockedLedgerDriver) -> tuple[RegisteredTarget, int | None]:
    """The target, and for how many seconds its workers have differed."""
    found = await ledger_driver.ledger.transact(
        lambda moment: targets.list_targets(ledger_driver.with_clock(moment).now)
    )
    (target,) = found.targets
    return target, None if target.different_since is None else (found.now - target.different_since) // 1000


async def later(ledger_driver: ClockedLedgerDriver, seconds: int, *alive: str) -> None:
    """Let this time pass; these workers renew their leases."""
    ledger_driver.clock_ahead_ms += seconds * 1000
    for worker in alive:
        await ledger_driver.renew(worker)


async def test_workers_that_differ_are_known_with_the_time_since_they_do(ledger_driver: ClockedLedgerDriver) -> None:
    await register(ledger_driver, "old-1", "a")
    await register(ledger_driver, "old-2", "a")
    assert (await listed(ledger_driver))[1] is None
    await later(ledger_driver, 100, "old-1", "old-2")
    await register(ledger_driver, "new-1", "b")
    await later(ledger_driver, 60, "old-1", "old-2", "new-1")
    # A registration that is repeated, and more workers of either kind, begin no new difference.
    await register(ledger_driver, "new-1", "b")
    await register(ledger_driver, "new-2", "b")
    target, seconds = await listed(ledger_driver)
    assert (target.workers_by_fingerprint, seconds) == ({"b": ["new-1", "new-2"], "a": ["old-1", "old-2"]}, 60)
    session = await ledger_driver.open_session()
    info = await ledger_driver.info(session)
    assert {name: (info.now - since) // 1000 for name, since in (info.different_since or {}).items()} == {"a": 60}
    await later(ledger_driver, LEASE_MS // 1000 + 1, "new-1", "new-2")
    target, seconds = await listed(ledger_driver)
    assert (target.workers_by_fingerprint, seconds) == ({"b": ["new-1", "new-2"]}, None)
    assert (await ledger_driver.info(session)).different_since is None


async def test_the_time_limit_that_a_target_was_registered_with_last_is_known(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session()
    for seconds in (None, 7200.5, None):
        card = TargetCard(name="a", provider="mock", max_concurrency=64, timeout_seconds=seconds)
        request = Register(worker_id="w", incarnation="w", targets=[card], protocol=PROTOCOL_VERSION)
        await ledger_driver.ledger.transact(lambda moment, ask=request: leases.register_worker(moment.now, ask))
        timeouts = (await ledger_driver.info(session)).target_timeouts
        assert timeouts == (None if seconds is None else {"a": 7200.5})


async def test_the_targets_that_take_one_question_are_told_as_they_were_registered_last(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session()
    for keeps in (True, False, True):
        card = TargetCard(name="a", provider="mock", max_concurrency=64, keeps_conversation=keeps)
        request = Register(worker_id="w", incarnation="w", targets=[card], protocol=PROTOCOL_VERSION)
        await ledger_driver.ledger.transact(lambda moment, ask=request: leases.register_worker(moment.now, ask))
        assert (await ledger_driver.info(session)).one_question_targets == (None if keeps else ["a"])


async def test_what_the_calls_of_a_target_can_cost_is_told_as_it_was_registered_last(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session()
    for usd in (None, 0.5, 0.25):
        cost = None if usd is None else CostTerms(per_call_usd=usd)
        card = TargetCard(name="a", provider="mock", max_concurrency=64, cost=cost)
        request = Register(worker_id="w", incarnation="w", targets=[card], protocol=PROTOCOL_VERSION)
        await ledger_driver.ledger.transact(lambda moment, ask=request: leases.register_worker(moment.now, ask))
        assert (await ledger_driver.info(session)).target_costs == (None if cost is None else {"a": cost})


async def test_workers_that_restart_do_not_begin_a_new_difference(ledger_driver: ClockedLedgerDriver) -> None:
    await register(ledger_driver, "old-1", "a")
    await later(ledger_driver, 100, "old-1")
    await register(ledger_driver, "new-1", "b")
    for number in range(2, 5):
        await later(ledger_driver, 240)
        await register(ledger_driver, f"old-{number}", "a")
        await register(ledger_driver, f"new-{number}", "b")
    assert (await listed(ledger_driver))[1] == 3 * 240
    # What was served longer ago than a restart takes is another rollout.
    await later(ledger_driver, 600)
    await register(ledger_driver, "old-5", "a")
    await register(ledger_driver, "new-5", "b")
    assert (await listed(ledger_driver))[1] == 0


async def test_info_has_the_fingerprint_of_the_live_worker_that_changed_last(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    await register(ledger_driver, "one", "a")
    session = await ledger_driver.open_session()

    async def told() -> dict[str, str] | None:
        return (await ledger_driver.info(session)).target_fingerprints

    assert await told() == {"a": "a"}
    await later(ledger_driver, 1, "one")
    await register(ledger_driver, "two", "b")
    assert await told() == {"a": "b"}
    await later(ledger_driver, LEASE_MS // 1000 + 1, "one")
    assert await told() == {"a": "a"}, "the worker that said b is gone"
    await later(ledger_driver, LEASE_MS // 1000 + 1)
    assert await told() == {"a": "b"}, "of no worker that lives, the last that was heard"
    await register(ledger_driver, "one", "c")
    assert await told() == {"a": "c"}
    await later(ledger_driver, 1, "one")
    await register(ledger_driver, "three", None)
    assert await told() is None
    assert (await listed(ledger_driver))[1] is None, "of a worker that reports none, nothing is known"


async def register_slots(ledger_driver: ClockedLedgerDriver, worker: str, slots: int, *, drain: str = "able") -> None:
    card = TargetCard(name="a", provider="mock", max_concurrency=10, worker_concurrency=slots)
    request = Register(
        worker_id=worker, incarnation=worker, targets=[card], protocol=PROTOCOL_VERSION, drain=DrainState(drain)
    )
    await ledger_driver.ledger.transact(
        lambda moment: leases.register_worker(ledger_driver.with_clock(moment).now, request)
    )


async def group_slots(ledger_driver: ClockedLedgerDriver) -> dict[str, int]:
    return await ledger_driver.ledger.transact(lambda moment: targets.group_slots(ledger_driver.with_clock(moment).now))


async def other_slots(ledger_driver: ClockedLedgerDriver, *workers: str) -> list[dict[str, int] | None]:
    """What the answers to heartbeats of these workers, which are read together, say."""
    heartbeats = [(Heartbeat(worker_id=worker, incarnation=worker), leases.DEFAULT_USER) for worker in workers]
    renewed = await ledger_driver.ledger.transact(
        lambda moment: leases.renew_leases(ledger_driver.with_clock(moment).now, heartbeats, LEASE_MS)
    )
    return [answer.other_slots for answer in renewed]


async def test_a_group_has_as_many_calls_as_the_live_worker_with_the_fewest_slots_takes(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    await register_slots(ledger_driver, "w1", 8)
    assert await group_slots(ledger_driver) == {"a": 8}
    await register_slots(ledger_driver, "w2", 4)
    assert await group_slots(ledger_driver) == {"a": 4}
    await later(ledger_driver, LEASE_MS // 1000 + 1, "w1")
    assert await group_slots(ledger_driver) == {"a": 8}


async def test_a_worker_learns_the_free_slots_that_others_have_for_its_targets(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session(max_calls=20)
    await register_slots(ledger_driver, "w1", 8)
    assert await other_slots(ledger_driver, "w1") == [None]
    await register_slots(ledger_driver, "w2", 4)
    assert await other_slots(ledger_driver, "w1", "w2") == [{"a": 4}, {"a": 8}]
    await ledger_driver.admit_granted(session, "one", by="w2")
    assert await other_slots(ledger_driver, "w1") == [{"a": 3}]
    for number in range(7):
        await ledger_driver.admit_granted(session, f"n{number}")
    # The target's own limit has room for two more.
    assert await other_slots(ledger_driver, "w1") == [{"a": 2}]
    await register_slots(ledger_driver, "w2", 4, drain="draining")
    assert await other_slots(ledger_driver, "w1") == [None]

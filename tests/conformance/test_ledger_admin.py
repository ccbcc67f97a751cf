"""What an administrator does to targets and workers: the same on every store."""

from __future__ import annotations

import pytest

from quintain.contracts.fleet import SetUser
from quintain.contracts.ledger import AttemptOutcome, DrainState
from quintain.contracts.session import PauseTarget, ResumeTarget, TargetPause, WorkerList
from quintain.errors import BadRequest, ForbiddenTarget, Unauthorized, UnknownTarget
from quintain_metadata.ledger import leases, targets
from support.ledger_driver import Driver


async def pause(driver: Driver, seconds: float, target: str = "a") -> TargetPause:
    return await driver.at_now(targets.pause_target, PauseTarget(target=target, for_seconds=seconds))


async def resume(driver: Driver, target: str = "a") -> TargetPause:
    return await driver.at_now(targets.resume_target, ResumeTarget(target=target))


async def drain(driver: Driver, worker: str) -> WorkerList:
    return await driver.at_now(leases.request_drain, worker)


async def limit(driver: Driver, user: str, *names: str) -> None:
    """Let this user's workers serve these targets only; none: any."""
    await driver.at_now(leases.set_user, SetUser(user=user, targets=[*names] or None))


async def live_workers(driver: Driver) -> set[str]:
    """The processes with a lease, but for that of the driver itself."""
    told = await driver.at_now(leases.list_workers)
    return {one.incarnation for one in told.workers if one.lease_until > told.now} - {"w1"}


async def drain_requested(driver: Driver, worker: str, **fields: object) -> bool:
    """Whether the answer to this heartbeat asks the worker to drain."""
    return (await driver.renew(worker, **fields)).drain is True  # type: ignore[arg-type]


async def drain_states(driver: Driver) -> dict[str, tuple[DrainState, int]]:
    """How far each known process is, and what it runs."""
    told = await driver.at_now(leases.list_workers)
    return {one.incarnation: (one.drain, one.running) for one in told.workers}


async def test_a_target_that_an_administrator_pauses_is_so_until_it_is_resumed(driver: Driver) -> None:
    paused = await pause(driver, 600)
    assert paused.paused_until == paused.now + 600_000
    assert await driver.paused() == {"a": paused.paused_until}
    assert (await resume(driver)).paused_until is None
    assert await driver.paused() == {}


async def test_of_a_providers_pause_and_an_administrators_the_later_end_counts_and_resume_ends_both(
    driver: Driver,
) -> None:
    await driver.pause("a", 20_000)
    longer = await pause(driver, 60)
    assert longer.paused_until == longer.now + 60_000
    assert (await pause(driver, 1)).paused_until == longer.paused_until
    assert await driver.pause("a", 30_000) == longer.paused_until
    await driver.register("w3")
    assert await driver.paused() == {"a": longer.paused_until}, "registered anew it is as paused as before"
    await resume(driver)
    assert await driver.paused() == {}
    # What the provider asks for afterwards is a new pause.
    await driver.pause("a", 5_000)
    assert list(await driver.paused()) == ["a"]


async def test_an_unknown_target_is_told_with_those_there_are(driver: Driver) -> None:
    for unknown in (pause(driver, 60, "b"), resume(driver, "b")):
        with pytest.raises(UnknownTarget, match=r"^Unknown target 'b'\. Available: a") as refusal:
            await unknown
        assert "a" in (refusal.value.available_targets or [])


async def test_targets_are_in_the_order_of_the_session_else_of_their_first_registration(driver: Driver) -> None:
    before = (await driver.info(await driver.open_session())).available_targets
    await driver.register("other", names="zyx")
    await driver.register("again", names="xyz")
    assert (await driver.info(await driver.open_session())).available_targets == [*before, *"zyx"]
    narrow = await driver.open_session(allowed_targets=["y", "later", "a", "y", "z"])
    assert (await driver.info(narrow)).available_targets == ["y", "a", "z"]
    child = await driver.open_session(parent=narrow)
    assert (await driver.info(child)).available_targets == ["y", "a", "z"]


async def test_a_worker_hears_that_it_is_to_drain_until_it_says_that_it_does(driver: Driver) -> None:
    for worker in ("one", "other"):
        assert (await driver.register(worker, drain=DrainState.SUPPORTED)).drain is None
        assert not await drain_requested(driver, worker)
    session = await driver.open_session()
    grant = await driver.admit_granted(session, "r1", by="one")
    (asked,) = (await drain(driver, "one")).workers
    assert (asked.worker_id, asked.drain, asked.running) == ("one", DrainState.REQUESTED, 1)
    assert [await drain_requested(driver, "one") for _ in range(2)] == [True, True]
    assert (
        await driver.register("one", drain=DrainState.SUPPORTED)
    ).drain is True  # registered again, it is asked as before
    assert not await drain_requested(driver, "one", drain=DrainState.DRAINING)
    (draining,) = (await drain(driver, "one")).workers  # asked again, nothing begins anew
    assert (draining.drain, draining.running) == (DrainState.DRAINING, 1)
    await driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.RESULT)
    await drain_requested(driver, "one", drain=DrainState.DRAINED)
    await drain_requested(driver, "one", drain=DrainState.DRAINING)  # a word that comes late takes nothing back
    assert not await drain_requested(driver, "other")
    assert await drain_states(driver) == {
        "one": (DrainState.DRAINED, 0),
        "other": (DrainState.SUPPORTED, 0),
        "w1": (DrainState.UNSUPPORTED, 0),
    }
    driver.clock_ahead_ms = 16_000
    assert await drain_states(driver) == {"one": (DrainState.DRAINED, 0)}


async def test_a_process_that_follows_under_the_same_id_is_not_the_one_that_was_asked(driver: Driver) -> None:
    await driver.register("first", worker_id="pod-1", drain=DrainState.SUPPORTED)
    await drain(driver, "pod-1")
    await driver.register("second", worker_id="pod-1", drain=DrainState.SUPPORTED)
    assert await drain_requested(driver, "first", worker_id="pod-1")
    assert not await drain_requested(driver, "second", worker_id="pod-1")
    told = await drain_states(driver)
    assert (told["first"][0], told["second"][0]) == (DrainState.REQUESTED, DrainState.SUPPORTED)


async def test_who_cannot_be_asked_to_drain_is_told_with_the_reason_and_with_those_who_live(driver: Driver) -> None:
    await driver.register("embedded", drain=DrainState.UNSUPPORTED)
    for unable in ("embedded", "w1"):
        with pytest.raises(BadRequest, match=f"Worker '{unable}' cannot be drained .* `quintain up`"):
            await drain(driver, unable)
    with pytest.raises(BadRequest, match="No worker 'nobody' is alive; there are embedded, w1$"):
        await drain(driver, "nobody")
    assert not await drain_requested(driver, "embedded")
    driver.clock_ahead_ms = 16_000
    with pytest.raises(BadRequest, match="No worker 'w1' is alive; none is: start one with `quintain serve worker`"):
        await drain(driver, "w1")


async def test_a_users_workers_register_the_targets_of_its_record_alone(driver: Driver) -> None:
    await driver.register("echo", names="e")
    await limit(driver, "worker-l", "l", "m")
    await limit(driver, "other", "e")
    await driver.register("llama", names="l", user="worker-l")
    with pytest.raises(ForbiddenTarget, match="worker-l"):
        await driver.register("again", names="le", user="worker-l")
    assert await live_workers(driver) == {"echo", "llama"}
    # A user without a record serves any.
    await limit(driver, "worker-l")
    await driver.register("again", names="le", user="worker-l")


async def test_a_worker_that_serves_more_than_its_users_new_record_renews_no_lease(driver: Driver) -> None:
    await driver.register("both", names="el", user="worker-l")
    await limit(driver, "worker-l", "l")
    with pytest.raises(ForbiddenTarget):
        await driver.renew("both", user="worker-l")


async def test_a_user_with_a_record_reaches_no_worker_of_another_user(driver: Driver) -> None:
    await driver.register("echo", names="e")
    await limit(driver, "worker-l", "l")
    with pytest.raises(Unauthorized):
        await driver.renew("echo", user="worker-l")
    await driver.register("false", worker_id="echo", names="l", sole=True, user="worker-l")
    assert await live_workers(driver) == {"echo", "false"}
    await driver.register("new", worker_id="echo", names="l", sole=True, user="worker-l")
    assert await live_workers(driver) == {"echo", "new"}

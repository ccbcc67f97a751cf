"""What an administrator does to targets and workers: the same on every store."""

from __future__ import annotations

import pytest

from conformance.clocked_ledger_driver import ClockedLedgerDriver
from quintain.contracts.fleet import SetUser
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.ledger import AttemptOutcome, DrainState, Heartbeat, LeaseRenewed, Register, TargetCard
from quintain.contracts.session import PauseTarget, ResumeTarget, TargetPause, WorkerList
from quintain.errors import BadRequest, ForbiddenTarget, Unauthorized, UnknownTarget
from quintain_metadata.ledger import leases, targets
from quintain_metadata.ledger.decisions import Deferred


async def pause(ledger_driver: ClockedLedgerDriver, seconds: float, target: str = "a") -> TargetPause:
    ask = PauseTarget(target=target, for_seconds=seconds)
    return await ledger_driver.ledger.transact(
        lambda moment: targets.pause_target(ledger_driver.with_clock(moment).now, ask)
    )


async def resume(ledger_driver: ClockedLedgerDriver, target: str = "a") -> TargetPause:
    ask = ResumeTarget(target=target)
    return await ledger_driver.ledger.transact(
        lambda moment: targets.resume_target(ledger_driver.with_clock(moment).now, ask)
    )


async def drain(ledger_driver: ClockedLedgerDriver, worker: str) -> WorkerList:
    return await ledger_driver.ledger.transact(
        lambda moment: leases.request_drain(ledger_driver.with_clock(moment).now, worker)
    )


async def register_worker(
    ledger_driver: ClockedLedgerDriver,
    worker: str,
    *,
    incarnation: str = "",
    able: DrainState | None = DrainState.SUPPORTED,
    names: str = "a",
    sole: bool = False,
    user: str = leases.DEFAULT_USER,
) -> LeaseRenewed:
    cards = [TargetCard(name=name, provider="mock", max_concurrency=64) for name in names]
    ask = Register(
        worker_id=worker,
        incarnation=incarnation or worker,
        targets=cards,
        drain=able,
        sole=sole,
        protocol=PROTOCOL_VERSION,
    )
    return await ledger_driver.ledger.transact(
        lambda moment: leases.register_worker(ledger_driver.with_clock(moment).now, ask, user=user)
    )


async def drain_requested(
    ledger_driver: ClockedLedgerDriver, worker: str, *, incarnation: str = "", drain: DrainState | None = None
) -> bool:
    """Whether this heartbeat's answer asks the worker to drain."""
    ask = Heartbeat(worker_id=worker, incarnation=incarnation or worker, drain=drain)
    return (
        await ledger_driver.ledger.transact(
            lambda moment: leases.renew_lease(ledger_driver.with_clock(moment).now, ask)
        )
    ).drain is True


async def drain_states(ledger_driver: ClockedLedgerDriver) -> dict[str, tuple[DrainState, int]]:
    """How far each known process is, and what it runs."""
    told = await ledger_driver.ledger.transact(lambda moment: leases.list_workers(ledger_driver.with_clock(moment).now))
    return {one.incarnation: (one.drain, one.running) for one in told.workers}


async def test_a_target_that_is_paused_by_an_administrator_starts_nothing_until_it_is_resumed(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session()
    paused = await pause(ledger_driver, 600)
    assert paused.paused_until == paused.now + 600_000
    assert (await ledger_driver.renew("w1")).paused == {"a": paused.paused_until}
    assert isinstance(await ledger_driver.admit(session, "r1"), Deferred)
    assert (await resume(ledger_driver)).paused_until is None
    assert (await ledger_driver.renew("w1")).paused is None
    await ledger_driver.admit_granted(session, "r1")


async def test_of_a_providers_pause_and_an_administrators_the_later_end_counts_and_resume_ends_both(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    await ledger_driver.renew("w1", pauses={"a": 20_000})
    longer = await pause(ledger_driver, 60)
    assert longer.paused_until == longer.now + 60_000
    assert (await pause(ledger_driver, 1)).paused_until == longer.paused_until
    assert (await ledger_driver.renew("w1", pauses={"a": 30_000})).paused == {"a": longer.paused_until}
    await resume(ledger_driver)
    assert (await ledger_driver.renew("w1")).paused is None
    # What the provider asks for afterwards is a new pause.
    assert list((await ledger_driver.renew("w1", pauses={"a": 5_000})).paused or {}) == ["a"]


async def test_an_unknown_target_is_told_with_those_there_are(ledger_driver: ClockedLedgerDriver) -> None:
    for unknown in (pause(ledger_driver, 60, "b"), resume(ledger_driver, "b")):
        with pytest.raises(UnknownTarget, match=r"^Unknown target 'b'\. Available: a") as refusal:
            await unknown
        assert "a" in (refusal.value.available_targets or [])


async def test_targets_are_in_the_order_of_the_session_else_of_their_first_registration(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    before = (await ledger_driver.info(await ledger_driver.open_session())).available_targets
    await register_worker(ledger_driver, "other", names="zyx")
    await register_worker(ledger_driver, "again", names="xyz")
    assert (await ledger_driver.info(await ledger_driver.open_session())).available_targets == [*before, *"zyx"]
    narrow = await ledger_driver.open_session(allowed_targets=["y", "later", "a", "y", "z"])
    assert (await ledger_driver.info(narrow)).available_targets == ["y", "a", "z"]
    child = await ledger_driver.open_session(parent=narrow)
    assert (await ledger_driver.info(child)).available_targets == ["y", "a", "z"]


async def test_a_worker_hears_that_it_is_to_drain_until_it_says_that_it_does(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    for worker in ("one", "other"):
        assert (await register_worker(ledger_driver, worker)).drain is None
        assert not await drain_requested(ledger_driver, worker)
    session = await ledger_driver.open_session()
    grant = await ledger_driver.admit_granted(session, "r1", by="one")
    (asked,) = (await drain(ledger_driver, "one")).workers
    assert (asked.worker_id, asked.drain, asked.running) == ("one", DrainState.REQUESTED, 1)
    assert [await drain_requested(ledger_driver, "one") for _ in range(2)] == [True, True]
    assert (await register_worker(ledger_driver, "one")).drain is True  # registered again, it is asked as before
    assert not await drain_requested(ledger_driver, "one", drain=DrainState.DRAINING)
    (draining,) = (await drain(ledger_driver, "one")).workers  # asked again, nothing begins anew
    assert (draining.drain, draining.running) == (DrainState.DRAINING, 1)
    await ledger_driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.RESULT)
    await drain_requested(ledger_driver, "one", drain=DrainState.DRAINED)
    await drain_requested(ledger_driver, "one", drain=DrainState.DRAINING)  # a word that comes late takes nothing back
    assert not await drain_requested(ledger_driver, "other")
    assert await drain_states(ledger_driver) == {
        "one": (DrainState.DRAINED, 0),
        "other": (DrainState.SUPPORTED, 0),
        "w1": (DrainState.UNSUPPORTED, 0),
    }
    ledger_driver.clock_ahead_ms = 16_000
    assert await drain_states(ledger_driver) == {"one": (DrainState.DRAINED, 0)}


async def test_a_process_that_follows_under_the_same_id_is_not_the_one_that_was_asked(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    await register_worker(ledger_driver, "pod-1", incarnation="first")
    await drain(ledger_driver, "pod-1")
    await register_worker(ledger_driver, "pod-1", incarnation="second")
    assert await drain_requested(ledger_driver, "pod-1", incarnation="first")
    assert not await drain_requested(ledger_driver, "pod-1", incarnation="second")
    told = await drain_states(ledger_driver)
    assert (told["first"][0], told["second"][0]) == (DrainState.REQUESTED, DrainState.SUPPORTED)


async def test_who_cannot_be_asked_to_drain_is_told_with_the_reason_and_with_those_who_live(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    await register_worker(ledger_driver, "embedded", able=DrainState.UNSUPPORTED)
    for unable in ("embedded", "w1"):
        with pytest.raises(BadRequest, match=f"Worker '{unable}' cannot be drained .* `quintain up`"):
            await drain(ledger_driver, unable)
    with pytest.raises(BadRequest, match="No worker 'nobody' is alive; there are embedded, w1$"):
        await drain(ledger_driver, "nobody")
    assert not await drain_requested(ledger_driver, "embedded")
    ledger_driver.clock_ahead_ms = 16_000
    with pytest.raises(BadRequest, match="No worker 'w1' is alive; none is: start one with `quintain serve worker`"):
        await drain(ledger_driver, "w1")


async def limit(ledger_driver: ClockedLedgerDriver, user: str, *names: str) -> None:
    """Let this user's workers serve these targets only; none: any."""
    ask = SetUser(user=user, targets=[*names] or None)
    await ledger_driver.ledger.transact(lambda moment: leases.set_user(moment.now, ask))


async def beat(
    ledger_driver: ClockedLedgerDriver, incarnation: str, user: str, pauses: dict[str, int] | None = None
) -> LeaseRenewed:
    ask = Heartbeat(worker_id=incarnation, incarnation=incarnation, pauses=pauses)
    return await ledger_driver.ledger.transact(
        lambda moment: leases.renew_lease(ledger_driver.with_clock(moment).now, ask, user=user)
    )


async def test_a_users_workers_register_and_pause_the_targets_of_its_record_alone(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    await register_worker(ledger_driver, "echo", names="e")
    await limit(ledger_driver, "worker-l", "l", "m")
    await limit(ledger_driver, "other", "e")
    await register_worker(ledger_driver, "llama", names="l", user="worker-l")
    with pytest.raises(ForbiddenTarget, match="worker-l"):
        await register_worker(ledger_driver, "again", names="le", user="worker-l")
    assert await live_workers(ledger_driver) == {"echo", "llama"}
    with pytest.raises(ForbiddenTarget):
        await beat(ledger_driver, "llama", "worker-l", {"e": 60_000})
    assert ((await beat(ledger_driver, "llama", "worker-l", {"l": 60_000})).paused or {}).keys() == {"l"}
    # A user without a record serves any.
    await limit(ledger_driver, "worker-l")
    assert ((await beat(ledger_driver, "llama", "worker-l", {"e": 60_000})).paused or {}).keys() == {"e", "l"}


async def live_workers(ledger_driver: ClockedLedgerDriver) -> set[str]:
    """The processes with a lease, but for that of the driver itself."""
    told = await ledger_driver.ledger.transact(lambda moment: leases.list_workers(ledger_driver.with_clock(moment).now))
    return {one.incarnation for one in told.workers if one.lease_until > told.now} - {"w1"}


async def test_a_worker_that_serves_more_than_its_users_new_record_renews_no_lease(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    await register_worker(ledger_driver, "both", names="el", user="worker-l")
    await limit(ledger_driver, "worker-l", "l")
    with pytest.raises(ForbiddenTarget):
        await beat(ledger_driver, "both", "worker-l")


async def test_a_user_with_a_record_reaches_no_worker_of_another_user(ledger_driver: ClockedLedgerDriver) -> None:
    await register_worker(ledger_driver, "echo", names="e")
    await limit(ledger_driver, "worker-l", "l")
    with pytest.raises(Unauthorized):
        await beat(ledger_driver, "echo", "worker-l")
    await register_worker(ledger_driver, "echo", incarnation="false", names="l", sole=True, user="worker-l")
    assert await live_workers(ledger_driver) == {"echo", "false"}
    await register_worker(ledger_driver, "echo", incarnation="new", names="l", sole=True, user="worker-l")
    assert await live_workers(ledger_driver) == {"echo", "new"}

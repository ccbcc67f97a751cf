"""One owner of each quota among the services on a ledger of either kind, whichever of them dies, and whenever."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from quintain.contracts.fleet import SetQuota
from quintain.contracts.ledger import AttemptOutcome
from quintain.contracts.quota import RateReport, TryOutcome, TryReport
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.quotas import quota_rows
from quintain_metadata.store.base import execute
from support.ledger_driver import Driver, admit_request
from support.quota_services import ClockedLedger, QuotaFleet, QuotaService

LIMIT, CALLS = 2, 6


@pytest.fixture
async def fleet(driver: Driver) -> AsyncIterator[QuotaFleet]:
    fleet = QuotaFleet(ClockedLedger(driver.ledger), await driver.open_session(max_calls=100))
    await fleet.register(start=LIMIT)
    yield fleet


async def pass_time(fleet: QuotaFleet, seconds: float) -> None:
    """Time passes, in which the living services sweep each second, and the worker renews its lease."""
    for _ in range(round(seconds)):
        fleet.ledger.ahead_ms += 1000
        await fleet.register(start=LIMIT)
        for service in fleet.living():
            await service.sweep()


async def repeat_waiting(fleet: QuotaFleet) -> None:
    """The worker repeats what waits, to a service after another."""
    for number, admit in enumerate(fleet.waiting()):
        await fleet.send(fleet.living()[number % len(fleet.living())], admit)


async def settle_one(fleet: QuotaFleet, number: int) -> None:
    if fleet.running:
        await fleet.settle(fleet.living()[number % len(fleet.living())], min(fleet.running))


async def admit_one(fleet: QuotaFleet, number: int) -> None:
    admit = admit_request(fleet.session, f"r{len(fleet.asked)}", attempt_id=f"attempt-{len(fleet.asked)}")
    await fleet.send(fleet.living()[number % len(fleet.living())], admit)


async def sweep_one(fleet: QuotaFleet, number: int) -> None:
    await fleet.living()[number % len(fleet.living())].sweep()


Step = Callable[[QuotaFleet, int], Awaitable[None]]

#: Two calls run, others wait, and some end at either service, with sweeps between them.
STEPS: list[Step] = [
    *(admit_one, admit_one, admit_one, admit_one, settle_one, sweep_one, settle_one, admit_one),
    *(sweep_one, sweep_one, settle_one, admit_one),
]


async def run_to_the_end(fleet: QuotaFleet) -> None:
    for number in range(3 * CALLS):
        await repeat_waiting(fleet)
        await settle_one(fleet, number)
        await pass_time(fleet, 1)


@pytest.mark.parametrize("killed_after", range(len(STEPS)))
async def test_whenever_the_owner_dies_the_limit_holds_and_every_call_runs_once(
    fleet: QuotaFleet, killed_after: int
) -> None:
    await fleet.start_service("one")
    await fleet.start_service("two")
    for number, step in enumerate(STEPS):
        await step(fleet, number)
        if number == killed_after:
            owner = fleet.owner()
            assert owner is not None
            owner.is_alive = False
            await fleet.start_service("three")
            await pass_time(fleet, DEFAULT_TIMINGS.gap_seconds + DEFAULT_TIMINGS.sweep_seconds)
            assert fleet.owner() is not None
            await repeat_waiting(fleet)
            assert len(fleet.running) == await fleet.count_running() == min(LIMIT, len(fleet.running | waits(fleet)))
        assert await fleet.count_running() <= LIMIT
    await run_to_the_end(fleet)
    assert fleet.most_running == LIMIT
    assert (fleet.waiting(), fleet.running, await fleet.count_running()) == ([], set(), 0)
    (state,) = fleet.living()[0].queue.quotas.states()
    assert (state.in_flight, state.waiting) == (0, 0)
    assert sum(answer.is_grant for answer in fleet.answers.values()) == len(fleet.asked) == CALLS


def waits(fleet: QuotaFleet) -> set[str]:
    return {admit.attempt_id for admit in fleet.waiting()}


async def two_services(fleet: QuotaFleet) -> tuple[QuotaService, QuotaService]:
    """The owner, and another service."""
    owner, other = await fleet.start_service("one"), await fleet.start_service("two")
    assert (owner.is_owner, other.is_owner) == (True, False)
    return owner, other


async def test_an_owner_that_was_frozen_grants_nothing_when_it_wakes(fleet: QuotaFleet) -> None:
    frozen, other = await two_services(fleet)
    for number in range(4):
        await admit_one(fleet, number)
    frozen.is_alive = False
    await pass_time(fleet, DEFAULT_TIMINGS.gap_seconds + DEFAULT_TIMINGS.sweep_seconds)
    assert other.is_owner
    frozen.is_alive = True
    assert frozen.is_owner, "it does not know"
    # It frees what it holds, and has two waiting calls of its own.
    for attempt_id in sorted(fleet.running):
        frozen.queue.quotas.forget(attempt_id)
    await frozen.queue.grant_quotas()
    await admit_one(fleet, 0)
    assert (len(fleet.running), await fleet.count_running()) == (LIMIT, LIMIT)
    assert not frozen.is_owner
    await frozen.sweep()
    await run_to_the_end(fleet)
    assert (fleet.most_running, fleet.waiting()) == (LIMIT, [])


async def test_an_owner_that_no_message_reaches_loses_its_quotas(fleet: QuotaFleet) -> None:
    cut_off, other = await two_services(fleet)
    cut_off.is_connected = False
    await fleet.send(other, admit_request(fleet.session, "r1"))
    assert not fleet.running
    await pass_time(fleet, DEFAULT_TIMINGS.gap_seconds + DEFAULT_TIMINGS.sweep_seconds)
    assert (cut_off.is_owner, other.is_owner) == (False, True)
    await repeat_waiting(fleet)
    assert len(fleet.running) == 1


async def test_a_service_that_stops_leaves_its_quotas_to_the_next_sweep(fleet: QuotaFleet) -> None:
    owner, other = await two_services(fleet)
    await owner.queue.quotas.stop()
    owner.is_alive = False
    await other.sweep()
    assert other.is_owner


async def test_the_next_owner_goes_on_with_what_was_learned(fleet: QuotaFleet) -> None:
    await fleet.register(start=8, min=1, max=8, adaptive=True)
    owner, other = await two_services(fleet)
    for number in range(8):
        await admit_one(fleet, number)
    assert len(fleet.running) == 8
    slow_down = TryReport(outcome=TryOutcome.THROTTLED, rates=RateReport(retry_after_seconds=60))
    await fleet.settle(other, min(fleet.running), AttemptOutcome.THROTTLED, slow_down)
    (before,) = owner.queue.quotas.states()
    assert (before.limit, before.in_flight, before.throttled) == (5, 7, 1), "told by the other service"
    await owner.sweep()
    await other.sweep()
    assert other.queue.quotas.states() == owner.queue.quotas.states(), "one truth"
    owner.is_alive = False
    fleet.ledger.ahead_ms += 6_000
    await other.sweep()
    (after,) = other.queue.quotas.states()
    assert (after.limit, after.in_flight, after.throttled) == (5, 7, 1)
    assert after.paused_ms is not None
    assert 53_000 <= after.paused_ms <= 54_000
    assert (after.last_cut, before.last_cut) != (None, None)


async def test_a_rate_is_not_overspent_by_a_new_owner(fleet: QuotaFleet) -> None:
    await fleet.register(start=64, max=64, requests_per_minute=60)
    _, other = await two_services(fleet)
    for number in range(8):
        await admit_one(fleet, number)
    assert len(fleet.running) == 1, "a second's worth"
    fleet.services["one"].is_alive = False
    fleet.ledger.ahead_ms += 6_000
    await other.sweep()
    await repeat_waiting(fleet)
    assert len(fleet.running) == 1, "how much of the six seconds was used is not known"
    fleet.ledger.ahead_ms += 1_100
    await fleet.grant()
    assert len(fleet.running) == 2


async def test_a_target_that_was_registered_just_now_is_read_before_its_calls_are_decided(fleet: QuotaFleet) -> None:
    _, other = await two_services(fleet)
    await fleet.register("b", start=LIMIT)
    await fleet.send(other, *(admit_request(fleet.session, f"r{number}", target="b") for number in range(3)))
    assert len(fleet.running) == LIMIT


async def test_what_is_set_at_any_service_holds_at_the_owner_after_its_next_sweep(fleet: QuotaFleet) -> None:
    owner, other = await two_services(fleet)
    for number in range(4):
        await admit_one(fleet, number)
    request = SetQuota(quota="team", concurrency=3, reason="more was bought")
    await fleet.ledger.transact(lambda moment: quota_rows.set_quota(moment, request))
    await other.queue.quotas.refresh()
    await owner.sweep()
    assert len(fleet.running) == 3
    await other.sweep()
    assert [state.limit for state in other.queue.quotas.states()] == [3]


async def test_what_another_release_has_learned_keeps_no_service_from_taking_its_quota(fleet: QuotaFleet) -> None:
    owner, other = await two_services(fleet)
    await admit_one(fleet, 0)
    owner.is_alive = False
    fleet.ledger.ahead_ms += 6_000
    state = '{"limits": {"limits": ["?"]}}'
    await fleet.ledger.transact(lambda _: execute("UPDATE quota_owner SET state = ?", state))
    await other.sweep()
    assert other.is_owner
    assert [(each.limit, each.in_flight) for each in other.queue.quotas.states()] == [(LIMIT, 1)]

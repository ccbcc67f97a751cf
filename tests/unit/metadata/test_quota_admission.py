"""Calls of targets with a quota: which start, which wait, and that no place is lost or given twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.contracts.fleet import SetQuota
from quintain.contracts.ledger import AttemptOutcome
from quintain.contracts.quota import RateReport, TryOutcome, TryReport
from quintain.errors import BadRequest
from quintain_metadata.quotas import quota_rows
from quintain_metadata.store.base import execute
from support.ledger_driver import settle_request
from support.queue_driver import ANSWERED, QueueDriver, memory_queue_driver


@pytest.fixture
async def desk() -> AsyncIterator[QueueDriver]:
    async with memory_queue_driver() as desk:
        await desk.register("a", "b")
        yield desk


async def test_what_the_ledger_refuses_or_replays_needs_no_place(desk: QueueDriver) -> None:
    small = await desk.driver.open_session(max_calls=1)
    await desk.admit("r0", session=small)
    await desk.settle(desk.attempt_of("r0"))
    await desk.admit("r1", "r2")
    assert await desk.admit("r9", session=small) == ["budget_exhausted"]
    assert await desk.admit("r0", session=small) == ["replayed"]
    assert await desk.admit("r8", token="qs_none") == ["unauthorized"]
    assert await desk.admit("r1", body_sha256="other") == ["request_conflict"]
    assert (desk.state().in_flight, desk.state().waiting) == (2, 0)


async def test_a_place_that_the_ledger_does_not_grant_is_given_back(desk: QueueDriver) -> None:
    small = await desk.driver.open_session(max_calls=0)
    assert await desk.admit("r1", session=small) == ["budget_exhausted"]
    assert desk.state().in_flight == 0
    await desk.admit("r1")
    await desk.admit("r1", incarnation="w1")  # it joins the first, and takes no place
    assert (desk.state().in_flight, desk.state().waiting) == (1, 0)


async def test_a_new_service_counts_what_runs(desk: QueueDriver) -> None:
    admits = [desk.request(name) for name in ("r1", "r2")]
    await desk.send(*admits)
    desk.restart()
    await desk.queue.quotas.refresh()
    assert await desk.admit("r3") == ["waits"]
    assert await desk.send(*admits) == ["granted", "granted"]
    assert desk.state().in_flight == 2
    await desk.settle(admits[0].attempt_id)
    assert desk.order[-1] == "r3"


async def test_a_lost_workers_places_are_free_after_the_next_sweep(desk: QueueDriver) -> None:
    await desk.register("a", incarnation="w2")
    await desk.admit("r1", "r2", incarnation="w2")
    assert await desk.admit("r3") == ["waits"]
    for _ in range(3):
        await desk.sweep()
    assert desk.order == ["r1", "r2"]
    await desk.driver.expire_lease("w2")
    await desk.sweep()
    assert desk.order == ["r1", "r2", "r3"]
    assert desk.state().in_flight == 1


async def test_a_report_of_a_call_that_another_service_admitted_is_learned_from(desk: QueueDriver) -> None:
    admit = desk.request("r1")
    await desk.driver.ask(admit)
    desk.asked[admit.attempt_id] = desk.session, admit
    await desk.settle(admit.attempt_id, AttemptOutcome.RETRY, TryReport(outcome=TryOutcome.THROTTLED))
    assert (desk.state().in_flight, desk.state().throttled) == (0, 1)
    await desk.settle(admit.attempt_id, AttemptOutcome.RETRY, TryReport(outcome=TryOutcome.THROTTLED))
    assert desk.state().throttled == 1


async def test_what_gave_up_waits_no_more(desk: QueueDriver) -> None:
    await desk.admit("r1", "r2", "r3", "r4")
    await desk.settle(desk.attempt_of("r3"), AttemptOutcome.NEVER_SENT, None)
    assert desk.state().waiting == 1
    await desk.settle(desk.attempt_of("r1"))
    assert desk.order == ["r1", "r2", "r4"]


async def test_a_throttled_call_waits_until_its_provider_takes_calls_again(desk: QueueDriver) -> None:
    await desk.admit("r1")
    report = TryReport(outcome=TryOutcome.THROTTLED, rates=RateReport(retry_after_seconds=30))
    await desk.settle(desk.attempt_of("r1"), AttemptOutcome.RETRY, report)
    assert await desk.admit("r1") == ["waits"]
    assert desk.state().throttled == 1
    due = desk.due_seconds()
    assert 0 < due <= 31
    desk.now += due + 0.01
    await desk.queue.ask_waiting()
    assert desk.order == ["r1", "r1"]
    info = await desk.driver.info(desk.session)
    assert info.call_count == 1


async def test_a_second_attempt_waits_for_what_the_first_one_brought(desk: QueueDriver) -> None:
    """The ledger applies a settle before the governor learns of it: the next attempt may ask between the two."""
    first = desk.request("r1")
    await desk.send(first)
    settled = settle_request(desk.session, first, AttemptOutcome.RETRY)
    outcome = await desk.driver.run(settled)
    assert await desk.admit("r1", "r2") == ["waits", "granted"]
    report = TryReport(outcome=TryOutcome.THROTTLED, rates=RateReport(retry_after_seconds=30))
    desk.queue.on_ended([(settled.with_fields(report=report), outcome)])
    await desk.queue.ask_waiting()
    assert (desk.order, desk.state().waiting) == (["r1", "r2"], 1)
    await desk.settle(desk.attempt_of("r2"))
    desk.now += 30
    await desk.queue.ask_waiting()
    assert desk.order == ["r1", "r2", "r1"]
    assert desk.state().in_flight == 1


async def test_a_second_attempt_that_gave_up_behind_the_first_one_waits_no_more(desk: QueueDriver) -> None:
    first, second = desk.request("r1"), desk.request("r1")
    await desk.send(first)
    settled = settle_request(desk.session, first, AttemptOutcome.RETRY)
    outcome = await desk.driver.run(settled)
    assert await desk.send(second) == ["waits"]
    await desk.settle(second.attempt_id, AttemptOutcome.NEVER_SENT, None)
    desk.queue.on_ended([(settled.with_fields(report=ANSWERED), outcome)])
    assert (desk.state().in_flight, desk.state().waiting) == (0, 0)


async def test_a_second_attempt_starts_though_the_report_of_the_first_one_is_lost(desk: QueueDriver) -> None:
    first = desk.request("r1")
    await desk.send(first)
    await desk.driver.run(settle_request(desk.session, first, AttemptOutcome.RETRY))
    assert await desk.admit("r1") == ["waits"]
    await desk.sweep()
    assert desk.order == ["r1", "r1"]
    assert desk.state().in_flight == 1


async def test_what_a_limit_held_until_its_deadline_was_throttled_tried_or_not(desk: QueueDriver) -> None:
    await desk.admit("r1", "r2")
    assert await desk.admit("r3", deadline=1) == ["expired"]  # it never waited
    soon = (await desk.driver.info(desk.session)).now + 300
    assert await desk.admit("r4", deadline=soon) == ["waits"]
    await asyncio.sleep(0.4)
    await desk.sweep()
    assert desk.answer(desk.attempt_of("r4")) == "expired"  # for calls that run: no limit is known
    report = TryReport(outcome=TryOutcome.THROTTLED, rates=RateReport(retry_after_seconds=30))
    await desk.settle(desk.attempt_of("r1"), AttemptOutcome.RETRY, report)
    soon = (await desk.driver.info(desk.session)).now + 300
    assert await desk.admit("r1", "r5", deadline=soon) == ["waits", "waits"]
    await asyncio.sleep(0.4)
    await desk.sweep()
    for name in ("r1", "r5"):
        fault = desk.answers[desk.attempt_of(name)].fault
        assert fault is not None
        assert (fault.code, fault.charged) == ("throttled", False)
        assert 0 < (fault.retry_after_ms or 0) <= 30_000
    assert (desk.state().waiting, (await desk.driver.info(desk.session)).call_count) == (0, 1)


async def test_a_paused_target_does_not_hold_its_neighbour(desk: QueueDriver) -> None:
    await desk.pause("b", 60_000)
    assert await desk.admit("b1", "b2", "b3", target="b") == ["waits"] * 3
    assert await desk.admit("a1", "a2") == ["granted", "granted"]
    assert (desk.state().in_flight, desk.state().waiting) == (2, 3)
    await desk.driver.ledger.transact(lambda _: execute("UPDATE target SET paused_until = 0"))
    await desk.queue.refresh()
    await desk.settle(desk.attempt_of("a1"))
    assert len(desk.running) == desk.state().in_flight == 2
    assert desk.order[-1].startswith("b")


async def test_a_targets_own_limit_bounds_its_calls_within_the_quota(desk: QueueDriver) -> None:
    await desk.register("a", limit=1, start=8)
    await desk.register("b", start=8)
    assert await desk.admit("a1", "a2") == ["granted", "waits"]
    assert await desk.admit("b1", "b2", target="b") == ["granted", "granted"]
    assert desk.due_seconds() > 60
    await desk.settle(desk.attempt_of("a1"))
    assert desk.order[-1] == "a2"


async def test_a_target_that_has_no_quota_any_more_waits_for_none(desk: QueueDriver) -> None:
    await desk.admit("r1", "r2", "r3")
    await desk.register("a", "b", without=True)
    await desk.sweep()
    assert desk.queue.quotas.states() == []
    assert desk.order == ["r1", "r2", "r3"]


async def test_sessions_share_a_quota_by_weight_and_children_take_part_in_it(desk: QueueDriver) -> None:
    await desk.register("a", "b", start=1)
    heavy, light, batch = [
        await desk.driver.open_session(max_calls=200, **share)
        for share in ({"weight": 30}, {"weight": 10}, {"priority": "batch"})
    ]
    child = await desk.driver.open_session(parent=heavy, max_calls=100)
    for session, name in ((batch, "batch"), (light, "light"), (heavy, "heavy"), (child, "heavy child")):
        await desk.admit(*(f"{name}{number}" for number in range(80)), session=session)
    while len(desk.order) < 100:
        await desk.settle(next(iter(desk.running)))
    counts = [sum(name.startswith(word) for name in desk.order) for word in ("heavy", "light", "batch")]
    assert counts[0] == pytest.approx(72, abs=3)
    assert counts[1] == pytest.approx(24, abs=3)
    assert counts[2] == pytest.approx(5, abs=1)


async def set_quota(desk: QueueDriver, **fields: object) -> None:
    request = SetQuota.model_validate({"quota": "team", "reason": "a test", **fields})
    await desk.driver.ledger.transact(lambda moment: quota_rows.set_quota(moment, request))
    await desk.queue.quotas.refresh()
    await desk.queue.ask_waiting()


async def test_what_an_administrator_sets_holds_at_once_and_after_a_restart(desk: QueueDriver) -> None:
    await desk.admit("r1", "r2", "r3", "r4")
    await set_quota(desk, concurrency=3)
    assert (desk.state().limit, desk.order) == (3, ["r1", "r2", "r3"])
    await set_quota(desk, concurrency=1, requests_per_minute=60)
    assert (desk.state().limit, desk.state().in_flight) == (1, 3)
    await set_quota(desk, quota="key", concurrency=5)
    assert desk.state().limit == 5
    assert 55 < (desk.state().requests_per_minute or 0) <= 60
    desk.restart()
    await desk.queue.quotas.refresh()
    assert desk.state().limit == 5
    await set_quota(desk, reset=True)
    assert (desk.state().limit, desk.state().requests_per_minute) == (2, None)


@pytest.mark.parametrize("fields", [{"quota": "other", "concurrency": 1}, {}])
async def test_what_cannot_be_set_is_refused(desk: QueueDriver, fields: dict[str, object]) -> None:
    with pytest.raises(BadRequest, match="team|nothing to set"):
        await set_quota(desk, **fields)


async def test_where_workers_name_different_limits_the_smallest_count_and_that_is_told() -> None:
    async with memory_queue_driver() as on:
        await on.register("t", start=9)
        assert (on.state().limit, on.state().differs) == (9, None)
        await on.register("t", incarnation="w2", start=4)
        assert (on.state().limit, on.state().differs) == (4, True)

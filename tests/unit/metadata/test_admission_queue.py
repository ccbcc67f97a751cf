"""The admission queue: who waits, who is told, in which order, and who is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.contracts.ledger import Admission, AdmitBatch, AttemptOutcome
from quintain.contracts.quota import RateReport, TryOutcome, TryReport
from quintain.errors import BrokerUnavailable
from quintain_metadata.admission import MAX_HELD_DUPLICATES, AdmissionQueue
from quintain_metadata.store.base import execute
from quintain_metadata.store.sqlite import SqliteLedger
from support.ledger_driver import settle_request
from support.queue_driver import QueueDriver, memory_queue_driver
from support.quick import timings


@pytest.fixture
async def desk() -> AsyncIterator[QueueDriver]:
    async with memory_queue_driver() as desk:
        for worker in ("w1", "w2"):
            await desk.register("a", "b", incarnation=worker, without=True)
        yield desk


async def limit(desk: QueueDriver, *targets: str, calls: int = 1) -> None:
    """So many calls of each of these targets may run."""
    await desk.register(*(targets or "a"), limit=calls, without=True)


async def test_held_duplicates_are_answered_when_the_holder_settles(desk: QueueDriver) -> None:
    assert await desk.admit("r1", "r1") == ["granted", "waits"]
    await desk.admit("r1", incarnation="w2")
    await desk.sweep()
    assert desk.told("r1") == ["granted", "waits", "waits"]
    await desk.settle(desk.attempts("r1")[0])
    assert desk.told("r1") == ["granted", "replayed", "replayed"]
    assert (await desk.driver.info(desk.session)).call_count == 1


async def test_what_another_service_settled_is_found_by_a_sweep(desk: QueueDriver) -> None:
    await desk.admit("r1", "r1")
    await desk.driver.end(*desk.asked[desk.attempts("r1")[0]])
    await desk.sweep()
    assert desk.told("r1") == ["granted", "replayed"]


async def test_one_held_duplicate_takes_over_a_refunded_call_and_the_others_wait_for_it(desk: QueueDriver) -> None:
    await desk.admit("r1", "r1", "r1")
    await desk.settle(desk.attempts("r1")[0], AttemptOutcome.REFUND)
    assert desk.told("r1") == ["granted", "granted", "waits"]
    assert desk.answers[desk.attempts("r1")[1]].attempt == 2


async def test_one_duplicate_too_many_is_overloaded_and_costs_nothing(desk: QueueDriver) -> None:
    told = await desk.admit(*["r1"] * (MAX_HELD_DUPLICATES + 2))
    assert told == ["granted", *["waits"] * MAX_HELD_DUPLICATES, "overloaded"]
    refusal = desk.answers[desk.attempt_of("r1")].fault
    assert refusal is not None
    assert (refusal.retryable, refusal.charge_unknown, refusal.retry_after_ms) == (True, True, 1000)
    assert await desk.admit("r2", "r2") == ["granted", "waits"]
    assert (await desk.driver.info(desk.session)).call_count == 2


async def test_what_is_delivered_again_is_no_duplicate_of_its_call(desk: QueueDriver) -> None:
    await desk.admit("r1")
    again = [desk.request("r1", redelivered=True) for _ in range(MAX_HELD_DUPLICATES + 1)]
    assert {*await desk.send(*again, incarnation="w2")} == {"waits"}
    assert {*await desk.admit(*["r1"] * MAX_HELD_DUPLICATES)} == {"waits"}
    await desk.driver.expire_lease("w1")
    await desk.sweep()
    assert desk.order == ["r1", "r1"]


async def test_a_waiting_call_whose_message_comes_again_elsewhere_keeps_its_place_and_runs_once(
    desk: QueueDriver,
) -> None:
    await limit(desk)
    await desk.admit("r1", "r2", "r3")
    again = desk.request("r2", redelivered=True)
    assert await desk.send(again, incarnation="w2") == ["waits"]
    for done in ("r1", "r2"):
        await desk.settle(desk.attempts(done)[0])
    await desk.sweep()
    assert (desk.order, desk.answer(again.attempt_id)) == (["r1", "r2", "r3"], "replayed")


async def test_a_repeated_admit_takes_the_place_of_its_waiter(desk: QueueDriver) -> None:
    await limit(desk)
    await desk.admit("running", "first", "second")
    answers: list[str] = []

    async def of_another_connection(items: list[Admission], _: list[str]) -> None:
        answers.extend(item.attempt_id for item in items)

    first = desk.asked[desk.attempt_of("first")][1]
    await desk.queue.admit(AdmitBatch(incarnation="w1", items=[first]), of_another_connection)
    await desk.settle(desk.attempt_of("running"))
    assert (answers, desk.told("first")) == ([first.attempt_id], ["waits"])
    await desk.settle(first.attempt_id)
    assert desk.told("second") == ["granted"]


@pytest.mark.parametrize("by", ["a sweep", "its worker's repetition"])
async def test_what_waits_is_refused_when_its_deadline_passes(desk: QueueDriver, by: str) -> None:
    await limit(desk)
    await desk.admit("r1")
    soon = await desk.driver.ledger.now() + 400
    assert await desk.admit("r2", deadline=soon) == ["waits"]
    while await desk.driver.ledger.now() <= soon:
        await asyncio.sleep(0.01)
    await (desk.sweep() if by == "a sweep" else desk.send(desk.asked[desk.attempt_of("r2")][1]))
    assert desk.told("r2") == ["expired"]
    assert ((await desk.driver.info(desk.session)).call_count, desk.queue.waiting_count) == (1, 0)


async def test_what_is_repeated_no_more_is_forgotten_and_never_granted(desk: QueueDriver) -> None:
    await limit(desk)
    desk.queue = AdmissionQueue(
        desk.driver.ledger, timings=timings(lease_seconds=0.2, heartbeat_seconds=0.04), quotas=desk.queue.quotas
    )
    await desk.admit("running", "of a dead worker")
    await desk.admit("waiting", incarnation="w2")
    await asyncio.sleep(0.21)
    # A living worker repeats what it has no answer to.
    await desk.send(desk.asked[desk.attempt_of("waiting")][1], incarnation="w2")
    await desk.settle(desk.attempt_of("running"))
    assert desk.told("of a dead worker", "waiting") == ["waits", "granted"]
    assert (await desk.driver.info(desk.session)).call_count == 2


async def test_a_worker_that_cannot_be_told_keeps_nobody_else_from_hearing(
    desk: QueueDriver, caplog: pytest.LogCaptureFixture
) -> None:
    async def unreachable(items: list[Admission], _: list[str]) -> None:
        if items:
            raise BrokerUnavailable

    await desk.admit("r1", incarnation="w2")
    await desk.queue.admit(AdmitBatch(incarnation="w1", items=[desk.request("r1")]), unreachable)
    await desk.admit("r1", incarnation="w2")
    await desk.settle(desk.attempts("r1")[0])
    assert desk.told("r1") == ["granted", "replayed"]
    assert "Admissions could not be sent" in caplog.text


async def test_while_the_ledger_is_out_of_reach_nobody_is_refused_and_nobody_is_held(desk: QueueDriver) -> None:
    await limit(desk)
    await desk.admit("running", "waiting")
    desk.held.clear()
    assert isinstance(desk.driver.ledger, SqliteLedger)
    desk.driver.ledger._connection.close()  # the disk is gone
    fresh, waiting = desk.request("fresh"), desk.asked[desk.attempt_of("waiting")][1]
    await desk.queue.admit(AdmitBatch(incarnation="w1", items=[waiting, fresh]), desk.on_reply)
    await desk.queue.retry_waiting()
    assert (desk.told("waiting"), desk.answer(fresh.attempt_id), desk.held) == (["waits"], "waits", set())


async def test_a_defect_at_one_admit_is_no_answer_to_its_neighbours(
    desk: QueueDriver, caplog: pytest.LogCaptureFixture
) -> None:
    # What no worker can say, so that it gets as far as the store.
    unkeepable = desk.request("r1").model_copy(update={"target": "half a character: \ud83d"})
    assert await desk.send(unkeepable, desk.request("r2")) == ["internal", "granted"]
    assert "A defect" in caplog.text


async def test_a_deadline_that_nobody_named_begins_when_the_call_is_first_heard(desk: QueueDriver) -> None:
    await limit(desk)
    desk.session = await desk.driver.open_session(deadline_seconds=100)
    before = await desk.driver.ledger.now()
    await desk.admit("running", "waiting")
    after = await desk.driver.ledger.now()
    while await desk.driver.ledger.now() < after + 20:
        await asyncio.sleep(0.01)
    # Its worker repeats what it has no answer to, and names no deadline this time either.
    await desk.send(desk.asked[desk.attempt_of("waiting")][1])
    await desk.settle(desk.attempt_of("running"))
    assert before + 100_000 <= desk.answers[desk.attempt_of("waiting")].deadline <= after + 100_000


async def test_a_duplicate_is_answered_when_its_call_ends_though_the_target_is_paused(desk: QueueDriver) -> None:
    await desk.admit("r1")
    await desk.pause("a", 60_000)
    assert await desk.admit("r2", "r1") == ["waits", "waits"]
    await desk.settle(desk.attempts("r1")[0])
    assert desk.told("r2", "r1") == ["waits", "granted", "replayed"]


async def test_a_duplicate_that_came_to_wait_for_a_slot_is_no_duplicate_any_more(desk: QueueDriver) -> None:
    await desk.admit(*["r1"] * (MAX_HELD_DUPLICATES + 1))
    await desk.driver.end(*desk.asked[desk.attempts("r1")[0]], AttemptOutcome.REFUND)
    await desk.pause("a", 60_000)
    for _ in range(2):
        await desk.sweep()
    assert await desk.admit("r1") == ["waits"]


async def test_a_new_call_waits_behind_others_though_there_is_room(desk: QueueDriver) -> None:
    await limit(desk)
    await desk.admit("running", "first")
    session, running = desk.running[desk.attempt_of("running")]
    settled = settle_request(session, running)
    desk.queue.on_ended([(settled, await desk.driver.run(settled))])
    await desk.admit("second")
    assert desk.told("first", "second") == ["granted", "waits"]


async def test_what_waits_is_answered_from_memory_and_asked_about_by_no_settle_of_another(
    desk: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit(desk)
    await desk.admit("r1", "r1", "r2")
    await desk.admit("at b", target="b")
    desk.held.clear()
    waiting = desk.attempt_of("r1")

    async def asked(*_: object) -> None:
        raise AssertionError("the ledger is asked")

    monkeypatch.setattr(desk.queue.operations, "run", asked)
    await desk.send(desk.asked[waiting][1])
    await desk.settle(desk.attempt_of("at b"))
    assert (desk.held, desk.queue.waiting_count) == ({waiting}, 2)


async def test_an_admit_of_a_session_that_was_closed_is_refused_at_the_next_sweep(desk: QueueDriver) -> None:
    await limit(desk)
    child = await desk.driver.open_session(parent=desk.session, max_calls=1)
    await desk.admit("running", "waiting")
    await desk.admit("of child", session=child)
    await desk.driver.amend(desk.session, state="closed")
    await desk.sweep()
    assert desk.told("waiting", "of child") == ["unauthorized", "unauthorized"]


async def test_a_sweep_renews_the_joins_so_that_their_calls_are_not_cancelled(desk: QueueDriver) -> None:
    await desk.admit("r1", "r1")
    await desk.driver.ledger.transact(lambda _: execute("UPDATE call SET joined_until = 0"))
    await desk.sweep()
    assert (await desk.driver.cancel(desk.session, "r1")).cancelled_count == 0


async def test_the_next_try_of_a_call_waits_for_its_time_and_for_no_sweep(desk: QueueDriver) -> None:
    await desk.admit("r1")
    await desk.settle(desk.attempt_of("r1"), AttemptOutcome.RETRY, retry_after_ms=60_000, is_counted=True)
    assert await desk.admit("r1", "r2") == ["waits", "granted"]
    await desk.queue.ask_waiting()
    assert desk.told("r1") == ["granted", "waits"]
    await desk.driver.transact(lambda _: execute("UPDATE call SET not_before = not_before - 60000"))
    desk.now += 90
    await desk.queue.ask_waiting()
    assert desk.told("r1") == ["granted", "granted"]
    again = desk.answers[desk.attempt_of("r1")]
    assert (again.attempt, again.tries) == (1, 1)


async def test_a_target_without_a_quota_is_left_alone_for_as_long_as_its_provider_asks(desk: QueueDriver) -> None:
    await desk.admit("r1")
    asked = TryReport(outcome=TryOutcome.THROTTLED, rates=RateReport(retry_after_seconds=30))
    await desk.settle(desk.attempt_of("r1"), AttemptOutcome.RETRY, asked)
    assert await desk.admit("r1", "r2") == ["waits", "waits"]
    assert await desk.admit("r3", target="b") == ["granted"]
    soon = await desk.driver.ledger.now() + 1_000
    assert await desk.admit("r4", deadline=soon) == ["waits"]
    desk.now += 20
    while await desk.driver.ledger.now() <= soon:
        await asyncio.sleep(0.01)
    await desk.queue.ask_waiting()
    fault = desk.answers[desk.attempt_of("r4")].fault
    assert fault is not None
    assert (fault.code, fault.charged) == ("throttled", False)
    assert 0 < (fault.retry_after_ms or 0) < 10_000
    desk.now += 30
    await desk.queue.ask_waiting()
    assert desk.told("r1", "r2") == ["granted", "granted", "granted"]


async def test_sessions_share_the_places_of_a_target_without_a_quota(desk: QueueDriver) -> None:
    await limit(desk)
    other = await desk.driver.open_session(max_calls=10)
    await desk.admit(*(f"early {number}" for number in range(6)))
    await desk.admit(*(f"late {number}" for number in range(3)), session=other)
    for _ in range(4):
        await desk.settle(next(iter(desk.running)))
    assert sum(name.startswith("late") for name in desk.order) == 2

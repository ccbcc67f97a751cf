"""The admission desk: who waits, who is told, in which order, and who is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.contracts.ledger import Admission, Admit, AdmitBatch, AttemptOutcome
from quintain.contracts.session import SessionOpened
from quintain.errors import BrokerUnavailable
from quintain_metadata.admission import MAX_HELD_DUPLICATES, AdmissionQueue
from quintain_metadata.ledger_queues import attempt_ended
from quintain_metadata.store.base import execute
from quintain_metadata.store.sqlite import SqliteLedger
from support.ledger_driver import LedgerDriver, admit_request, memory_ledger_driver, settle_request
from support.ledger_operations import alone
from support.quick import timings


class Worker:
    """One worker's side of the desk: what it was told of each attempt, and which were heard and must wait."""

    def __init__(self, admission_queue: AdmissionQueue, incarnation: str = "w1") -> None:
        self.admission_queue, self.incarnation = admission_queue, incarnation
        self.admissions: dict[str, Admission] = {}
        self.order: list[str] = []
        self.deferred: set[str] = set()
        self.unreachable = False

    async def admit(self, *requests: Admit) -> None:
        await self.admission_queue.admit(AdmitBatch(incarnation=self.incarnation, items=list(requests)), self.on_reply)

    async def on_reply(self, items: list[Admission], deferred: list[str]) -> None:
        if self.unreachable:
            raise BrokerUnavailable
        for item in items:
            self.admissions[item.attempt_id] = item
            self.order.append(item.attempt_id)
        self.deferred |= set(deferred)

    def answer_to(self, request: Admit) -> str:
        """What it was told: nothing, held, granted, replayed, that it must be alone or needs a slot, or a fault."""
        if request.attempt_id not in self.admissions:
            return "held" if request.attempt_id in self.deferred else "nothing"
        item = self.admissions[request.attempt_id]
        if item.fault is not None:
            return item.fault.code
        if item.is_grant or item.replay:
            return "granted" if item.is_grant else "replayed"
        return "must be alone" if item.must_be_alone else "needs slot"


@pytest.fixture
async def ledger_driver() -> AsyncIterator[LedgerDriver]:
    async with memory_ledger_driver() as kept:
        for worker in ("w1", "w2"):
            await kept.register("a", "b", incarnation=worker)
        yield kept


@pytest.fixture
def admission_queue(ledger_driver: LedgerDriver) -> AdmissionQueue:
    return AdmissionQueue(ledger_driver.ledger)


@pytest.fixture
async def session(ledger_driver: LedgerDriver) -> SessionOpened:
    return await ledger_driver.open_session()


async def test_held_duplicates_are_answered_when_the_holder_settles(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    worker, other = Worker(admission_queue), Worker(admission_queue, "w2")
    holder, one, two = admit_request(session, "r1"), admit_request(session, "r1"), admit_request(session, "r1")
    await worker.admit(holder, one)
    await other.admit(two)
    await admission_queue.retry_waiting()
    assert (worker.answer_to(one), other.answer_to(two)) == ("held", "held")
    await ledger_driver.settle(session, holder)
    await admission_queue.retry_waiting()
    assert (worker.answer_to(one), other.answer_to(two)) == ("replayed", "replayed")
    assert (await ledger_driver.info(session)).call_count == 1


async def test_one_held_duplicate_takes_over_a_refunded_call_and_the_others_wait_for_it(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    worker = Worker(admission_queue)
    holder, one, two = (admit_request(session, "r1") for _ in range(3))
    await worker.admit(holder, one, two)
    await ledger_driver.settle(session, holder, AttemptOutcome.REFUND)
    await admission_queue.retry_waiting()
    assert (worker.answer_to(one), worker.answer_to(two)) == ("granted", "held")
    assert worker.admissions[one.attempt_id].attempt == 2


async def test_a_call_that_must_be_alone_takes_no_capacity_before_it_is(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    for name in ("w1", "w2"):
        await Worker(admission_queue, name).admit(admit_request(session, "lost twice"))
        await ledger_driver.expire_lease(name)
    await ledger_driver.register("a", limit=1, incarnation="w3")
    worker = Worker(admission_queue, "w3")
    running, suspect, new = (admit_request(session, name) for name in ("running", "lost twice", "new"))
    await worker.admit(running)
    await worker.admit(suspect, new)
    assert [worker.answer_to(ask) for ask in (suspect, new)] == ["held", "held"]
    await ledger_driver.settle(session, running)
    await admission_queue.retry_waiting()
    assert [worker.answer_to(ask) for ask in (suspect, new)] == ["must be alone", "granted"]
    alone = suspect.model_copy(update={"alone": True})
    await worker.admit(alone)
    await ledger_driver.settle(session, new)
    await admission_queue.retry_waiting()
    assert (worker.answer_to(alone), worker.admissions[alone.attempt_id].attempt) == ("granted", 3)


async def test_one_duplicate_too_many_is_overloaded_and_costs_nothing(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    worker = Worker(admission_queue)
    await worker.admit(admit_request(session, "r1"))
    duplicates = [admit_request(session, "r1") for _ in range(MAX_HELD_DUPLICATES + 1)]
    await worker.admit(*duplicates)
    assert [worker.answer_to(ask) for ask in duplicates] == ["held"] * MAX_HELD_DUPLICATES + ["overloaded"]
    refusal = worker.admissions[duplicates[-1].attempt_id].fault
    assert refusal is not None
    assert (refusal.retryable, refusal.charge_unknown, refusal.retry_after_ms) == (True, True, 1000)
    other_call = admit_request(session, "r2")
    await worker.admit(other_call, admit_request(session, "r2"))
    assert worker.answer_to(other_call) == "granted"
    assert (await ledger_driver.info(session)).call_count == 2


async def test_copies_of_a_running_call_are_none_of_its_duplicates(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    worker, other = Worker(admission_queue), Worker(admission_queue, "w2")
    holder = admit_request(session, "r1")
    await worker.admit(holder)
    copies = [admit_request(session, "r1", copy_of=holder.attempt_id) for _ in range(MAX_HELD_DUPLICATES + 1)]
    await other.admit(*copies)
    duplicates = [admit_request(session, "r1") for _ in range(MAX_HELD_DUPLICATES)]
    await worker.admit(*duplicates)
    assert {worker.answer_to(ask) for ask in duplicates} | {other.answer_to(ask) for ask in copies} == {"held"}
    await ledger_driver.expire_lease("w1")
    await admission_queue.retry_waiting()
    assert {other.answer_to(ask) for ask in copies} == {"needs slot"}


async def test_whoever_waits_at_a_targets_limit_is_no_duplicate(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    await ledger_driver.register("a", limit=1)
    worker = Worker(admission_queue)
    asks = [admit_request(session, f"r{number}") for number in range(10)]
    await worker.admit(*asks)
    assert [worker.answer_to(ask) for ask in asks] == ["granted"] + ["held"] * 9


async def test_at_the_targets_limit_the_first_to_come_is_the_first_to_run(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    await ledger_driver.register("a", limit=1)
    worker, other = Worker(admission_queue), Worker(admission_queue, "w2")
    running, first, second, third = (admit_request(session, f"r{number}") for number in range(4))
    await worker.admit(running)
    await worker.admit(first)
    await other.admit(second)
    await worker.admit(third)
    for done, next_up, by in ((running, first, worker), (first, second, other), (second, third, worker)):
        await ledger_driver.settle(session, done)
        await admission_queue.retry_waiting()
        assert by.answer_to(next_up) == "granted"
    assert worker.order == [running.attempt_id, first.attempt_id, third.attempt_id]


async def test_a_slot_of_one_target_wakes_nobody_at_another(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    await ledger_driver.register("a", "b", limit=1)
    worker = Worker(admission_queue)
    at_a, at_b = admit_request(session, "r1"), admit_request(session, "r2", target="b")
    waits_a, waits_b = admit_request(session, "r3"), admit_request(session, "r4", target="b")
    await worker.admit(at_a, at_b, waits_a, waits_b)
    await ledger_driver.settle(session, at_b)
    await admission_queue.retry_waiting()
    assert (worker.answer_to(waits_a), worker.answer_to(waits_b)) == ("held", "granted")


async def test_a_repeated_admit_takes_the_place_of_its_waiter(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    await ledger_driver.register("a", limit=1)
    before, after = Worker(admission_queue), Worker(admission_queue)  # the same worker, on another connection
    running, first, second = (admit_request(session, f"r{number}") for number in range(3))
    await before.admit(running, first, second)
    await after.admit(first)
    await ledger_driver.settle(session, running)
    await admission_queue.retry_waiting()
    assert (before.answer_to(first), after.answer_to(first)) == ("held", "granted")
    await ledger_driver.settle(session, first)
    await admission_queue.retry_waiting()
    assert before.answer_to(second) == "granted"


async def test_what_waits_is_refused_when_its_deadline_passes(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    await ledger_driver.register("a", limit=1)
    worker = Worker(admission_queue)
    soon = await ledger_driver.ledger.now() + 50
    late = admit_request(session, "r2", deadline=soon)
    await worker.admit(admit_request(session, "r1"), late)
    assert worker.answer_to(late) == "held"
    while await ledger_driver.ledger.now() <= soon:
        await asyncio.sleep(0.01)
    await admission_queue.retry_waiting()
    assert worker.answer_to(late) == "expired"
    assert (await ledger_driver.info(session)).call_count == 1


async def test_what_is_repeated_after_its_deadline_is_decided_at_once(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    await ledger_driver.register("a", limit=1)
    worker = Worker(admission_queue)
    await worker.admit(admit_request(session, "r1"))
    late = admit_request(session, "r2", deadline=await ledger_driver.ledger.now() + 50)
    await worker.admit(late)
    assert worker.answer_to(late) == "held"
    await asyncio.sleep(0.1)
    await worker.admit(late)  # no sweep has looked at it
    assert worker.answer_to(late) == "expired"
    fault = worker.admissions[late.attempt_id].fault
    assert fault is not None
    assert not fault.charged
    assert not admission_queue.waiting_count


async def test_what_is_repeated_no_more_is_forgotten_and_never_granted(
    ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    await ledger_driver.register("a", limit=1)
    desk = AdmissionQueue(ledger_driver.ledger, timings=timings(lease_seconds=0.2, heartbeat_seconds=0.04))
    dead, living = Worker(desk), Worker(desk, "w2")
    running, left_behind, waiting = (admit_request(session, f"r{number}") for number in range(3))
    await living.admit(running)
    await dead.admit(left_behind)
    await living.admit(waiting)
    await asyncio.sleep(0.21)
    await living.admit(waiting)  # a living worker repeats what it has no answer to
    await ledger_driver.settle(session, running)
    await desk.retry_waiting()
    assert (dead.answer_to(left_behind), living.answer_to(waiting)) == ("held", "granted")
    assert (await ledger_driver.info(session)).call_count == 2


async def test_a_worker_that_cannot_be_told_keeps_nobody_else_from_hearing(
    admission_queue: AdmissionQueue,
    ledger_driver: LedgerDriver,
    session: SessionOpened,
    caplog: pytest.LogCaptureFixture,
) -> None:
    unreachable, worker = Worker(admission_queue), Worker(admission_queue, "w2")
    holder, one, two = (admit_request(session, "r1") for _ in range(3))
    await worker.admit(holder)
    await unreachable.admit(one)
    await worker.admit(two)
    unreachable.unreachable = True
    await ledger_driver.settle(session, holder)
    await admission_queue.retry_waiting()
    assert worker.answer_to(two) == "replayed"
    assert "Admissions could not be sent" in caplog.text


async def test_while_the_ledger_is_out_of_reach_nobody_is_refused_and_nobody_is_held(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    await ledger_driver.register("a", limit=1)
    worker = Worker(admission_queue)
    running, waiting = admit_request(session, "r1"), admit_request(session, "r2")
    await worker.admit(running, waiting)
    assert worker.answer_to(waiting) == "held"
    worker.deferred.clear()
    assert isinstance(ledger_driver.ledger, SqliteLedger)
    ledger_driver.ledger._connection.close()  # the disk is gone
    fresh = admit_request(session, "r3")
    await worker.admit(waiting, fresh)
    await admission_queue.retry_waiting()
    assert (worker.answer_to(waiting), worker.answer_to(fresh)) == ("nothing", "nothing")


async def test_a_defect_at_one_admit_is_no_answer_to_its_neighbours(
    admission_queue: AdmissionQueue, session: SessionOpened, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(admission_queue)
    fine = admit_request(session, "r2")
    # What no worker can say, so that it gets as far as the store.
    unkeepable = admit_request(session, "r1").model_copy(update={"target": "half a character: \ud83d"})
    await worker.admit(unkeepable, fine)
    assert (worker.answer_to(unkeepable), worker.answer_to(fine)) == ("internal", "granted")
    assert "A defect" in caplog.text


async def test_a_deadline_that_nobody_named_begins_when_the_call_is_first_heard(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver
) -> None:
    await ledger_driver.register("a", limit=1)
    session = await ledger_driver.open_session(deadline_seconds=100)
    worker = Worker(admission_queue)
    running, waiting = admit_request(session, "r1"), admit_request(session, "r2")
    before = await ledger_driver.ledger.now()
    await worker.admit(running, waiting)
    after = await ledger_driver.ledger.now()
    while await ledger_driver.ledger.now() < after + 20:
        await asyncio.sleep(0.01)
    await worker.admit(waiting)  # it repeats what it has no answer to, and names no deadline this time either
    await ledger_driver.settle(session, running)
    await admission_queue.retry_waiting()
    assert worker.answer_to(waiting) == "granted"
    assert before + 100_000 <= worker.admissions[waiting.attempt_id].deadline <= after + 100_000


async def test_a_worker_without_a_lease_waits_and_keeps_nobody_else_waiting(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    await ledger_driver.register("a", limit=1)
    stranger, worker = Worker(admission_queue, "stranger"), Worker(admission_queue)
    running, first, second = (admit_request(session, f"r{number}") for number in range(3))
    await worker.admit(running)
    await stranger.admit(first)
    await worker.admit(second)
    await ledger_driver.settle(session, running)
    await admission_queue.retry_waiting()
    assert (stranger.answer_to(first), worker.answer_to(second)) == ("held", "granted")
    await ledger_driver.settle(session, second)
    await ledger_driver.register("a", incarnation="stranger")
    await admission_queue.retry_waiting()
    assert stranger.answer_to(first) == "granted"


async def test_a_duplicate_is_answered_when_its_call_ends_though_the_target_is_paused(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    worker = Worker(admission_queue)
    holder, fresh, duplicate = admit_request(session, "r1"), admit_request(session, "r2"), admit_request(session, "r1")
    await worker.admit(holder)
    await ledger_driver.pause("a", 60_000)
    await worker.admit(fresh, duplicate)
    await ledger_driver.settle(session, holder)
    await admission_queue.retry_waiting()
    assert (worker.answer_to(fresh), worker.answer_to(duplicate)) == ("held", "replayed")


async def test_what_waited_for_the_end_of_a_pause_goes_on_at_the_next_sweep(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    worker = Worker(admission_queue)
    until = await ledger_driver.pause("a", 50)
    assert until is not None
    waiting = [admit_request(session, "r1"), admit_request(session, "r2"), admit_request(session, "r3", target="b")]
    await worker.admit(*waiting)
    assert [worker.answer_to(ask) for ask in waiting] == ["held", "held", "granted"]
    while await ledger_driver.ledger.now() < until:
        await asyncio.sleep(0.01)
    await admission_queue.retry_waiting()
    assert [worker.answer_to(ask) for ask in waiting] == ["granted"] * 3


async def test_a_duplicate_that_came_to_wait_for_a_slot_is_no_duplicate_any_more(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    worker = Worker(admission_queue)
    holder = admit_request(session, "r1")
    duplicates = [admit_request(session, "r1") for _ in range(MAX_HELD_DUPLICATES)]
    await worker.admit(holder, *duplicates)
    await ledger_driver.settle(session, holder, AttemptOutcome.REFUND)
    await ledger_driver.pause("a", 60_000)
    await admission_queue.retry_waiting()
    await admission_queue.retry_waiting()
    one_more = admit_request(session, "r1")
    await worker.admit(one_more)
    assert {worker.answer_to(ask) for ask in (*duplicates, one_more)} == {"held"}


async def test_take_overs_come_before_new_calls_that_have_waited_longer(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    await ledger_driver.register("a", limit=2)
    dead, living = Worker(admission_queue, "w1"), Worker(admission_queue, "w2")
    orphan, running, new, heir = (admit_request(session, name) for name in ("r1", "r2", "r3", "r1"))
    await dead.admit(orphan)
    await living.admit(running, new, heir)
    await ledger_driver.register("a", incarnation="w2", limit=1)  # a lapse alone frees nothing
    await ledger_driver.expire_lease("w1")
    await admission_queue.retry_waiting()
    assert (living.answer_to(new), living.answer_to(heir)) == ("held", "held")
    await settle_and_notify(admission_queue, ledger_driver, session, running)
    assert (living.answer_to(new), living.answer_to(heir)) == ("held", "granted")


async def test_a_new_call_waits_behind_others_though_there_is_room(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    await ledger_driver.register("a", limit=1)
    worker = Worker(admission_queue)
    running, first, second = (admit_request(session, name) for name in ("r1", "r2", "r3"))
    await worker.admit(running, first)
    await ledger_driver.settle(session, running)
    await worker.admit(second)
    assert (worker.answer_to(first), worker.answer_to(second)) == ("granted", "held")


async def test_a_repeat_of_an_admit_that_waits_is_answered_from_memory(
    admission_queue: AdmissionQueue,
    ledger_driver: LedgerDriver,
    session: SessionOpened,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker(admission_queue)
    holder, waiting = admit_request(session, "r1"), admit_request(session, "r1")
    await worker.admit(holder, waiting)
    worker.deferred.clear()
    monkeypatch.setattr(ledger_driver.ledger, "_closed", True)  # whoever asks it is refused
    await worker.admit(waiting)
    assert worker.answer_to(waiting) == "held"


async def test_a_settle_asks_nothing_about_admits_that_wait_for_something_else(
    admission_queue: AdmissionQueue,
    ledger_driver: LedgerDriver,
    session: SessionOpened,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await ledger_driver.register("a", limit=1)
    worker = Worker(admission_queue)
    await worker.admit(admit_request(session, "r1"), admit_request(session, "r1"), admit_request(session, "r2"))
    other = admit_request(session, "r3", target="b")
    await worker.admit(other)
    settle = settle_request(session, other)
    call, _ = await ledger_driver.ledger.transact(alone(settle))
    assert call is not None
    monkeypatch.setattr(ledger_driver.ledger, "_closed", True)
    await admission_queue.on_ended([attempt_ended(settle, call)])
    assert admission_queue.waiting_count == 2


async def test_an_admit_of_a_session_that_was_closed_is_refused_at_the_next_sweep(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    await ledger_driver.register("a", limit=1)
    worker = Worker(admission_queue)
    child = await ledger_driver.open_session(parent=session, max_calls=1)
    running, waiting, of_child = admit_request(session, "r1"), admit_request(session, "r2"), admit_request(child, "r3")
    await worker.admit(running, waiting, of_child)
    await ledger_driver.amend_session(session, state="closed")
    await admission_queue.retry_waiting()
    assert (worker.answer_to(waiting), worker.answer_to(of_child)) == ("unauthorized", "unauthorized")


async def test_a_sweep_renews_the_joins_so_that_their_calls_are_not_cancelled(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    worker = Worker(admission_queue)
    await worker.admit(admit_request(session, "r1"), admit_request(session, "r1"))
    await ledger_driver.ledger.transact(lambda _: execute("UPDATE call SET joined_until = 0"))
    await admission_queue.retry_waiting()
    assert (await ledger_driver.cancel(session, "r1")).cancelled_count == 0


async def test_an_attempt_whose_worker_waits_no_longer_is_forgotten(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened
) -> None:
    await ledger_driver.register("a", limit=1)
    worker = Worker(admission_queue)
    waiting = admit_request(session, "r2")
    await worker.admit(admit_request(session, "r1"), waiting)
    await admission_queue.on_ended([attempt_ended(settle_request(session, waiting, AttemptOutcome.NEVER_SENT), None)])
    assert admission_queue.waiting_count == 0


async def settle_and_notify(
    admission_queue: AdmissionQueue, ledger_driver: LedgerDriver, session: SessionOpened, admit: Admit
) -> None:
    """Settle a call with a result, as the service does it."""
    settle = settle_request(session, admit)
    call, _ = await ledger_driver.ledger.transact(alone(settle))
    assert call is not None
    await admission_queue.on_ended([attempt_ended(settle, call)])

"""The admission desk: who waits, who is told, in which order, and who is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.contracts.ledger import Admission, Admit, AdmitBatch, Outcome
from quintain.contracts.metadata import SessionOpened
from quintain.contracts.token import SessionToken
from quintain.errors import BrokerUnavailable
from quintain_metadata.desk import Desk
from quintain_metadata.lifecycle import MOST_HELD
from quintain_metadata.sqlite import SqliteLedger
from support.books import Books, asked, books
from support.quick import timings


class Worker:
    """One worker's side of the desk: what it was told of each attempt, and which were heard and must wait."""

    def __init__(self, desk: Desk, incarnation: str = "w1") -> None:
        self.desk, self.incarnation = desk, incarnation
        self.told: dict[str, Admission] = {}
        self.order: list[str] = []
        self.held: set[str] = set()
        self.unreachable = False

    async def ask(self, *asks: Admit) -> None:
        await self.desk.admit(AdmitBatch(incarnation=self.incarnation, items=list(asks)), self.reply)

    async def reply(self, items: list[Admission], held: list[str]) -> None:
        if self.unreachable:
            raise BrokerUnavailable
        for item in items:
            self.told[item.attempt_id] = item
            self.order.append(item.attempt_id)
        self.held |= set(held)

    def word(self, ask: Admit) -> str:
        """What it was told: nothing, held, granted, replayed, or the code of a fault."""
        if ask.attempt_id not in self.told:
            return "held" if ask.attempt_id in self.held else "nothing"
        item = self.told[ask.attempt_id]
        if item.fault is not None:
            return item.fault.code
        return "granted" if item.replay is None else "replayed"


@pytest.fixture
async def kept() -> AsyncIterator[Books]:
    async with books() as kept:
        for worker in ("w1", "w2"):
            await kept.register("a", "b", incarnation=worker)
        yield kept


@pytest.fixture
def desk(kept: Books) -> Desk:
    return Desk(kept.ledger)


@pytest.fixture
async def session(kept: Books) -> SessionOpened:
    return await kept.open()


async def test_a_batch_is_decided_item_by_item(desk: Desk, session: SessionOpened) -> None:
    worker = Worker(desk)
    stranger = asked(session, "r3", token=SessionToken.mint().text)
    asks = [asked(session, "r1"), asked(session, "r1"), stranger, asked(session, "r2", target="b")]
    await worker.ask(*asks)
    assert [worker.word(ask) for ask in asks] == ["granted", "held", "unauthorized", "granted"]


async def test_held_duplicates_are_answered_when_the_holder_settles(
    desk: Desk, kept: Books, session: SessionOpened
) -> None:
    worker, other = Worker(desk), Worker(desk, "w2")
    holder, one, two = asked(session, "r1"), asked(session, "r1"), asked(session, "r1")
    await worker.ask(holder, one)
    await other.ask(two)
    await desk.try_again("a")
    assert (worker.word(one), other.word(two)) == ("held", "held")
    await kept.settle(session, holder)
    await desk.try_again("a")
    assert (worker.word(one), other.word(two)) == ("replayed", "replayed")
    assert (await kept.info(session)).call_count == 1


async def test_one_held_duplicate_takes_over_a_refunded_call_and_the_others_wait_for_it(
    desk: Desk, kept: Books, session: SessionOpened
) -> None:
    worker = Worker(desk)
    holder, one, two = (asked(session, "r1") for _ in range(3))
    await worker.ask(holder, one, two)
    await kept.settle(session, holder, Outcome.REFUND)
    await desk.try_again("a")
    assert (worker.word(one), worker.word(two)) == ("granted", "held")
    assert worker.told[one.attempt_id].attempt == 2


async def test_a_held_duplicate_takes_over_when_the_holders_lease_lapses(
    desk: Desk, kept: Books, session: SessionOpened
) -> None:
    dead, living = Worker(desk, "w1"), Worker(desk, "w2")
    await dead.ask(asked(session, "r1"))
    heir = asked(session, "r1")
    await living.ask(heir)
    await kept.lapse("w1")
    await desk.try_again()
    assert living.word(heir) == "granted"
    assert living.told[heir.attempt_id].attempt == 2


async def test_one_duplicate_too_many_is_overloaded_and_costs_nothing(
    desk: Desk, kept: Books, session: SessionOpened
) -> None:
    worker = Worker(desk)
    await worker.ask(asked(session, "r1"))
    duplicates = [asked(session, "r1") for _ in range(MOST_HELD + 1)]
    await worker.ask(*duplicates)
    assert [worker.word(ask) for ask in duplicates] == ["held"] * MOST_HELD + ["overloaded"]
    refusal = worker.told[duplicates[-1].attempt_id].fault
    assert refusal is not None
    assert (refusal.retryable, refusal.charged, refusal.retry_after_ms) == (True, False, 1000)
    other_call = asked(session, "r2")
    await worker.ask(other_call, asked(session, "r2"))
    assert worker.word(other_call) == "granted"
    assert (await kept.info(session)).call_count == 2


async def test_whoever_waits_at_a_targets_limit_is_no_duplicate(
    desk: Desk, kept: Books, session: SessionOpened
) -> None:
    await kept.register("a", limit=1)
    worker = Worker(desk)
    asks = [asked(session, f"r{number}") for number in range(10)]
    await worker.ask(*asks)
    assert [worker.word(ask) for ask in asks] == ["granted"] + ["held"] * 9


async def test_at_the_targets_limit_the_first_to_come_is_the_first_to_run(
    desk: Desk, kept: Books, session: SessionOpened
) -> None:
    await kept.register("a", limit=1)
    worker, other = Worker(desk), Worker(desk, "w2")
    running, first, second, third = (asked(session, f"r{number}") for number in range(4))
    await worker.ask(running)
    await worker.ask(first)
    await other.ask(second)
    await worker.ask(third)
    for done, next_up, by in ((running, first, worker), (first, second, other), (second, third, worker)):
        await kept.settle(session, done)
        await desk.try_again("a")
        assert by.word(next_up) == "granted"
    assert worker.order == [running.attempt_id, first.attempt_id, third.attempt_id]


async def test_a_slot_of_one_target_wakes_nobody_at_another(desk: Desk, kept: Books, session: SessionOpened) -> None:
    await kept.register("a", "b", limit=1)
    worker = Worker(desk)
    at_a, at_b = asked(session, "r1"), asked(session, "r2", target="b")
    waits_a, waits_b = asked(session, "r3"), asked(session, "r4", target="b")
    await worker.ask(at_a, at_b, waits_a, waits_b)
    await kept.settle(session, at_b)
    await desk.try_again("b")
    assert (worker.word(waits_a), worker.word(waits_b)) == ("held", "granted")


async def test_a_repeated_admit_takes_the_place_of_its_waiter(desk: Desk, kept: Books, session: SessionOpened) -> None:
    await kept.register("a", limit=1)
    before, after = Worker(desk), Worker(desk)  # the same worker, on another connection
    running, first, second = (asked(session, f"r{number}") for number in range(3))
    await before.ask(running, first, second)
    await after.ask(first)
    await kept.settle(session, running)
    await desk.try_again("a")
    assert (before.word(first), after.word(first)) == ("held", "granted")
    await kept.settle(session, first)
    await desk.try_again("a")
    assert before.word(second) == "granted"


async def test_a_repeated_admit_of_a_granted_attempt_is_granted_again(
    desk: Desk, kept: Books, session: SessionOpened
) -> None:
    worker = Worker(desk)
    ask = asked(session, "r1")
    await worker.ask(ask)
    first = worker.told[ask.attempt_id]
    await worker.ask(ask)
    assert worker.order == [ask.attempt_id] * 2
    assert worker.told[ask.attempt_id] == first
    assert (await kept.info(session)).call_count == 1


async def test_what_waits_is_refused_when_its_deadline_passes(desk: Desk, kept: Books, session: SessionOpened) -> None:
    await kept.register("a", limit=1)
    worker = Worker(desk)
    soon = await kept.ledger.now() + 50
    late = asked(session, "r2", deadline=soon)
    await worker.ask(asked(session, "r1"), late)
    assert worker.word(late) == "held"
    while await kept.ledger.now() <= soon:
        await asyncio.sleep(0.01)
    await desk.try_again()
    assert worker.word(late) == "expired"
    assert (await kept.info(session)).call_count == 1


async def test_what_is_repeated_no_more_is_forgotten_and_never_granted(kept: Books, session: SessionOpened) -> None:
    await kept.register("a", limit=1)
    desk = Desk(kept.ledger, timings=timings(lease_seconds=0.2, heartbeat_seconds=0.04))
    dead, living = Worker(desk), Worker(desk, "w2")
    running, left_behind, waiting = (asked(session, f"r{number}") for number in range(3))
    await living.ask(running)
    await dead.ask(left_behind)
    await living.ask(waiting)
    await asyncio.sleep(0.21)
    await living.ask(waiting)  # a living worker repeats what it has no answer to
    await kept.settle(session, running)
    await desk.try_again("a")
    assert (dead.word(left_behind), living.word(waiting)) == ("held", "granted")
    assert (await kept.info(session)).call_count == 2


async def test_a_worker_that_cannot_be_told_keeps_nobody_else_from_hearing(
    desk: Desk, kept: Books, session: SessionOpened, caplog: pytest.LogCaptureFixture
) -> None:
    unreachable, worker = Worker(desk), Worker(desk, "w2")
    holder, one, two = (asked(session, "r1") for _ in range(3))
    await worker.ask(holder)
    await unreachable.ask(one)
    await worker.ask(two)
    unreachable.unreachable = True
    await kept.settle(session, holder)
    await desk.try_again("a")
    assert worker.word(two) == "replayed"
    assert "could not be told" in caplog.text


async def test_while_the_ledger_is_out_of_reach_nobody_is_refused_and_nobody_is_held(
    desk: Desk, kept: Books, session: SessionOpened
) -> None:
    await kept.register("a", limit=1)
    worker = Worker(desk)
    running, waiting = asked(session, "r1"), asked(session, "r2")
    await worker.ask(running, waiting)
    assert worker.word(waiting) == "held"
    worker.held.clear()
    assert isinstance(kept.ledger, SqliteLedger)
    kept.ledger._connection.close()  # the disk is gone
    fresh = asked(session, "r3")
    await worker.ask(waiting, fresh)
    await desk.try_again()
    assert (worker.word(waiting), worker.word(fresh)) == ("nothing", "nothing")


async def test_a_defect_at_one_admit_is_no_answer_to_its_neighbours(
    desk: Desk, session: SessionOpened, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(desk)
    fine = asked(session, "r2")
    # What no worker can say, so that it gets as far as the store.
    unkeepable = asked(session, "r1").model_copy(update={"target": "half a character: \ud83d"})
    await worker.ask(unkeepable, fine)
    assert (worker.word(unkeepable), worker.word(fine)) == ("internal", "granted")
    assert "A defect" in caplog.text


async def test_after_a_gap_of_this_services_own_a_targets_limit_still_holds(
    desk: Desk, kept: Books, session: SessionOpened
) -> None:
    await kept.register("a", limit=1)
    worker = Worker(desk)
    await worker.ask(asked(session, "r1"))
    await kept.lapse("w1")  # nobody was there to hear it renew
    kept.ledger.mourn_from(await kept.ledger.now() + 15_000)
    second = asked(session, "r2")
    await worker.ask(second)
    assert worker.word(second) == "held"


async def test_a_deadline_that_nobody_named_begins_when_the_call_is_first_heard(desk: Desk, kept: Books) -> None:
    await kept.register("a", limit=1)
    session = await kept.open(deadline_seconds=100)
    worker = Worker(desk)
    running, waiting = asked(session, "r1"), asked(session, "r2")
    before = await kept.ledger.now()
    await worker.ask(running, waiting)
    after = await kept.ledger.now()
    while await kept.ledger.now() < after + 20:
        await asyncio.sleep(0.01)
    await worker.ask(waiting)  # it repeats what it has no answer to, and names no deadline this time either
    await kept.settle(session, running)
    await desk.try_again("a")
    assert worker.word(waiting) == "granted"
    assert before + 100_000 <= worker.told[waiting.attempt_id].deadline <= after + 100_000


async def test_a_deadline_that_is_named_stays_as_it_is_named(desk: Desk, kept: Books, session: SessionOpened) -> None:
    await kept.register("a", limit=1)
    worker = Worker(desk)
    named = await kept.ledger.now() + 12_345
    running, waiting = asked(session, "r1"), asked(session, "r2", deadline=named)
    await worker.ask(running, waiting)
    await kept.settle(session, running)
    await desk.try_again("a")
    assert worker.told[waiting.attempt_id].deadline == named


async def test_a_worker_without_a_lease_waits_and_keeps_nobody_else_waiting(
    desk: Desk, kept: Books, session: SessionOpened
) -> None:
    await kept.register("a", limit=1)
    stranger, worker = Worker(desk, "stranger"), Worker(desk)
    running, first, second = (asked(session, f"r{number}") for number in range(3))
    await worker.ask(running)
    await stranger.ask(first)
    await worker.ask(second)
    await kept.settle(session, running)
    await desk.try_again("a")
    assert (stranger.word(first), worker.word(second)) == ("held", "granted")
    await kept.settle(session, second)
    await kept.register("a", incarnation="stranger")
    await desk.try_again()
    assert stranger.word(first) == "granted"


async def test_a_duplicate_is_answered_when_its_call_ends_though_the_target_is_paused(
    desk: Desk, kept: Books, session: SessionOpened
) -> None:
    worker = Worker(desk)
    holder, fresh, duplicate = asked(session, "r1"), asked(session, "r2"), asked(session, "r1")
    await worker.ask(holder)
    await kept.pause("a", 60_000)
    await worker.ask(fresh, duplicate)
    await kept.settle(session, holder)
    await desk.try_again("a")
    assert (worker.word(fresh), worker.word(duplicate)) == ("held", "replayed")


async def test_what_waited_for_the_end_of_a_pause_goes_on_at_the_next_sweep(
    desk: Desk, kept: Books, session: SessionOpened
) -> None:
    worker = Worker(desk)
    until = await kept.pause("a", 50)
    assert until is not None
    waiting = [asked(session, "r1"), asked(session, "r2"), asked(session, "r3", target="b")]
    await worker.ask(*waiting)
    assert [worker.word(ask) for ask in waiting] == ["held", "held", "granted"]
    while await kept.ledger.now() < until:
        await asyncio.sleep(0.01)
    await desk.try_again()
    assert [worker.word(ask) for ask in waiting] == ["granted"] * 3


async def test_a_duplicate_that_came_to_wait_for_a_slot_is_no_duplicate_any_more(
    desk: Desk, kept: Books, session: SessionOpened
) -> None:
    worker = Worker(desk)
    holder = asked(session, "r1")
    duplicates = [asked(session, "r1") for _ in range(MOST_HELD)]
    await worker.ask(holder, *duplicates)
    await kept.settle(session, holder, Outcome.REFUND)
    await kept.pause("a", 60_000)
    await desk.try_again("a")
    await desk.try_again()
    one_more = asked(session, "r1")
    await worker.ask(one_more)
    assert {worker.word(ask) for ask in (*duplicates, one_more)} == {"held"}

"""What waits for a quota in a worker, by session: nobody's calls keep those of others behind them in the queue."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from quintain.bus.base import PUBLISH_TIMEOUT_SECONDS, Envelope
from quintain.bus.memory import MemoryBroker
from quintain.config.prices import Price
from quintain.contracts.ledger import Admission, Admit
from quintain.contracts.quota import QuotaCard, QuotaTerms
from quintain.errors import QueueFull
from quintain.topology import BACKLOG, Exchange, backlog_queue, target_queue
from quintain_worker.call_slots import MIN_WAITING, WAITING_PLACES, SessionWaits
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, grant, next_item, send_again
from support.quick import timings
from support.running_worker import GatedProvider, next_result, running_worker
from support.waiting import wait_until
from unit.worker.test_worker_groups import call_item, next_replies, send_group

QUOTA = QuotaCard(id="key", name="team", terms=QuotaTerms())

#: How many calls one session publishes at once.
MANY = 1_000


async def test_a_session_has_as_many_calls_waiting_as_there_are_free_places() -> None:
    free = 100
    waits = SessionWaits(MemoryBroker().connect(), "a", lambda: free)

    def fill(session: str) -> int:
        nonlocal free
        count = 0
        while waits.has_room(session):
            waits.begin(session)
            free -= 1
            count += 1
        return count

    assert [fill(session) for session in ("a", "a", "b", "c")] == [50, 0, 25, 13]
    waits.end("b")
    free += 1
    assert fill("b") == 0, "b has more than its share since c came"
    free = 0
    assert fill("new") == MIN_WAITING


async def test_what_is_on_its_way_to_the_backlog_leaves_room() -> None:
    waits = SessionWaits(MemoryBroker().connect(), "a", lambda: 0)
    for _ in range(MIN_WAITING):
        waits.begin("a")
    for _ in range(MIN_WAITING + 1):
        waits.leave()
    assert waits.has_room("a")
    waits.left()
    assert not waits.has_room("a")


def hold_many(ledger: FakeLedgerService) -> None:
    """Let the calls of the session that publishes many wait for its quota."""

    def decide(ask: Admit) -> Admission | str:
        return "held" if ask.request_id.startswith("r-many") else grant(ask)

    ledger.admit_policy = decide


def count_messages(ledger: FakeLedgerService) -> Counter[str]:
    queues = {"queue": target_queue("a"), "backlog": backlog_queue("a")}
    return Counter({name: len(ledger.memory.queue(queue.name).ready) for name, queue in queues.items()})


async def publish_many(evaluator: FakeEvaluator, count: int = MANY) -> None:
    for number in range(count):
        await evaluator.send_request(f"many{number}")


async def test_a_few_calls_do_not_wait_behind_a_thousand_of_another_session(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    hold_many(ledger)
    few = FakeEvaluator(ledger.memory.connect(), "a")
    async with running_worker(ledger, GatedProvider(), quota=QUOTA) as (worker, bus):
        moved = Counter[Exchange]()
        publish = bus.publish

        async def counted(
            exchange: Exchange, key: str, envelope: Envelope, *, timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS
        ) -> None:
            moved[exchange] += 1
            await publish(exchange, key, envelope, timeout_seconds=timeout_seconds)

        bus.publish = counted  # type: ignore[method-assign]
        await publish_many(evaluator)
        for number in range(10):
            await few.send_request(f"few{number}", reply_to=evaluator.reply_key)
        for _ in range(10):
            assert (await next_result(evaluator)).raw_text == "yes"
        # Nothing is lost, and each is moved once at most: those from the backlog stay.
        await wait_until(lambda: worker.card().in_flight + count_messages(ledger)["backlog"] == MANY)
        assert count_messages(ledger)["queue"] == 0
        assert MANY - 2 * (10 + WAITING_PLACES) <= moved[BACKLOG] <= MANY
        at_rest = moved[BACKLOG]
        await asyncio.sleep(0.05)
        assert moved[BACKLOG] == at_rest


async def test_all_calls_are_answered_once_the_quota_takes_them(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    hold_many(ledger)
    async with running_worker(ledger, GatedProvider(), quota=QUOTA, timings=timings(admit_repeat_seconds=0.3)):
        await publish_many(evaluator, 400)
        await wait_until(lambda: count_messages(ledger)["queue"] == 0)
        ledger.admit_policy = grant
        answered = {(await next_item(evaluator.replies)).correlation_id for _ in range(400)}
    assert len(answered) == 400
    assert evaluator.replies.empty()


@pytest.mark.parametrize("slots", [1, 2, 20])
async def test_calls_that_wait_for_money_leave_a_place_to_one_whose_worker_was_lost(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, slots: int
) -> None:
    def decide(ask: Admit) -> Admission | str:
        return "held" if ask.request_id.startswith("r-many") else grant(ask)

    ledger.admit_policy = decide
    async with running_worker(
        ledger, GatedProvider(), price=Price(per_call=0.01), worker_concurrency=slots, max_concurrency=64
    ):
        await publish_many(evaluator, 100)
        held = {(await next_item(ledger.admits)).request_id for _ in range(slots)}
        assert all(each.startswith("r-many") for each in held)
        await wait_until(lambda: count_messages(ledger)["queue"] == 0)
        await send_again(ledger, evaluator, *(f"lost{number}" for number in range(2 * slots)))
        for _ in range(2 * slots):
            assert (await next_result(evaluator)).raw_text == "yes"


async def test_groups_are_moved_as_they_are(ledger: FakeLedgerService, evaluator: FakeEvaluator) -> None:
    hold_many(ledger)
    async with running_worker(ledger, GatedProvider(), quota=QUOTA):
        for start in range(0, MANY, 50):
            await send_group(evaluator, [call_item(f"many{number}") for number in range(start, start + 50)])
        few = FakeEvaluator(ledger.memory.connect(), "a")
        await send_group(few, [call_item(f"few{number}") for number in range(4)])
        assert set((await next_replies(evaluator, 4)).values()) == {"result"}
        await wait_until(lambda: count_messages(ledger)["queue"] == 0)


async def test_where_the_backlog_takes_nothing_calls_wait_where_they_are(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, caplog: pytest.LogCaptureFixture
) -> None:
    hold_many(ledger)
    async with running_worker(ledger, GatedProvider(), quota=QUOTA) as (worker, bus):
        publish = bus.publish

        async def refuse(
            exchange: Exchange, key: str, envelope: Envelope, *, timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS
        ) -> None:
            if exchange == BACKLOG:
                raise QueueFull("full")
            await publish(exchange, key, envelope, timeout_seconds=timeout_seconds)

        bus.publish = refuse  # type: ignore[method-assign]
        await publish_many(evaluator, 300)
        await wait_until(lambda: "could not be moved" in caplog.text)
        await wait_until(lambda: worker.card().in_flight + count_messages(ledger)["queue"] == 300)
        told = caplog.text.count("could not be moved")
        await asyncio.sleep(0.1)
        assert caplog.text.count("could not be moved") == told

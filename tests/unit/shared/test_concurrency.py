"""Batches, budgets of bytes, limits of time and random names: many at a time, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import math

import pytest

from quintain.contracts.ledger import Admit
from quintain.runtime.concurrency import (
    BLOCK_BYTES,
    NAME_BYTES,
    Batcher,
    BatchSender,
    ByteBudget,
    RandomIds,
    TimeLimit,
    TimeLimits,
)

# Sending many things as few messages: nobody waits alone, nobody pays for another's mistake but their batch's.


class SlowSender:
    """Somewhere to send to: keeps every batch, and lets each through when told to."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.begun: asyncio.Queue[list[str]] = asyncio.Queue()
        self.go_on = asyncio.Event()
        self.broken: set[str] = set()
        self.in_flight = self.max_in_flight = 0

    async def send(self, items: list[str]) -> None:
        self.batches.append(items)
        self.begun.put_nowait(items)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            await self.go_on.wait()
        finally:
            self.in_flight -= 1
        if self.broken & set(items):
            raise OSError(f"cannot send {sorted(self.broken & set(items))}")


@pytest.fixture
def sender() -> SlowSender:
    return SlowSender()


def add_all(batcher: Batcher[str], *items: str) -> list[asyncio.Future[None]]:
    return [batcher.add(item) for item in items]


async def test_no_batch_has_more_than_the_most_and_order_is_kept(sender: SlowSender) -> None:
    sender.go_on.set()
    batcher = Batcher(sender.send, max_batch=3)
    await asyncio.gather(*(batcher.add(str(number)) for number in range(8)))
    assert sender.batches == [["0", "1", "2"], ["3", "4", "5"], ["6", "7"]]


async def test_a_full_batch_of_a_key_goes_while_others_are_under_way_and_the_rest_waits(sender: SlowSender) -> None:
    keyed = BatchSender[str, str](lambda key, items: sender.send([key + item for item in items]), full_at_once=True)
    for number in range(5):
        keyed.add("a", str(number), max_batch=2)
    keyed.add("b", "0", max_batch=2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert sorted(sender.batches) == [["a0", "a1"], ["a2", "a3"], ["a4"], ["b0"]]
    keyed.add("a", "5", max_batch=3)
    keyed.add("a", "6", max_batch=3)
    keyed.add("b", "1", max_batch=3)
    for _ in range(5):
        await asyncio.sleep(0)
    assert sender.batches[4:] == []
    keyed.add("a", "7", max_batch=1)  # fewer fit into a batch than before
    for _ in range(5):
        await asyncio.sleep(0)
    assert sender.batches[4:] == [["a5"], ["a6"], ["a7"]]
    sender.go_on.set()
    while len(sender.batches) < 8:
        await asyncio.sleep(0)
    assert sender.batches[7:] == [["b1"]]


async def test_so_many_batches_are_under_way_as_there_are_lanes(sender: SlowSender) -> None:
    batcher = Batcher(sender.send, max_batch=1, max_concurrent=2)
    adds = add_all(batcher, "a", "b", "c", "d", "e")
    assert [await sender.begun.get(), await sender.begun.get()] == [["a"], ["b"]]
    await asyncio.sleep(0)
    assert sender.begun.empty()
    sender.go_on.set()
    await asyncio.gather(*adds)
    assert sender.max_in_flight == 2
    assert sorted(item for batch in sender.batches for item in batch) == ["a", "b", "c", "d", "e"]


async def test_an_error_reaches_all_items_of_its_batch_and_only_them(sender: SlowSender) -> None:
    sender.broken = {"b"}
    batcher = Batcher(sender.send)
    first = add_all(batcher, "a")
    await sender.begun.get()
    second = add_all(batcher, "b", "c")
    sender.go_on.set()
    outcomes = await asyncio.gather(*first, *second, return_exceptions=True)
    assert outcomes[0] is None
    assert [type(outcome) for outcome in outcomes[1:]] == [OSError, OSError]
    sender.broken = set()
    await batcher.add("d")
    assert sender.batches[-1] == ["d"]


async def test_whoever_stops_waiting_disturbs_nobody_and_the_item_goes_all_the_same(sender: SlowSender) -> None:
    batcher = Batcher(sender.send)
    first = add_all(batcher, "a")
    await sender.begun.get()
    impatient, patient = add_all(batcher, "b", "c")
    await asyncio.sleep(0)
    impatient.cancel()
    first[0].cancel()
    sender.go_on.set()
    await patient
    assert sender.batches == [["a"], ["b", "c"]]
    assert impatient.cancelled()
    assert first[0].cancelled()
    await batcher.add("d")


async def test_a_close_sends_what_waits_and_takes_no_more(sender: SlowSender) -> None:
    keyed = BatchSender[None, str](lambda _, items: sender.send(items))
    keyed.add(None, "a")
    await sender.begun.get()
    keyed.add(None, "b")
    closing = asyncio.get_running_loop().create_task(keyed.close(10))
    await asyncio.sleep(0)
    keyed.add(None, "c")
    sender.go_on.set()
    await closing
    assert sender.batches == [["a"], ["b"]]


async def test_a_close_gives_up_after_its_time_and_begins_nothing_more(sender: SlowSender) -> None:
    before, keyed = asyncio.all_tasks(), BatchSender[None, str](lambda _, items: sender.send(items))
    keyed.add(None, "a")
    await sender.begun.get()
    keyed.add(None, "b")
    await keyed.close(0.01)
    await asyncio.sleep(0.01)
    assert (sender.batches, asyncio.all_tasks()) == ([["a"]], before)


# A budget of bytes: who wants more than are left waits, in order; nobody waits for ever.


async def test_so_many_bytes_are_held_at_a_time_in_the_order_of_asking() -> None:
    budget, begun, ends = ByteBudget(10), list[int](), {size: asyncio.Event() for size in (6, 4, 12, 1)}

    async def hold(size: int) -> None:
        async with budget.hold(size):
            begun.append(size)
            await ends[size].wait()

    holders = {size: asyncio.ensure_future(hold(size)) for size in ends}
    for ended, expected in ((6, [6, 4]), (4, [6, 4]), (12, [6, 4, 12]), (1, [6, 4, 12, 1])):
        await asyncio.sleep(0.01)
        assert begun == expected
        ends[ended].set()
        await holders[ended]


async def test_who_gives_up_takes_nothing_with_them() -> None:
    budget, end = ByteBudget(10), asyncio.Event()

    async def hold() -> None:
        async with budget.hold(10):
            await end.wait()

    first, second, third = (asyncio.ensure_future(hold()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    first.cancel()
    end.set()
    async with asyncio.timeout(5):
        await third


# Limits of time for many blocks: each ends at its own time, and a cancellation from elsewhere stays one.


async def ends_after(limits: TimeLimits, seconds: float) -> float:
    """Wait for ever in a block of so many seconds; returns how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError), TimeLimit(limits, began + seconds):
        await loop.create_future()
    return loop.time() - began


async def test_each_block_ends_at_its_own_time_whatever_the_order() -> None:
    limits = TimeLimits()
    wanted = [0.3, 0.05, 0.2, -1.0, 0.05]
    taken = await asyncio.gather(*(ends_after(limits, seconds) for seconds in wanted))
    assert all(took >= seconds for took, seconds in zip(taken, wanted, strict=True))
    assert sorted(range(5), key=taken.__getitem__)[-2:] == [2, 0]
    assert not limits.running


async def test_a_block_that_ends_in_time_is_not_touched() -> None:
    limits, loop = TimeLimits(), asyncio.get_running_loop()
    with TimeLimit(limits, loop.time() + 0.02):
        await asyncio.sleep(0)
    with TimeLimit(limits, math.inf):
        await asyncio.sleep(0.1)
    assert not limits.running


async def test_a_task_that_is_cancelled_is_cancelled_and_an_error_stays_itself() -> None:
    limits, loop = TimeLimits(), asyncio.get_running_loop()

    async def wait() -> None:
        with TimeLimit(limits, loop.time() + 30):
            await loop.create_future()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(OSError, match="own"), TimeLimit(limits, loop.time() + 30):
        raise OSError("own")
    assert not limits.running


async def test_a_cancellation_in_the_moment_of_the_end_is_not_lost() -> None:
    limits, loop = TimeLimits(), asyncio.get_running_loop()

    async def wait() -> None:
        with TimeLimit(limits, loop.time() + 30):
            await loop.create_future()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    next(iter(limits.running)).end()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Random names, taken from blocks, and messages made unchecked from values that were read before.


def test_no_name_comes_twice_also_from_block_to_block() -> None:
    ids = RandomIds()
    names = [ids.next() for _ in range(3 * BLOCK_BYTES // NAME_BYTES)]
    assert len(set(names)) == len(names)
    assert {len(name) for name in names} == {2 * NAME_BYTES}


def test_a_trusted_message_is_the_one_that_pydantic_makes() -> None:
    given = {"token": "qtn_x", "request_id": "r", "attempt_id": "a", "target": "bot", "body_sha256": "b", "deadline": 5}
    fields = dict.fromkeys(Admit.model_fields) | given
    trusted, made = Admit.unchecked(**fields), Admit.model_construct(**fields)  # type: ignore[arg-type]
    assert trusted == made
    assert trusted.to_wire() == made.to_wire()
    assert trusted.model_copy(update={"target": "other"}).target == "other"

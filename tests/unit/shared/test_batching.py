"""Sending many things as few messages: nobody waits alone, nobody pays for another's mistake but their batch's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from quintain.batching import Batcher


class Line:
    """Somewhere to send to: keeps every batch, and lets each through when told to."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.begun: asyncio.Queue[list[str]] = asyncio.Queue()
        self.go_on = asyncio.Event()
        self.broken: set[str] = set()
        self.under_way = self.most_under_way = 0

    async def send(self, items: list[str]) -> None:
        self.batches.append(items)
        self.begun.put_nowait(items)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.go_on.wait()
        finally:
            self.under_way -= 1
        if self.broken & set(items):
            raise OSError(f"cannot send {sorted(self.broken & set(items))}")


@pytest.fixture
def line() -> Line:
    return Line()


def adding(batcher: Batcher[str], *items: str) -> list[asyncio.Future[None]]:
    return [batcher.add(item) for item in items]


async def test_the_first_goes_at_once_and_the_others_together_when_it_has_gone(line: Line) -> None:
    batcher = Batcher(line.send)
    first = adding(batcher, "a")
    assert await line.begun.get() == ["a"]
    others = adding(batcher, "b", "c", "d")
    await asyncio.sleep(0)
    assert line.batches == [["a"]]
    line.go_on.set()
    await asyncio.gather(*first, *others)
    assert line.batches == [["a"], ["b", "c", "d"]]


async def test_what_is_ready_at_the_same_moment_goes_together_and_in_order(line: Line) -> None:
    line.go_on.set()
    batcher = Batcher(line.send, lanes=4)
    await asyncio.gather(*(batcher.add(str(number)) for number in range(10)))
    assert line.batches == [[str(number) for number in range(10)]]


async def test_no_batch_has_more_than_the_most_and_order_is_kept(line: Line) -> None:
    line.go_on.set()
    batcher = Batcher(line.send, most=3)
    await asyncio.gather(*(batcher.add(str(number)) for number in range(8)))
    assert line.batches == [["0", "1", "2"], ["3", "4", "5"], ["6", "7"]]


async def test_so_many_batches_are_under_way_as_there_are_lanes(line: Line) -> None:
    batcher = Batcher(line.send, most=1, lanes=2)
    adds = adding(batcher, "a", "b", "c", "d", "e")
    assert [await line.begun.get(), await line.begun.get()] == [["a"], ["b"]]
    await asyncio.sleep(0)
    assert line.begun.empty()
    line.go_on.set()
    await asyncio.gather(*adds)
    assert line.most_under_way == 2
    assert sorted(item for batch in line.batches for item in batch) == ["a", "b", "c", "d", "e"]


async def test_an_item_alone_costs_one_task_however_many_lanes_are_free(line: Line) -> None:
    line.go_on.set()
    made: list[object] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        made.append(work)
        return asyncio.Task(work, loop=loop)

    asyncio.get_running_loop().set_task_factory(factory)  # type: ignore[arg-type]
    await Batcher(line.send, lanes=4).add("a")
    assert len(made) == 1


async def test_an_error_reaches_all_items_of_its_batch_and_only_them(line: Line) -> None:
    line.broken = {"b"}
    batcher = Batcher(line.send)
    first = adding(batcher, "a")
    await line.begun.get()
    second = adding(batcher, "b", "c")
    line.go_on.set()
    outcomes = await asyncio.gather(*first, *second, return_exceptions=True)
    assert outcomes[0] is None
    assert [type(outcome) for outcome in outcomes[1:]] == [OSError, OSError]
    line.broken = set()
    await batcher.add("d")
    assert line.batches[-1] == ["d"]


async def test_whoever_stops_waiting_disturbs_nobody_and_the_item_goes_all_the_same(line: Line) -> None:
    batcher = Batcher(line.send)
    first = adding(batcher, "a")
    await line.begun.get()
    impatient, patient = adding(batcher, "b", "c")
    await asyncio.sleep(0)
    impatient.cancel()
    first[0].cancel()
    line.go_on.set()
    await patient
    assert line.batches == [["a"], ["b", "c"]]
    assert impatient.cancelled()
    assert first[0].cancelled()
    await batcher.add("d")


async def test_an_error_nobody_waits_for_any_more_is_no_warning(line: Line) -> None:
    line.broken = {"a"}
    batcher = Batcher(line.send)
    (gone,) = adding(batcher, "a")
    await line.begun.get()
    gone.cancel()
    line.go_on.set()
    await asyncio.gather(gone, return_exceptions=True)
    await batcher.add("b")
    assert line.batches == [["a"], ["b"]]


async def test_a_batch_that_ends_leaves_no_task_behind(line: Line) -> None:
    line.go_on.set()
    before = asyncio.all_tasks()
    batcher = Batcher(line.send, lanes=3)
    for number in range(5):
        await batcher.add(str(number))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before

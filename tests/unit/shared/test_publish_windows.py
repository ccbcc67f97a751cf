"""How many calls of a session to a target with a quota a client publishes at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from quintain.client.publish_windows import MAX_PUBLISHED_BY_ANSWER, RUNNING_SHARE, WINDOW, PublishWindows
from quintain.errors import Expired


async def enter(windows: PublishWindows, count: int, seconds: float = 60) -> list[asyncio.Task[None]]:
    """Begin so many calls, and let those that may be published be so."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(windows.enter("a", loop.time() + seconds)) for _ in range(count)]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


def count_published(tasks: Sequence[asyncio.Task[None]]) -> int:
    return sum(task.done() for task in tasks)


async def end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_session_publishes_its_window_and_one_more_for_each_answer() -> None:
    windows = PublishWindows(lambda _: True)
    tasks = await enter(windows, WINDOW + 10)
    assert count_published(tasks) == WINDOW
    windows.leave("a")
    await asyncio.sleep(0)
    assert count_published(tasks) == WINDOW + 1
    await end(tasks)


@pytest.mark.parametrize("running", [10, 40, 200])
async def test_as_many_as_run_are_published_beside_the_window(running: int) -> None:
    windows = PublishWindows(lambda _: True)
    tasks = await enter(windows, 2_500)
    begun = 0
    for left in range(2_000):
        while tasks[begun].done():
            begun += 1
        # Of what is published so many run at a time; a call takes the longer the more wait with it.
        windows.leave("a", running_seconds=1.0, seconds=max(1.0, (begun - left) / running))
        await asyncio.sleep(0)
    expected = WINDOW + (1 + RUNNING_SHARE) * running
    assert count_published(tasks) - 2_000 == pytest.approx(expected, rel=0.1)
    await end(tasks)


async def test_where_messages_take_little_of_the_time_thousands_are_published_by_a_few_answers_each() -> None:
    windows = PublishWindows(lambda _: True)
    tasks = await enter(windows, 6_000)
    published = count_published(tasks)
    for _ in range(2 * WINDOW):
        windows.leave("a", running_seconds=15.0, seconds=17.0)
        await asyncio.sleep(0)
        assert count_published(tasks) - published <= MAX_PUBLISHED_BY_ANSWER
        published = count_published(tasks)
    assert published > 1_000
    await end(tasks)


async def test_nothing_waits_for_a_target_without_a_quota_also_where_that_is_learned_later() -> None:
    has_quota = True
    windows = PublishWindows(lambda _: has_quota)
    tasks = await enter(windows, 3 * WINDOW)
    has_quota = False
    tasks += await enter(windows, WINDOW)
    assert count_published(tasks) == 2 * WINDOW
    windows.leave("a")
    await asyncio.sleep(0)
    assert count_published(tasks) == 4 * WINDOW


async def test_a_call_that_waits_ends_at_its_deadline_and_takes_no_place() -> None:
    windows = PublishWindows(lambda _: True)
    published = await enter(windows, WINDOW)
    (late,) = await enter(windows, 1, seconds=0.01)
    cancelled, waits = await enter(windows, 2)
    with pytest.raises(Expired) as told:
        await late
    assert told.value.charged is False
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    windows.leave("a")
    await waits
    assert count_published(published) == WINDOW


async def test_a_call_that_is_cancelled_as_it_is_admitted_gives_its_place_to_the_next() -> None:
    windows = PublishWindows(lambda _: True)
    await enter(windows, WINDOW)
    first, second = await enter(windows, 2)
    windows.leave("a")
    first.cancel()
    await second
    await asyncio.gather(first, return_exceptions=True)
    assert first.cancelled()

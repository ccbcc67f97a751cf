"""Time limits that share one timer: each as `asyncio.timeout`, however many there are, in whatever order they end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from quintain.runtime import concurrency as module
from quintain.runtime.concurrency import Timeouts


async def test_a_wait_that_takes_too_long_ends_and_one_in_time_does_not() -> None:
    timeouts = Timeouts()
    with pytest.raises(TimeoutError), timeouts.limit(0.01):
        await asyncio.Event().wait()
    with timeouts.limit(60):
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_limit_that_has_passed_ends_the_first_wait(seconds: float) -> None:
    with pytest.raises(TimeoutError), Timeouts().limit(seconds):
        await asyncio.Event().wait()


async def test_the_earliest_limit_ends_first_whatever_was_started_first() -> None:
    timeouts, ended = Timeouts(), list[float]()

    async def wait(seconds: float) -> None:
        try:
            with timeouts.limit(seconds):
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append(seconds)

    waits = [0.06, math.inf, 0.02, 0.04, 60]
    tasks = [asyncio.ensure_future(wait(seconds)) for seconds in waits]
    await asyncio.wait([tasks[0], tasks[2], tasks[3]])
    assert ended == [0.02, 0.04, 0.06]
    for task in (tasks[1], tasks[4]):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_cancelled_wait_is_cancelled_also_at_its_limit() -> None:
    timeouts, loop = Timeouts(), asyncio.get_running_loop()

    async def wait() -> None:
        with timeouts.limit(0):
            # Both in one iteration of the loop: the limit has expired and the task was cancelled.
            loop.call_soon(task.cancel)
            await asyncio.Event().wait()

    task = loop.create_task(wait())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_inner_limit_leaves_the_outer_one_alone() -> None:
    timeouts = Timeouts()
    with timeouts.limit(60), pytest.raises(TimeoutError), timeouts.limit(0.01):
        await asyncio.Event().wait()
    with pytest.raises(TimeoutError), timeouts.limit(0.01), timeouts.limit(60):
        await asyncio.Event().wait()


async def test_limits_that_have_ended_are_not_kept_and_make_no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts, loop = Timeouts(), asyncio.get_running_loop()
    timers, call_at = list[float](), loop.call_at

    def note_timer(at: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        timers.append(at)
        return call_at(at, callback)

    monkeypatch.setattr(loop, "call_at", note_timer)
    for _ in range(10 * module.MIN_REMOVED):
        with timeouts.limit(60):
            pass
    assert len(timeouts._limits) <= 2 * module.MIN_REMOVED
    assert len(timers) == 1

"""Limits of time for many blocks: each ends at its own time, and a cancellation from elsewhere stays one."""

from __future__ import annotations

import asyncio
import math

import pytest

from quintain.runtime.concurrency import TimeLimit, TimeLimits


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

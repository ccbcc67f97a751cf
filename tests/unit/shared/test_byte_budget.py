"""A budget of bytes: who wants more than are left waits, in order; nobody waits for ever."""

from __future__ import annotations

import asyncio

from quintain.runtime.concurrency import ByteBudget


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

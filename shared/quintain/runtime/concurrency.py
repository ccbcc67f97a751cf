"""Runs a coroutine function for many items, few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


async def run_for_each(items: Iterable[Item], work: Callable[[Item], Awaitable[object]], *, limit: int) -> None:
    """Run ``work`` for each item, at most ``limit`` at a time; raises the first error, and cancels the others then.

    Example::

        await run_for_each(urls, fetch, limit=4)
    """
    remaining = iter(items)

    async def run_remaining() -> None:
        for item in remaining:
            await work(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(limit):
                tasks.create_task(run_remaining())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None

"""Bounds what is in memory by its bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class ByteBudget:
    """So many bytes may be held at a time; who wants more than are left waits, in the order of asking.

    Example::

        async with budget.hold(len(body)):
            await send(body)
    """

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._turn = asyncio.Lock()
        self._given_back = asyncio.Event()

    @contextlib.asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Hold ``size`` bytes while the context is open; more than there are is all of them."""
        size = min(size, self._total)
        async with self._turn:
            while self._free < size:
                self._given_back.clear()
                await self._given_back.wait()
            self._free -= size
        try:
            yield
        finally:
            self._free += size
            self._given_back.set()

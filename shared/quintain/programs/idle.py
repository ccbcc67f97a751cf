"""A time limit on silence: what goes on is not ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class IdleLimit:
    """Ends a block with `TimeoutError` when `touch` was not called for ``seconds``; None is no limit.

    Example::

        idle = IdleLimit(60)
        async with idle.watch():
            async for piece in pieces:
                idle.touch()
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Watch the block; the silence begins now."""
        async with asyncio.timeout(self._seconds) as self._timeout:
            yield
        self._timeout = None

    def touch(self) -> None:
        """Begin the silence anew."""
        if self._seconds is not None and self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)

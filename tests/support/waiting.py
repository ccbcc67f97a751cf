"""Waiting until something holds, for so long at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def wait_until(condition: Callable[[], object], *, seconds: float = 60) -> None:
    """Look again and again, while other tasks go on; `TimeoutError` says that it never held."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def block_until(condition: Callable[[], object], *, seconds: float = 60) -> None:
    """The same where no event loop runs."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"not within {seconds} s"
        time.sleep(0.02)

"""Liveness and readiness as they are said to a probe.

Live says that the process answers. Ready says that every check passes: each looks at one thing that the service cannot
do without, and bounds itself by `READY_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from quintain.contracts.message import Message

#: A round trip that takes longer is none.
READY_SECONDS = 2.0

#: A verdict is told again for so long: probes cannot flood the broker.
VERDICT_SECONDS = 1.0

#: What is not ready, as a sentence; None where it is.
Check = Callable[[], Awaitable[str | None]]


class Live(Message):
    """The process answers."""

    status: Literal["live"] = "live"


class Readiness(Message):
    """Whether everything is there that this service cannot do without, and where it is not, what."""

    status: Literal["ready", "unready"]
    reason: str | None = None


class Probe:
    """Asks the check, at most once a second, however many want to know."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._asking: asyncio.Task[Readiness] | None = None
        self._stale_at = 0.0

    async def verdict(self) -> Readiness:
        """Whether it is ready, now or a moment ago."""
        loop = asyncio.get_running_loop()
        if self._asking is None or (self._asking.done() and loop.time() >= self._stale_at):
            self._asking = loop.create_task(self._ask())
        # Whoever asked first may leave; the others still want to know.
        return await asyncio.shield(self._asking)

    async def _ask(self) -> Readiness:
        try:
            reason = await self._check()
        finally:
            self._stale_at = asyncio.get_running_loop().time() + VERDICT_SECONDS
        return Readiness(status="ready" if reason is None else "unready", reason=reason)


def all_of(*checks: Check) -> Check:
    """All of them at once: whatever is not ready, in one sentence after the other."""

    async def check() -> str | None:
        reasons = await asyncio.gather(*(one() for one in checks))
        return "; ".join(reason for reason in reasons if reason is not None) or None

    return check

"""Liveness and readiness as reported to probes.

Live: the process answers. Ready: every check passes. Each check covers one dependency and is bounded by
`CHECK_TIMEOUT_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from quintain.contracts.message import Message

#: A round trip that takes longer is none.
CHECK_TIMEOUT_SECONDS = 2.0

#: A verdict is told again for so long: probes cannot flood the broker.
READINESS_CACHE_SECONDS = 1.0

#: What is not ready, as a sentence; None where it is.
HealthCheck = Callable[[], Awaitable[str | None]]


class Live(Message):
    """The process answers."""

    status: Literal["live"] = "live"


class Readiness(Message):
    """Whether everything is there that this service cannot do without, and where it is not, what."""

    status: Literal["ready", "unready"]
    reason: str | None = None


class ReadinessProbe:
    """Asks the check, at most once a second, however many want to know."""

    def __init__(self, check: HealthCheck) -> None:
        self._check = check
        self._check_task: asyncio.Task[Readiness] | None = None
        self._expires_at = 0.0

    async def readiness(self) -> Readiness:
        """Whether it is ready, now or a moment ago."""
        loop = asyncio.get_running_loop()
        if self._check_task is None or (self._check_task.done() and loop.time() >= self._expires_at):
            self._check_task = loop.create_task(self._run_check())
        # Whoever asked first may leave; the others still want to know.
        return await asyncio.shield(self._check_task)

    async def _run_check(self) -> Readiness:
        try:
            reason = await self._check()
        finally:
            self._expires_at = asyncio.get_running_loop().time() + READINESS_CACHE_SECONDS
        return Readiness(status="ready" if reason is None else "unready", reason=reason)


def combine_checks(*checks: HealthCheck) -> HealthCheck:
    """All of them at once: whatever is not ready, in one sentence after the other."""

    async def check() -> str | None:
        reasons = await asyncio.gather(*(each() for each in checks))
        return "; ".join(reason for reason in reasons if reason is not None) or None

    return check

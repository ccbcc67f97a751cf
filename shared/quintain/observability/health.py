"""Liveness and readiness as reported to probes.

Live: the process answers. Ready: every check passes. Each check covers one dependency and is bounded by
`CHECK_TIMEOUT_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from quintain.contracts.message import Message

#: Time limit of one check, in seconds.
CHECK_TIMEOUT_SECONDS = 2.0

#: How long a result is cached, in seconds, so that frequent probes cannot flood the broker.
READINESS_CACHE_SECONDS = 1.0

#: Returns the reason why something is not ready as a sentence, None if it is ready.
HealthCheck = Callable[[], Awaitable[str | None]]


class Live(Message):
    """The reply of the liveness probe."""

    status: Literal["live"] = "live"


class Readiness(Message):
    """Whether the service is ready, and the reason if it is not."""

    status: Literal["ready", "unready"]
    reason: str | None = None


class ReadinessProbe:
    """Runs a readiness check, at most once per `READINESS_CACHE_SECONDS` for any number of concurrent probes."""

    def __init__(self, check: HealthCheck) -> None:
        self._check = check
        self._check_task: asyncio.Task[Readiness] | None = None
        self._expires_at = 0.0

    async def readiness(self) -> Readiness:
        """Return the result of the check, run now or a moment ago."""
        loop = asyncio.get_running_loop()
        if self._check_task is None or (self._check_task.done() and loop.time() >= self._expires_at):
            self._check_task = loop.create_task(self._run_check())
        # The first probe may be cancelled; others still wait for the same check.
        return await asyncio.shield(self._check_task)

    async def _run_check(self) -> Readiness:
        try:
            reason = await self._check()
        finally:
            self._expires_at = asyncio.get_running_loop().time() + READINESS_CACHE_SECONDS
        return Readiness(status="ready" if reason is None else "unready", reason=reason)


def combine_checks(*checks: HealthCheck) -> HealthCheck:
    """Return a check that runs all of these concurrently and joins the reasons of those that fail."""

    async def check() -> str | None:
        reasons = await asyncio.gather(*(each() for each in checks))
        return "; ".join(reason for reason in reasons if reason is not None) or None

    return check

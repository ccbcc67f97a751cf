"""Deletes old sessions that have ended, in steps between which other operations run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from quintain.errors import BudgetUnavailable, ConfigError, Fault
from quintain.rpc.server import log_defect
from quintain.topology import DAY_MS
from quintain_metadata.ledger.base import Ledger, SqlProgram
from quintain_metadata.rules import retention
from quintain_metadata.rules.replies import REPLY_RETENTION_MS

#: Sessions with a change that is younger than this are kept, in milliseconds: their replies are stored.
MIN_AGE_MS = 2 * REPLY_RETENTION_MS

#: After each step of a deletion other operations have the ledger for so many times as long as the step took.
PAUSE_FACTOR = 2.0

#: How often the metadata service deletes, in seconds.
PRUNE_SECONDS = 3600.0

log = logging.getLogger(__name__)

#: Runs an operation that the function makes, and returns its result.
Run = Callable[[Callable[[], SqlProgram[Any]]], Awaitable[Any]]


@dataclass(slots=True)
class PruneReport:
    """How many sessions, children included, and calls were deleted, or would be."""

    sessions: int = 0
    calls: int = 0


async def find_old(run: Run, now: int, before: int) -> AsyncIterator[tuple[list[str], int]]:
    """Yield the ids of each old session and its descendants, parents first, with the number of their calls.

    ``before`` is the time, in milliseconds since the epoch, before which everything in it happened. Raises
    `ConfigError` if that is less than `MIN_AGE_MS` ago.
    """
    if before > now - MIN_AGE_MS:
        raise ConfigError("Sessions of the last 2 days are kept: name an earlier time")
    after_id = ""
    while roots := await run(partial(retention.ended_roots, now, before, after_id)):
        for root in roots:
            family = await run(partial(retention.family_of, root, before))
            count = await _count_if_old(run, family, before)
            if family and count is not None:
                yield family, count
        after_id = roots[-1]


async def _count_if_old(run: Run, family: list[str], before: int) -> int | None:
    """Return the number of calls; None if one was changed since, or has not ended."""
    total = 0
    for session_id in family:
        after_id = ""
        while (page := await run(partial(retention.last_change, session_id, after_id))) is not None:
            after_id, changed_at, has_unended, count = page
            if changed_at >= before or has_unended:
                return None
            total += count
    return total


async def prune(ledger: Ledger, before: int) -> PruneReport:
    """Delete the sessions that `find_old` yields. What is interrupted is finished by the next call."""
    loop, report = asyncio.get_running_loop(), PruneReport()

    async def run(make: Callable[[], SqlProgram[Any]]) -> Any:
        started_at = loop.time()
        result = await ledger.transact(lambda _: make())
        await asyncio.sleep(PAUSE_FACTOR * (loop.time() - started_at))
        return result

    now = await ledger.now()
    await run(partial(retention.delete_expired_replies, now))
    async for family, _ in find_old(run, now, before):
        await run(partial(retention.close_family, family))
        for session_id in reversed(family):
            while count := await run(partial(retention.delete_calls, session_id)):
                report.calls += count
            await run(partial(retention.delete_session, session_id))
            report.sessions += 1
    return report


async def prune_periodically(ledger: Ledger, days: int) -> None:
    """Delete the sessions that ended so many days ago, now and every `PRUNE_SECONDS`, until cancelled."""
    while True:
        try:
            report = await prune(ledger, await ledger.now() - days * DAY_MS)
            if report.sessions:
                log.info(
                    "%d sessions older than %d days were deleted, with %d calls", report.sessions, days, report.calls
                )
        except (BudgetUnavailable, Fault) as error:
            log.warning("Old sessions could not be deleted yet: %s", error.message)
        except Exception as error:
            log_defect(error, "deleting old sessions")
        await asyncio.sleep(PRUNE_SECONDS)

"""Finds old sessions that have ended, and deletes them with their calls, in steps between which other operations run.

A request id that is not in the ledger can be charged, so that only what can never be charged again is deleted: a root
session that is closed or expired, whole, with all its descendants. Each step is short, and leaves every counter right.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from quintain.contracts.session import SessionState
from quintain.errors import BudgetUnavailable, ConfigError, Fault
from quintain.rpc.server import log_defect
from quintain.topology import DAY_MS
from quintain_metadata.ledger import replies
from quintain_metadata.ledger.lifecycle import COUNTED_STATES, CallState
from quintain_metadata.ledger.usage import FAMILY_CTE
from quintain_metadata.store.base import Ledger, SqlProgram, execute, fetch_one

#: How many calls one step reads or deletes at most.
CALLS_PER_STEP = 500

#: How many sessions one step reads at most.
ROOTS_PER_STEP = 100


def ended_roots(now: int, before: int, after_id: str) -> SqlProgram[list[str]]:
    """Return the next ids, after this one, of root sessions opened before a time that are closed, or expired then."""
    rows = yield from execute(
        "SELECT id FROM session WHERE parent_id IS NULL AND id > ? AND created_at < ?"
        " AND (state = ? OR expires_at <= ?) ORDER BY id LIMIT ?",
        *(after_id, before, SessionState.CLOSED, min(now, before), ROOTS_PER_STEP),
    )
    return [row[0] for row in rows]


def family_of(root_id: str, before: int) -> SqlProgram[list[str]]:
    """Return the ids of a root and its descendants, parents first; none if one is newer, or reserves."""
    rows = yield from execute(
        f"{FAMILY_CTE} SELECT id, created_at, reserved FROM session WHERE id IN (SELECT id FROM family)",
        root_id,
    )
    if any(created_at >= before or reserved for _, created_at, reserved in rows):
        return []
    parents = yield from execute(
        f"{FAMILY_CTE} SELECT parent_id, session.id FROM session JOIN family ON family.id = session.id", root_id
    )
    children: dict[str, list[str]] = {}
    for parent_id, session_id in parents:
        if session_id != root_id:
            children.setdefault(parent_id, []).append(session_id)
    ordered = [root_id]
    for session_id in ordered:
        ordered += children.get(session_id, [])
    return ordered


def last_change(session_id: str, after_id: str) -> SqlProgram[tuple[str, int, bool, int] | None]:
    """Return of the session's next calls, after this request id, the last id, the time of the newest change, whether
    one has not ended, and their number; None if there are no more.
    """
    rows = yield from execute(
        "SELECT request_id, updated_at, state FROM call WHERE session_id = ? AND request_id > ?"
        " ORDER BY request_id LIMIT ?",
        *(session_id, after_id, CALLS_PER_STEP),
    )
    if not rows:
        return None
    has_unended = any(row[2] in {CallState.RESERVED, CallState.RUNNING} for row in rows)
    return rows[-1][0], max(row[1] for row in rows), has_unended, len(rows)


def close_family(family: Sequence[str]) -> SqlProgram[None]:
    """Close expired sessions before their calls are deleted: a closed one is never opened again."""
    for session_id in family:
        yield from execute("UPDATE session SET state = ? WHERE id = ?", SessionState.CLOSED, session_id)


def delete_calls(session_id: str) -> SqlProgram[int]:
    """Delete the session's next calls, and subtract them from its counter and its ancestors'; returns how many."""
    rows = yield from execute(
        "SELECT request_id, state FROM call WHERE session_id = ? ORDER BY request_id LIMIT ?",
        *(session_id, CALLS_PER_STEP),
    )
    if not rows:
        return 0
    for table in ("attempt", "call"):
        yield from execute(
            f"DELETE FROM {table} WHERE session_id = ? AND request_id <= ?",
            *(session_id, rows[-1][0]),
        )
    counted = sum(row[1] in COUNTED_STATES for row in rows)
    payer: str | None = session_id
    while payer is not None:
        row = yield from fetch_one(
            "UPDATE session SET used = used - ? WHERE id = ? RETURNING parent_id",
            *(counted, payer),
        )
        payer = None if row is None else row[0]
    return len(rows)


def delete_session(session_id: str) -> SqlProgram[None]:
    """Delete a session without calls and children."""
    yield from execute("DELETE FROM session WHERE id = ?", session_id)


#: Sessions with a change that is younger than this are kept, in milliseconds: their replies are stored.
MIN_AGE_MS = 2 * replies.REPLY_RETENTION_MS

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
    while roots := await run(partial(ended_roots, now, before, after_id)):
        for root in roots:
            family = await run(partial(family_of, root, before))
            count = await _count_if_old(run, family, before)
            if family and count is not None:
                yield family, count
        after_id = roots[-1]


async def _count_if_old(run: Run, family: list[str], before: int) -> int | None:
    """Return the number of calls; None if one was changed since, or has not ended."""
    total = 0
    for session_id in family:
        after_id = ""
        while (page := await run(partial(last_change, session_id, after_id))) is not None:
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
    await run(partial(replies.delete_expired, now))
    async for family, _ in find_old(run, now, before):
        await run(partial(close_family, family))
        for session_id in reversed(family):
            while count := await run(partial(delete_calls, session_id)):
                report.calls += count
            await run(partial(delete_session, session_id))
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

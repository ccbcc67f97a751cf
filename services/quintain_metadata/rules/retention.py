"""Finds old sessions that have ended, and deletes them with their calls.

A request id that is not in the ledger can be charged, so that only what can never be charged again is deleted: a root
session that is closed or expired, whole, with all its descendants. Each step is short, and leaves every counter right.
"""

from __future__ import annotations

from collections.abc import Sequence

from quintain.contracts.session import SessionState
from quintain_metadata.ledger.base import Phase, SqlProgram, execute, fetch_one
from quintain_metadata.rules.lifecycle import COUNTED_STATES, CallState
from quintain_metadata.rules.sessions import FAMILY_CTE

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
            order=(Phase.SESSIONS, payer, ""),
        )
        payer = None if row is None else row[0]
    return len(rows)


def delete_expired_replies(now: int) -> SqlProgram[None]:
    """Delete the replies that are kept no longer, so that no old call has one."""
    yield from execute("DELETE FROM reply WHERE expires_at <= ?", now)


def delete_session(session_id: str) -> SqlProgram[None]:
    """Delete a session without calls and children."""
    yield from execute("DELETE FROM session WHERE id = ?", session_id)

"""Reserves calls, all or none, and releases reservations whose calls have not started."""

from __future__ import annotations

from quintain.errors import BudgetExhausted
from quintain_metadata import call_counter, session_rows, sessions
from quintain_metadata.call_rows import CallRow, apply_transition, load_call, load_calls, lock_reservations
from quintain_metadata.lifecycle import (
    MAX_DEADLINE_AHEAD_MS,
    CallState,
    LifecycleEvent,
    Transition,
    TransitionEffect,
    transition,
)
from quintain_metadata.session_rows import SessionRow
from quintain_metadata.store import Moment, SqlProgram, execute


def reserve(now: int, session: SessionRow, request_ids: list[str], deadline: int) -> SqlProgram[int]:
    """Reserve all of these calls or none; returns how many are new.

    A call that is reserved already keeps its reservation until the later deadline; one whose reservation was released
    is reserved again; any other one with a row costs nothing. ``deadline`` is in milliseconds since the epoch. Raises
    `BudgetExhausted`.
    """
    sessions.require_not_paused(session)
    # Before the calls are read: an admit decides by what it read while it holds the same lock.
    yield from lock_reservations(session.id)
    deadline = min(max(0, deadline), now + MAX_DEADLINE_AHEAD_MS)
    created = yield from _reserve_known(now, session, request_ids, deadline)
    for request_id in sorted(set(request_ids)):
        inserted = yield from execute(
            "INSERT INTO call (session_id, request_id, body_sha256, target, state, attempts, deadline, call_count,"
            " created_at, updated_at) VALUES (?, ?, '', '', 'reserved', 0, ?, 0, ?, ?)"
            " ON CONFLICT (session_id, request_id) DO NOTHING RETURNING 1",
            *(session.id, request_id, deadline, now, now),
        )
        created += len(inserted)
    try:
        # The calls first, the session's counter last: all calls of a session wait for that row.
        if created:
            yield from call_counter.charge(session, created)
    except BudgetExhausted:
        narrowest = min(session.lineage, key=lambda session_row: session_row.max_calls - session_row.used)
        raise BudgetExhausted(
            f"Batch would exceed max calls (current: {narrowest.used}, batch: {len(request_ids)}, "
            f"limit: {narrowest.max_calls})"
        ) from None
    return created


def _reserve_known(now: int, session: SessionRow, request_ids: list[str], deadline: int) -> SqlProgram[int]:
    """Renew the reservations among these calls, and reserve the released ones again; returns how many of those."""
    created = 0
    for call in (yield from load_calls(session.id, sorted(set(request_ids)))).values() if request_ids else ():
        change = transition(call.state, LifecycleEvent.RESERVED)
        if change.effect is TransitionEffect.NOTED or call.is_cancelled:
            continue
        updated_rows = yield from execute(
            "UPDATE call SET state = ?, deadline = ?, updated_at = ? WHERE session_id = ? AND request_id = ?"
            " AND state = ? RETURNING 1",
            *(change.to, max(deadline, call.deadline), now, session.id, call.request_id, call.state),
        )
        created += change.used * len(updated_rows)
    return created


def release(moment: Moment, session: SessionRow, request_ids: list[str]) -> SqlProgram[int]:
    """Release those of these calls that are still only reserved; returns how many."""
    yield from lock_reservations(session.id)
    released_count = 0
    for request_id in sorted(set(request_ids)):
        call = yield from load_call(session.id, request_id)
        if call is not None and call.state is CallState.RESERVED:
            yield from apply_transition(moment, session, call, transition(call.state, LifecycleEvent.RELEASED), None)
            released_count += 1
    return released_count


def release_all(moment: Moment, session: SessionRow) -> SqlProgram[int]:
    """Release every reservation of a session and its descendants, and what those reserved; returns how many calls.

    Used when the session is closed.
    """
    released_count = 0
    family = yield from execute(f"{sessions.FAMILY_CTE} SELECT id FROM family ORDER BY id", session.id)
    for (session_id,) in family:
        yield from lock_reservations(session_id)
    for (session_id,) in family:
        rows = yield from execute(
            f"SELECT request_id FROM call WHERE session_id = ? AND state = 'reserved' AND {sessions.IS_NOT_COMMITTED}",
            session_id,
        )
        for (request_id,) in rows:
            yield from release_if_reserved(moment, (yield from load_call(session_id, request_id)))
        released_count += len(rows)
    for (session_id,) in family:
        yield from call_counter.release_reserved(session_id)
    return released_count


def lock_descendants(session: SessionRow) -> SqlProgram[None]:
    """Lock the reservations of all descendants of a session, in order, until the operation ends."""
    family = yield from execute(f"{sessions.FAMILY_CTE} SELECT id FROM family ORDER BY id", session.id)
    for (session_id,) in family:
        if session_id != session.id:
            yield from lock_reservations(session_id)


def release_if_reserved(moment: Moment, call: CallRow | None) -> SqlProgram[Transition]:
    """Release a call if it is still only reserved; returns the transition."""
    if call is None or call.state is not CallState.RESERVED:
        return Transition(CallState.NONE if call is None else call.state, effect=TransitionEffect.NOTED)
    session = yield from session_rows.load_session(call.session_id)
    assert session is not None
    change = transition(call.state, LifecycleEvent.RELEASED)
    yield from apply_transition(moment, session, call, change, None)
    return change

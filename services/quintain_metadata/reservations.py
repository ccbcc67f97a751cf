"""Reservations in the ledger: made all or none, given back while they are nothing more. As `Steps`, for any store."""

from __future__ import annotations

from quintain.errors import BudgetExhausted
from quintain_metadata import sessions
from quintain_metadata.lifecycle import MOST_AHEAD_MS, Effect, Event, State, Transition, transition
from quintain_metadata.records import Call, Moment, hold_reservations, load, move
from quintain_metadata.sessions import Session
from quintain_metadata.steps import Steps, run


def reserve(now: int, session: Session, request_ids: list[str], deadline: int) -> Steps[int]:
    """Reserve all or none; ids already known cost nothing. Raises `BudgetExhausted`."""
    sessions.require_open(session)
    deadline = min(max(0, deadline), now + MOST_AHEAD_MS)
    fresh = 0
    for request_id in sorted(set(request_ids)):
        inserted = yield from run(
            "INSERT INTO call (session_id, request_id, body_sha256, target, state, attempts, deadline, call_count,"
            " created_at, updated_at) VALUES (?, ?, '', '', 'reserved', 0, ?, 0, ?, ?)"
            " ON CONFLICT (session_id, request_id) DO NOTHING RETURNING 1",
            *(session.id, request_id, deadline, now, now),
        )
        fresh += len(inserted)
    try:
        # The rows first, the counter last: its row is the one everybody waits for.
        yield from sessions.charge(session, fresh)
    except BudgetExhausted:
        narrowest = min(session.lineage, key=lambda one: one.max_calls - one.used)
        raise BudgetExhausted(
            f"Batch would exceed max calls (current: {narrowest.used}, batch: {len(request_ids)}, "
            f"limit: {narrowest.max_calls})"
        ) from None
    return fresh


def release(moment: Moment, session: Session, request_ids: list[str]) -> Steps[int]:
    """Give back those that are still only reserved; returns how many."""
    yield from hold_reservations(session.id)
    released = 0
    for request_id in sorted(set(request_ids)):
        call = yield from load(session.id, request_id)
        if call is not None and call.state is State.RESERVED:
            yield from move(moment, session, call, transition(call.state, Event.RELEASED), None)
            released += 1
    return released


def release_all(moment: Moment, session: Session) -> Steps[int]:
    """Give back every reservation of a session and its descendants: it is being closed."""
    released = 0
    for (session_id,) in (yield from run(f"{sessions.FAMILY} SELECT id FROM family ORDER BY id", session.id)):
        yield from hold_reservations(session_id)
        rows = yield from run("SELECT request_id FROM call WHERE session_id = ? AND state = 'reserved'", session_id)
        for (request_id,) in rows:
            yield from end(moment, (yield from load(session_id, request_id)))
        released += len(rows)
    return released


def end(moment: Moment, call: Call | None) -> Steps[Transition]:
    """End a call that is still only reserved; another one is left as it is."""
    if call is None or call.state is not State.RESERVED:
        return Transition(State.NONE if call is None else call.state, effect=Effect.NOTED)
    session = yield from sessions.load(call.session_id)
    assert session is not None
    change = transition(call.state, Event.RELEASED)
    yield from move(moment, session, call, change, None)
    return change

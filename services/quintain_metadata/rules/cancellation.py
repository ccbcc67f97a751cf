"""Cancels calls in the ledger: a cancelled call is marked, and is never started again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from quintain_metadata.ledger.base import Moment, SqlProgram, SqlValue, acquire_locks, execute, values_table
from quintain_metadata.rules import sessions
from quintain_metadata.rules.call_repository import CallRow, load_calls, lock_reservations
from quintain_metadata.rules.lifecycle import (
    CallState,
    LifecycleEvent,
    Transition,
    TransitionEffect,
    cancel_event,
    transition,
)
from quintain_metadata.rules.sessions import SessionRow

#: So many calls are held at once at most: a store has only so many locks.
MAX_CALLS_PER_TRANSACTION = 200


@dataclass(slots=True)
class CancelResult:
    """How many calls were cancelled, and which of them run: they are to be aborted."""

    cancelled_count: int = 0
    to_abort: list[str] = field(default_factory=list)


def cancel_calls(moment: Moment, session: SessionRow, request_ids: Iterable[str]) -> SqlProgram[CancelResult]:
    """Mark the calls of these request ids (at most `MAX_CALLS_PER_TRANSACTION`), known or not: what does not run is
    refused when it is admitted, and gives its reservation back. What another delivery waits for, what has ended and
    what is marked already is left alone."""
    remaining_ids = sorted(set(request_ids))
    # All calls before the reservations: whoever holds one call may be waiting for the reservations.
    yield from acquire_locks("call", session.id, remaining_ids)
    yield from lock_reservations(session.id)
    result, refunded = CancelResult(), 0
    while remaining_ids:
        known_calls = yield from load_calls(session.id, remaining_ids)
        refunded += yield from _mark_known(moment, session, known_calls.values(), result)
        unknown_ids = [request_id for request_id in remaining_ids if request_id not in known_calls]
        # What was reserved between the look and the word is looked at again.
        remaining_ids = yield from _mark_unknown(moment, session, unknown_ids, result)
    if refunded:
        # The rows first, the counter last: its row is the one everybody waits for.
        yield from sessions.refund(session, refunded)
    return result


def _mark_known(moment: Moment, session: SessionRow, calls: Iterable[CallRow], result: CancelResult) -> SqlProgram[int]:
    """Returns how many of them counted and do so no more."""
    marked_by_state: dict[CallState, list[str]] = {}
    refunded = 0
    for call in calls:
        change = _cancel_transition(moment, call)
        if change.effect is not TransitionEffect.NOTED:
            marked_by_state.setdefault(change.to, []).append(call.request_id)
            refunded -= change.used
    for state, request_ids in marked_by_state.items():
        parameters: list[SqlValue] = [state, moment.now, moment.now, *request_ids, session.id]
        yield from execute(
            f"UPDATE call SET state = ?, cancelled_at = ?, updated_at = ? FROM {values_table(request_ids)} AS wanted"
            " WHERE call.session_id = ? AND call.request_id = wanted.column1",
            *parameters,
        )
        result.cancelled_count += len(request_ids)
    result.to_abort += sorted(marked_by_state.get(CallState.RUNNING, ()))
    return refunded


def _cancel_transition(moment: Moment, call: CallRow) -> Transition:
    is_joined = call.state is CallState.RUNNING and call.joined_until > moment.now
    return transition(call.state, cancel_event(cancelled=call.is_cancelled, joined=is_joined))


def _mark_unknown(
    moment: Moment, session: SessionRow, request_ids: list[str], result: CancelResult
) -> SqlProgram[list[str]]:
    """Returns those that are known by now."""
    if not request_ids:
        return []
    parameters: list[SqlValue] = []
    for request_id in request_ids:
        parameters += (
            session.id,
            request_id,
            transition(CallState.NONE, LifecycleEvent.CANCELLED).to,
            *[moment.now] * 3,
        )
    values = ", ".join(["(?, ?, '', '', ?, 0, 0, 0, ?, ?, ?)"] * len(request_ids))
    inserted = yield from execute(
        "INSERT INTO call (session_id, request_id, body_sha256, target, state, attempts, deadline, call_count,"
        f" cancelled_at, created_at, updated_at) VALUES {values}"
        " ON CONFLICT (session_id, request_id) DO NOTHING RETURNING request_id",
        *parameters,
    )
    result.cancelled_count += len(inserted)
    return sorted(set(request_ids) - {row[0] for row in inserted})

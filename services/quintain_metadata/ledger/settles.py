"""Decides settles by the rows that were read for them; what they change is in `changes`. No I/O."""

from __future__ import annotations

from quintain.contracts.ledger import AttemptOutcome, Settle
from quintain_metadata.ledger import call_rows, replies
from quintain_metadata.ledger.call_rows import CallRow
from quintain_metadata.ledger.changes import Changes
from quintain_metadata.ledger.lifecycle import (
    CallState,
    LifecycleEvent,
    Transition,
    TransitionEffect,
    refund_event,
    transition,
)

_NO_CALL = Transition(CallState.NONE, effect=TransitionEffect.NOTED)


def settle(changes: Changes, settlement: Settle) -> tuple[CallRow | None, Transition]:
    """Record the outcome of an attempt; returns the call as it was and the transition.

    A result of any attempt commits the call, even if another attempt has taken over.
    """
    key = (settlement.session_id, settlement.request_id)
    call, state = changes.rows.calls.get(key), changes.rows.attempts.get(key, {}).get(settlement.attempt_id)
    is_holder = call is not None and call.attempt_id == settlement.attempt_id
    if call is None or (state is None and not is_holder) or state in {"void", "throttled"}:
        change = _NO_CALL
        if settlement.outcome is AttemptOutcome.NEVER_SENT:
            # A later grant has no effect.
            void = (settlement.attempt_id, *key, 0, "", "void", changes.moment.now)
            changes.add(call_rows.INSERT_ATTEMPT_SQL, *void)
            # With a fault the caller was refused; without one the call returned to its queue.
            if settlement.fault is not None and call is not None:
                change = changes.release(call)
        return call, change
    change = transition(call.state, _settle_event(changes, settlement, call))
    _record_outcome(changes, call, settlement, has_row=state is not None)
    if change.effect is TransitionEffect.NOTED:
        return call, change
    session = changes.rows.sessions[call.session_id]
    changes.apply(call, change, replies.stored_fault(settlement, change), settlement.token_usage)
    if settlement.outcome is AttemptOutcome.RESULT and session.store_replies:
        stored = replies.reply_parameters(changes.moment, call, settlement)
        if stored is not None:
            changes.add(replies.STORE_REPLY_SQL, *stored)
    if settlement.token_usage is not None:
        changes.counters.add_tokens(session, settlement.token_usage)
    return call, change


def _settle_event(changes: Changes, settlement: Settle, call: CallRow) -> LifecycleEvent:
    is_current = call.attempt_id == settlement.attempt_id
    match settlement.outcome:
        case AttemptOutcome.RESULT:
            return LifecycleEvent.ANSWERED
        case AttemptOutcome.CHARGED:
            return LifecycleEvent.CHARGED if is_current else LifecycleEvent.STALE
        case AttemptOutcome.IN_DOUBT:
            return LifecycleEvent.DOUBTED if is_current else LifecycleEvent.STALE
        case AttemptOutcome.THROTTLED if is_current and not call.is_cancelled:
            return LifecycleEvent.THROTTLED
        case AttemptOutcome.THROTTLED:
            others = changes.count_unproven(call, but=settlement.attempt_id)
            return refund_event(current=is_current, others_unproven=others > 0 or bool(settlement.unproven))
        case AttemptOutcome.REFUND | AttemptOutcome.NEVER_SENT:
            others = changes.count_unproven(call, but=settlement.attempt_id)
            return refund_event(current=is_current, others_unproven=others > 0)


def _record_outcome(changes: Changes, call: CallRow, settlement: Settle, *, has_row: bool) -> None:
    """Record the outcome of a granted attempt; one that was never sent, or throttled, is not counted.

    The attempt that holds its call gets a row only where it was proven that nothing was billed, or where another one
    follows it.
    """
    state = "proven"
    match settlement.outcome:
        case AttemptOutcome.NEVER_SENT:
            state = "void"
        case AttemptOutcome.THROTTLED:
            state = "throttled" if settlement.unproven else "void"
        case AttemptOutcome.RESULT | AttemptOutcome.CHARGED | AttemptOutcome.IN_DOUBT:
            if has_row:
                changes.add(call_rows.RECORD_UNPROVEN_SQL, changes.moment.now, settlement.attempt_id)
            return
    held = (call.session_id, call.request_id, call.attempts, call.incarnation or "")
    changes.add(call_rows.UPSERT_ATTEMPT_SQL, settlement.attempt_id, *held, state, changes.moment.now)
    if state != "proven":
        changes.add(call_rows.UNCOUNT_ATTEMPT_SQL, call.session_id, call.request_id)

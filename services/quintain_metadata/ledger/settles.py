"""Decides settles by the rows that were read for them, and what is stored of them; `changes` changes. No I/O."""

from __future__ import annotations

import zlib

from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import AttemptOutcome, Settle
from quintain.contracts.message import MAX_STORED_REPLY_BYTES
from quintain.errors import Cancelled, ProviderFailed
from quintain_metadata.ledger import call_rows
from quintain_metadata.ledger.call_rows import CallRow
from quintain_metadata.ledger.changes import Changes
from quintain_metadata.ledger.lifecycle import (
    COUNTED_STATES,
    TRANSITIONS,
    CallState,
    LifecycleEvent,
    Transition,
    TransitionEffect,
    refund_event,
)
from quintain_metadata.ledger.replies import REPLY_RETENTION_MS
from quintain_metadata.store.base import Moment, SqlValue

STORE_REPLY_SQL = (
    "INSERT INTO reply (session_id, request_id, body, expires_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
)


#: Shorter replies are stored uncompressed, because compressing takes longer than writing them. Uncompressed JSON begins
#: with a brace, and zlib output never does.
COMPRESSION_MIN_BYTES = 2048

NO_CHANGE = Transition(CallState.NONE, effect=TransitionEffect.NOTED)


def settle(changes: Changes, settlement: Settle) -> tuple[CallRow | None, Transition]:
    """Record the outcome of an attempt; returns the call as it was and the transition.

    A result of any attempt commits the call, even if another attempt has taken over.
    """
    key = (settlement.session_id, settlement.request_id)
    call, state = changes.rows.calls.get(key), changes.rows.attempts.get(key, {}).get(settlement.attempt_id)
    is_holder = call is not None and call.attempt_id == settlement.attempt_id
    if call is None or (state is None and not is_holder) or state in {"void", "retried"}:
        change = NO_CHANGE
        if settlement.outcome is AttemptOutcome.NEVER_SENT:
            # A later grant has no effect.
            void = (settlement.attempt_id, *key, 0, "", "void", changes.moment.now, 0)
            changes.add(call_rows.INSERT_ATTEMPT_SQL, *void)
            # With a fault the caller was refused; without one the call returned to its queue.
            if settlement.fault is not None and call is not None:
                change = changes.release(call)
        return call, change
    change = TRANSITIONS[call.state, _settle_event(changes, settlement, call)]
    _record_outcome(changes, call, settlement, has_row=state is not None)
    changes.pause(call.target, settlement)
    counts = changes.count_settled(call, settlement, was_lost=call.lost > 0 if is_holder else state == "running")
    if change.effect is TransitionEffect.NOTED:
        changes.add_counts(call, counts)
        return call, change
    session, fault = changes.rows.sessions[call.session_id], stored_fault(settlement, change)
    changes.apply(call, change, fault, settlement.token_usage, counts, is_reported=is_holder)
    if change.to is CallState.RESERVED:
        changes.wait_for_next_try(call, settlement.retry_after_ms or 0, is_counted=bool(settlement.is_counted))
    if settlement.outcome is AttemptOutcome.RESULT and session.store_replies:
        stored = reply_parameters(changes.moment, call, settlement)
        if stored is not None:
            changes.add(STORE_REPLY_SQL, *stored)
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
        case AttemptOutcome.RETRY if is_current and not call.is_cancelled:
            return LifecycleEvent.RETRIED
        case AttemptOutcome.RETRY:
            others = changes.count_unproven(call, but=settlement.attempt_id)
            return refund_event(current=is_current, others_unproven=others > 0 or bool(settlement.unproven))
        case AttemptOutcome.REFUND | AttemptOutcome.NEVER_SENT:
            others = changes.count_unproven(call, but=settlement.attempt_id)
            return refund_event(current=is_current, others_unproven=others > 0)


def _record_outcome(changes: Changes, call: CallRow, settlement: Settle, *, has_row: bool) -> None:
    """Record the outcome of a granted attempt; one that was never sent, or is tried again, is not counted.

    The attempt that holds its call gets a row only where it was proven that nothing was billed, or where another one
    follows it.
    """
    state = "proven"
    match settlement.outcome:
        case AttemptOutcome.NEVER_SENT:
            state = "void"
        case AttemptOutcome.RETRY:
            state = "retried" if settlement.unproven else "void"
        case AttemptOutcome.RESULT | AttemptOutcome.CHARGED | AttemptOutcome.IN_DOUBT:
            if has_row:
                changes.add(call_rows.RECORD_UNPROVEN_SQL, changes.moment.now, settlement.attempt_id)
            return
    held = (call.session_id, call.request_id, call.attempts, call.incarnation or "")
    changes.add(call_rows.UPSERT_ATTEMPT_SQL, settlement.attempt_id, *held, state, changes.moment.now, 0)
    if state != "proven":
        changes.add(call_rows.UNCOUNT_ATTEMPT_SQL, call.session_id, call.request_id)


def stored_fault(settlement: Settle, change: Transition) -> str | None:
    """Return the fault to store for a call; one of a charged call says so, whatever its worker reported."""
    if settlement.outcome is AttemptOutcome.RESULT:
        return None
    fault = settlement.fault
    if fault is not None and fault.charge_unknown:
        # Its worker did not know; the transition decides.
        fault = fault.model_copy(update={"charged": False, "charge_unknown": None})
    if change.to in COUNTED_STATES and (fault is None or not fault.charged):
        if fault is not None and fault.code == Cancelled.code:
            return FaultReply.from_fault(Cancelled(fault.error, charged=True)).to_wire().decode()
        message = "The call did not finish" if fault is None else fault.error
        fault = FaultReply.from_fault(
            ProviderFailed(f"{message} (an earlier attempt may have been billed)", charged=True)
        )
    return None if fault is None else fault.to_wire().decode()


def reply_parameters(moment: Moment, call: CallRow, settlement: Settle) -> tuple[SqlValue, ...] | None:
    """Return the parameters of `STORE_REPLY_SQL`, or None where there is no reply, or it is too large."""
    body = settlement.compressed_reply
    if body is None:
        if settlement.reply is None:
            return None
        body = settlement.reply.encode()
        if len(body) >= COMPRESSION_MIN_BYTES:
            body = zlib.compress(body, level=1)
    if len(body) > MAX_STORED_REPLY_BYTES:
        return None
    return call.session_id, call.request_id, body, moment.now + REPLY_RETENTION_MS

"""Admits and settles calls, by the transitions of the table in `lifecycle`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit, AttemptOutcome, Settle
from quintain.errors import Cancelled, Expired, Fault, ForbiddenTarget, ProviderFailed, RequestConflict
from quintain_metadata import attempts, call_counter, call_rows, replies, reservations, session_rows, sessions, targets
from quintain_metadata.call_rows import CallRow, apply_transition, is_holder_alive, lock_call
from quintain_metadata.lifecycle import (
    COUNTED_STATES,
    MAX_DEADLINE_AHEAD_MS,
    CallState,
    LifecycleEvent,
    Transition,
    TransitionEffect,
    admit_event,
    refund_event,
    transition,
)
from quintain_metadata.session_rows import SessionRow
from quintain_metadata.store import Moment, SqlProgram, execute


class DeferReason(Enum):
    """Why an admit must wait."""

    #: Another attempt runs the call; it waits for its end.
    CALL = auto()
    #: The target is at its fleet-wide limit, or paused; it waits for a free slot or the end of the pause.
    TARGET = auto()
    #: The worker has no valid lease; it waits for its heartbeat.
    LEASE = auto()


@dataclass(frozen=True, slots=True)
class Deferred:
    """An admit that must wait. ``deadline`` is the call's if it were granted now, in milliseconds since the epoch."""

    session_id: str
    request_id: str
    target: str
    reason: DeferReason
    deadline: int
    #: Whether it takes over a call that is charged already; it is granted before new calls.
    is_takeover: bool = False

    @property
    def is_duplicate(self) -> bool:
        """Whether it is a duplicate of a running call."""
        return self.reason is DeferReason.CALL


#: How long a duplicate counts as waiting, in milliseconds: its worker repeats its admit every 3 s, and two may be lost.
DUPLICATE_WAIT_MS = 10_000


@dataclass(frozen=True, slots=True)
class _Requester:
    """Who asks for an attempt: the request, its worker and its session; ``after_others`` as `admit` says."""

    request: Admit
    incarnation: str
    session: SessionRow
    after_others: bool


def admit(
    moment: Moment, request: Admit, incarnation: str, *, after_others: bool = False
) -> SqlProgram[Admission | Deferred]:
    """Decide whether an attempt may run: a grant, the stored answer, or `Deferred`.

    ``after_others``: other admits wait for the target, so that a new call waits too; a take-over does not.

    Raises the `Fault` that refuses it. The checks are in the protocol's order: token, body, target, request id, the
    call's state, deadline, budget. A refusal releases the call's reservation.
    """
    session = yield from sessions.authenticate(moment.now, request.credential())
    requester = _Requester(request, incarnation, session, after_others)
    call = yield from lock_call(session.id, request.request_id)
    if call is None or call.state is not CallState.RESERVED:
        return (yield from _decide_admission(moment, requester, call))
    try:
        return (yield from _decide_admission(moment, requester, call))
    except Fault as refusal:
        # Returned, not raised: an exception would roll back the release.
        yield from apply_transition(moment, session, call, transition(call.state, LifecycleEvent.RELEASED), None)
        return Admission(attempt_id=request.attempt_id, fault=FaultReply.from_fault(refusal))


def _decide_admission(moment: Moment, requester: _Requester, call: CallRow | None) -> SqlProgram[Admission | Deferred]:
    request, session = requester.request, requester.session
    require_valid(request, session, call)
    if call is None:
        change = transition(CallState.NONE, LifecycleEvent.ADMITTED)
        return (yield from _start_attempt(moment, requester, None, change))
    is_alive = yield from is_holder_alive(moment, call)
    is_lost = call.state is CallState.RUNNING and not is_alive
    lost = (yield from attempts.with_loss(call)) if is_lost else call
    event = admit_event(
        call.state,
        current=call.attempt_id == request.attempt_id,
        attempts_left=lost.counted_attempts < attempts.MAX_ATTEMPTS,
        holder_alive=is_alive,
        past_deadline=call.deadline <= moment.now,
        cancelled=call.is_cancelled,
    )
    change = transition(call.state, event)
    match change.effect:
        case TransitionEffect.HELD:
            yield from _record_duplicate(moment, call)
            return _deferred(moment, request, session, DeferReason.CALL)
        case TransitionEffect.REPLAYED:
            return (yield from replies.replay(session, call, request.attempt_id))
        case TransitionEffect.REFUSED:
            raise Cancelled
    if event is LifecycleEvent.LOST:
        # Returned, not raised: an exception would roll back the transition to in doubt.
        return Admission(
            attempt_id=request.attempt_id,
            fault=FaultReply.from_fault((yield from attempts.mark_in_doubt(moment, call))),
        )
    if event is LifecycleEvent.ADMITTED_AGAIN:
        # Another attempt may take over from a holder whose lease has lapsed; if none did, it goes on after its renewal.
        return (
            (yield from _grant_admission(session, call))
            if is_alive
            else _deferred(moment, request, session, DeferReason.LEASE)
        )
    return (yield from _start_attempt(moment, requester, lost, change))


def require_valid(request: Admit, session: SessionRow, call: CallRow | None) -> None:
    """Raise the `Fault` of a request that may not run in any state of its call."""
    if request.problem is not None:
        raise request.problem.to_fault()
    sessions.require_body_allowed(session, request.body_bytes or 0)
    if not session.allows(request.target):
        if call is None:
            session.require_calls_left()
        raise ForbiddenTarget(f"This session may not call {request.target!r}")
    if call is not None and call.body_sha256 not in {"", request.body_sha256}:
        raise RequestConflict(f"Request id {request.request_id!r} was used with another body")
    if call is not None and call.target not in {"", request.target}:
        raise RequestConflict(f"Request id {request.request_id!r} was used for target {call.target!r}")


def _record_duplicate(moment: Moment, call: CallRow) -> SqlProgram[None]:
    """Record that a duplicate waits for this call, so that it cannot be cancelled meanwhile, unless it already is."""
    yield from execute(
        "UPDATE call SET joined_until = ? WHERE session_id = ? AND request_id = ? AND cancelled_at IS NULL",
        *(moment.now + DUPLICATE_WAIT_MS, call.session_id, call.request_id),
    )


def _deferred(moment: Moment, request: Admit, session: SessionRow, reason: DeferReason) -> Deferred:
    return Deferred(
        session.id, request.request_id, request.target, reason, effective_deadline(moment, request, session)
    )


def _start_attempt(
    moment: Moment, requester: _Requester, call: CallRow | None, change: Transition
) -> SqlProgram[Admission | Deferred]:
    """Start an attempt: the only place where a call becomes running."""
    request, incarnation, session = requester.request, requester.incarnation, requester.session
    is_running = call is not None and call.state is CallState.RUNNING
    if not is_running:
        # A takeover is not a new call: it was charged already, and a pause of the session does not end it.
        sessions.require_not_paused(session)
    deadline = call.deadline if call is not None and is_running else effective_deadline(moment, request, session)
    if deadline <= moment.now:
        raise Expired("The deadline passed before a worker was free")
    is_ended, is_valid = yield from attempts.read_attempt_and_lease(moment, request.attempt_id, incarnation)
    if is_ended:
        raise Cancelled("Its worker gave up this attempt before it was granted")
    if not is_valid:
        return _deferred(moment, request, session, DeferReason.LEASE)
    if (requester.after_others and not is_running) or (yield from targets.lock_and_check_full(moment, request.target)):
        waiting_key = (session.id, request.request_id, request.target)
        return Deferred(*waiting_key, DeferReason.TARGET, deadline, is_takeover=is_running)
    alone = bool(request.alone)
    if call is not None and not (yield from attempts.record_replaced_attempt(moment, call, alone=alone)):
        return Admission(attempt_id=request.attempt_id, must_be_alone=True)
    number = (0 if call is None else call.attempts) + change.attempts
    key = (session.id, request.request_id, request.body_sha256, request.target)
    started = CallRow(*key, change.to, number, request.attempt_id, incarnation, deadline, call_count=0, fault=None)
    inserted = yield from execute(
        call_rows.START_CALL_IN_STATE_SQL,
        *call_rows.start_parameters(moment, started),
        CallState.NONE if call is None else call.state,
        order=call_rows.running_calls_order(request.target, incarnation),
    )
    if not inserted:
        # The call was reserved after it was read: decide again by its new state.
        return (yield from admit(moment, request, incarnation, after_others=requester.after_others))
    if call is not None and is_running and call.incarnation is not None:
        yield from call_rows.count_running(call.target, call.incarnation, -1)
    yield from call_rows.count_running(request.target, incarnation, +1)
    # The call first, the session's counter last: all calls of a session wait for that row.
    call_count = (yield from call_counter.charge(session)) if change.used else session.used
    yield from execute(
        "UPDATE call SET call_count = ?, uncounted_attempts = ? WHERE session_id = ? AND request_id = ?",
        call_count,
        0 if call is None else call.uncounted_attempts,
        session.id,
        request.request_id,
    )
    return (yield from _grant_admission(session, started._replace(call_count=call_count)))


def settle(moment: Moment, settlement: Settle) -> SqlProgram[tuple[CallRow | None, Transition]]:
    """Record the outcome of an attempt; returns the call as it was and the transition.

    A result of any attempt commits the call, even if another attempt has taken over.
    """
    call = yield from lock_call(settlement.session_id, settlement.request_id)
    state = yield from attempts.attempt_state(call, settlement.attempt_id)
    if call is None or state is None or state == "void":
        change = Transition(CallState.NONE, effect=TransitionEffect.NOTED)
        if settlement.outcome is AttemptOutcome.NEVER_SENT:
            yield from attempts.mark_attempt_void(moment, settlement)
            # With a fault the caller was refused; without one the call returned to its queue.
            change = change if settlement.fault is None else (yield from reservations.release_if_reserved(moment, call))
        return call, change
    event = yield from _settle_event(settlement, call)
    yield from attempts.record_attempt_outcome(moment, call, settlement)
    change = transition(call.state, event)
    if change.effect is TransitionEffect.NOTED:
        return call, change
    session = yield from session_rows.load_session(call.session_id)
    assert session is not None
    yield from apply_transition(
        moment, session, call, change, _stored_fault(settlement, change), settlement.token_usage
    )
    if settlement.outcome is AttemptOutcome.RESULT and session.store_replies:
        yield from replies.store_reply(moment, call, settlement)
    if settlement.token_usage is not None:
        yield from call_counter.add_tokens(session, settlement.token_usage)
    return call, change


def effective_deadline(moment: Moment, request: Admit, session: SessionRow) -> int:
    requested = moment.now + session.deadline_ms if request.deadline is None else request.deadline
    return min(requested, moment.now + MAX_DEADLINE_AHEAD_MS)


def _grant_admission(session: SessionRow, call: CallRow) -> SqlProgram[Admission]:
    assert call.attempt_id is not None, "a running call is held by an attempt"
    others = yield from attempts.count_other_unproven_attempts(call, call.attempt_id)
    return granted(session, call, call.attempt_id, unproven=others > 0)


def granted(session: SessionRow, call: CallRow, attempt_id: str, *, unproven: bool) -> Admission:
    """Return the grant of a running call to the attempt that holds it; ``unproven`` is a field of `Admission`."""
    return Admission.unchecked(
        attempt_id=attempt_id,
        attempt=call.attempts,
        deadline=call.deadline,
        call_count=call.call_count,
        max_calls=session.max_calls,
        store_replies=bool(session.store_replies),
        unproven=unproven,
        ignore_unsupported=bool(session.ignore_unsupported),
        max_body_bytes=session.max_body_bytes,
        replay=None,
        fault=None,
        must_be_alone=None,
    )


def _stored_fault(settlement: Settle, change: Transition) -> str | None:
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


def _settle_event(settlement: Settle, call: CallRow) -> SqlProgram[LifecycleEvent]:
    is_current = call.attempt_id == settlement.attempt_id
    match settlement.outcome:
        case AttemptOutcome.RESULT:
            return LifecycleEvent.ANSWERED
        case AttemptOutcome.CHARGED:
            return LifecycleEvent.CHARGED if is_current else LifecycleEvent.STALE
        case AttemptOutcome.IN_DOUBT:
            return LifecycleEvent.DOUBTED if is_current else LifecycleEvent.STALE
        case AttemptOutcome.REFUND | AttemptOutcome.NEVER_SENT:
            others = yield from attempts.count_other_unproven_attempts(call, settlement.attempt_id)
            return refund_event(current=is_current, others_unproven=others > 0)

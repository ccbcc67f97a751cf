"""Decides admits by the rows that were read for them; what they change is in `changes`. No I/O."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from quintain.contracts.credentials import CallProof, SessionToken
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit
from quintain.contracts.message import DEFAULT_REQUEST_BYTES
from quintain.contracts.money import dollars_text
from quintain.contracts.values import require_possible_deadline
from quintain.errors import (
    BadRequest,
    Cancelled,
    Expired,
    Fault,
    ForbiddenTarget,
    PayloadTooLarge,
    RequestConflict,
    TargetUnavailable,
    TimedOut,
    Unauthorized,
)
from quintain_metadata.ledger import call_rows
from quintain_metadata.ledger.call_rows import CallKey, CallRow
from quintain_metadata.ledger.changes import Changes, with_loss
from quintain_metadata.ledger.lifecycle import (
    MAX_ATTEMPTS,
    TRANSITIONS,
    CallState,
    LifecycleEvent,
    Transition,
    TransitionEffect,
    admit_event,
)
from quintain_metadata.ledger.session_rows import (
    SessionRow,
    Share,
    cost_limit_reached,
    require_authorized,
    require_authorized_for,
)


class DeferReason(Enum):
    """Why an admit must wait."""

    #: Another attempt runs the call; it waits for its end.
    CALL = auto()
    #: A try of the call failed, and its next one may not begin yet.
    RETRY = auto()
    #: Its target or its quota has no place for it now; it waits for its turn.
    TURN = auto()
    #: Other calls hold the money that it may cost; it waits until one of them has ended.
    MONEY = auto()
    #: The worker has no valid lease; it waits for its heartbeat.
    LEASE = auto()


@dataclass(frozen=True, slots=True)
class Deferred:
    """An admit that must wait. ``deadline`` is when it waits no longer, in milliseconds since the epoch.

    ``share`` is what it has of its line. ``payer`` is the session for whose money it waits. ``not_before`` is when its
    next try may begin, in milliseconds since the epoch.
    """

    session_id: str
    request_id: str
    target: str
    reason: DeferReason
    deadline: int
    share: Share
    #: Whether it takes over a call that is charged already; it is granted before new calls.
    is_takeover: bool = False
    payer: str | None = None
    not_before: int = 0


@dataclass(frozen=True, slots=True)
class Replay:
    """An admit that is answered with the stored answer of its call."""

    session: SessionRow
    call: CallRow
    attempt_id: str


#: How long a duplicate counts as waiting, in milliseconds: its worker repeats its admit every 3 s, and two may be lost.
DUPLICATE_WAIT_MS = 10_000


@dataclass(frozen=True, slots=True)
class AdmitOperation:
    """A worker's request for an attempt, and what authorizes it.

    ``has_place``: it may run as far as its target is concerned; without, it waits if it is not refused.
    ``awaited_payers``: the sessions for whose money others wait, so that a new call waits too.
    """

    request: Admit
    incarnation: str
    credential: SessionToken | CallProof
    has_place: bool = True
    awaited_payers: Collection[str] = ()


def admit(changes: Changes, operation: AdmitOperation) -> Admission | Deferred | Replay:
    """Decide whether an attempt may run: a grant, the stored answer, or `Deferred`.

    Raises the `Fault` that refuses it. The checks are in the protocol's order: token, body, target, request id, the
    call's state, deadline, budget. A refusal releases the call's reservation.
    """
    request, credential, now = operation.request, operation.credential, changes.moment.now
    session, call = (
        changes.rows.sessions.get(credential.id),
        changes.rows.calls.get((credential.id, request.request_id)),
    )
    try:
        session = require_authorized(now, credential, session)
    except Unauthorized:
        if not isinstance(credential, CallProof):
            raise
        target = None if call is None or not call.target else call.target
        session = require_authorized_for(now, credential, session, target)
    try:
        _require_valid(request, session, call)
        require_near_deadline(now, request.deadline)
        if call is None:
            change = TRANSITIONS[CallState.NONE, LifecycleEvent.ADMITTED]
            return _start_attempt(changes, operation, session, None, change)
        return _admit_known(changes, operation, session, call)
    except Fault as refusal:
        is_lost = call is not None and call.state is CallState.RUNNING and not changes.rows.holder(call).is_alive
        if call is None or not is_lost or isinstance(refusal, RequestConflict | Cancelled):
            return _end_reservation(changes, request, call, refusal)
        # No attempt takes over: what the lost one may have cost is held.
        fault = FaultReply.from_fault(changes.end_lost(call, refusal))
        return Admission(attempt_id=request.attempt_id, fault=fault)


def _end_reservation(changes: Changes, request: Admit, call: CallRow | None, refusal: Fault) -> Admission:
    """End the reservation of a call that is refused. Raises the refusal where it had none to end."""
    if call is None or call.state is not CallState.RESERVED or not _may_end(changes, call, request):
        raise refusal
    is_in_doubt = changes.release(call).to is CallState.IN_DOUBT
    fault = FaultReply.from_fault(TimedOut() if is_in_doubt else refusal)
    return Admission(attempt_id=request.attempt_id, fault=fault)


def _may_end(changes: Changes, call: CallRow, request: Admit) -> bool:
    """Whether a refusal of this request ends the call's reservation.

    One that waits for its next try goes on beside an attempt that has ended, and beside another request with its id.
    """
    attempts = changes.rows.attempts.get((call.session_id, call.request_id), ())
    return request.attempt_id not in attempts and call.body_sha256 in {"", request.body_sha256}


def _admit_known(
    changes: Changes, operation: AdmitOperation, session: SessionRow, call: CallRow
) -> Admission | Deferred | Replay:
    request, holder = operation.request, changes.rows.holder(call)
    is_lost = call.state is CallState.RUNNING and not holder.is_alive
    lost = with_loss(call, holder.lost_calls) if is_lost else call
    event = admit_event(
        call.state,
        current=call.attempt_id == request.attempt_id,
        attempts_left=lost.attempts - lost.uncounted_attempts < MAX_ATTEMPTS,
        holder_alive=holder.is_alive,
        past_deadline=call.deadline <= changes.moment.now,
        cancelled=call.is_cancelled,
    )
    change = TRANSITIONS[call.state, event]
    match change.effect:
        case TransitionEffect.HELD:
            return _join(changes, request, session, call)
        case TransitionEffect.REPLAYED:
            return Replay(session, call, request.attempt_id)
        case TransitionEffect.REFUSED:
            raise Cancelled
    if event is LifecycleEvent.LOST:
        fault = FaultReply.from_fault(changes.end_lost(call))
        return Admission(attempt_id=request.attempt_id, fault=fault)
    if event is LifecycleEvent.ADMITTED_AGAIN:
        # Another attempt may take over from a holder whose lease has lapsed; if none did, it goes on after its
        # renewal.
        if holder.is_alive:
            return _grant(changes, session, call)
        return _deferred(changes, request, session, DeferReason.LEASE)
    return _start_attempt(changes, operation, session, lost, change)


def _join(changes: Changes, request: Admit, session: SessionRow, call: CallRow) -> Deferred:
    """Let an admit wait for a running call."""
    if not request.redelivered:
        # Another caller's: so that it cannot be cancelled meanwhile, unless it already is.
        joined = (changes.moment.now + DUPLICATE_WAIT_MS, call.session_id, call.request_id)
        changes.add(call_rows.JOIN_SQL, *joined)
    return _deferred(changes, request, session, DeferReason.CALL)


def _start_attempt(
    changes: Changes, operation: AdmitOperation, session: SessionRow, call: CallRow | None, change: Transition
) -> Admission | Deferred:
    """Start an attempt: the only place where a call becomes running."""
    request, incarnation = operation.request, operation.incarnation
    key = (session.id, request.request_id)
    is_running = call is not None and call.state is CallState.RUNNING
    is_retried = call is not None and call.state is CallState.RESERVED
    if not is_running:
        # A takeover is not a new call: it was charged already, and a pause of the session does not end it.
        session.require_not_paused()
    deadline = _deadline(changes, request, session, call)
    waits_until = deadline if is_running or request.wait_until is None else min(deadline, request.wait_until)
    _require_in_time(changes, request, key, waits_until)
    # Before anything that it would wait for, and before the call is charged: what is refused changes nothing.
    _require_cost(changes, request, session, is_running=is_running)
    worker = changes.rows.workers.get(incarnation)
    if worker is None or not worker.is_alive:
        return Deferred(*key, request.target, DeferReason.LEASE, waits_until, session.share)
    if call is not None and is_retried and call.not_before > changes.moment.now:
        return Deferred(*key, request.target, DeferReason.RETRY, waits_until, session.share, not_before=call.not_before)
    if change.used:
        changes.counters.charge(session)
    payer = _reserve_cost(changes, operation, session, is_running=is_running) if operation.has_place else None
    if payer is not None or not operation.has_place:
        if change.used:
            changes.counters.refund(session)
        reason = DeferReason.TURN if payer is None else DeferReason.MONEY
        return Deferred(*key, request.target, reason, waits_until, session.share, is_running, payer)
    started = CallRow(
        *key,
        request.body_sha256,
        request.target,
        change.to,
        (0 if call is None else call.attempts) + change.attempts,
        request.attempt_id,
        incarnation,
        deadline,
        changes.counters.used(session),
        fault=None,
        uncounted_attempts=0 if call is None else call.uncounted_attempts,
        cost=request.max_cost or 0,
        # A call that has ended, and is asked again, begins anew.
        counted_tries=call.counted_tries if call is not None and (is_running or is_retried) else 0,
        grader=request.grader or session.grader,
    )
    changes.start(started, before=call)
    return _grant(changes, session, started)


def _require_cost(changes: Changes, request: Admit, session: SessionRow, *, is_running: bool) -> None:
    """Raise `BudgetExhausted` where no money will be left for an attempt, `BadRequest` where its cost is not known,
    and `TargetUnavailable` where its bound is known to be wrong.

    A take-over (``is_running``) does not wait for what lost attempts reserve: take-overs would wait for each other.
    """
    if not session.has_cost_limit:
        return
    if request.max_cost is None:
        problem = request.cost_problem or f"{request.target} has no known price"
        raise BadRequest(f"This session has a limit in money, and what the call may cost is not known: {problem}")
    left, limit = changes.counters.cost_left(session, changes.rows.lost_costs if is_running else {})
    if request.max_cost > left:
        raise cost_limit_reached(limit, left, request.max_cost)
    if excess := changes.rows.wrong_bounds.get(request.target):
        raise TargetUnavailable(
            f"The bound of {request.target} was wrong by {dollars_text(excess)}: a session with a limit in money calls"
            " it once its price, max_input_tokens or max_tokens is corrected, or `quintain target resume"
            f" {request.target}` was given"
        )


def _reserve_cost(changes: Changes, operation: AdmitOperation, session: SessionRow, *, is_running: bool) -> str | None:
    """Reserve what the attempt may cost; returns the session for whose money it must wait, None where it need not."""
    if not operation.request.max_cost:
        return None
    amount, is_estimate = operation.request.max_cost, operation.request.is_estimate or False
    awaited = set[str]() if is_running else changes.short_payers.union(operation.awaited_payers)
    payer = changes.counters.reserve_cost(session, amount, awaited, is_estimate=is_estimate)
    if payer is not None:
        changes.short_payers.add(payer)
    return payer


def _require_in_time(changes: Changes, request: Admit, key: CallKey, deadline: int) -> None:
    """Raise the `Fault` of an attempt that comes too late: after its call may start, or after its own end."""
    if deadline <= changes.moment.now:
        raise Expired("The deadline passed before a worker was free")
    if request.attempt_id in changes.rows.attempts.get(key, ()):
        raise Cancelled("Its worker gave up this attempt before it was granted")


def _deferred(changes: Changes, request: Admit, session: SessionRow, reason: DeferReason) -> Deferred:
    deadline = _deadline(changes, request, session, None)
    return Deferred(session.id, request.request_id, request.target, reason, deadline, session.share)


def _deadline(changes: Changes, request: Admit, session: SessionRow, call: CallRow | None) -> int:
    """Return the deadline of the call: a running one keeps it, and so does one between two tries that names none."""
    if call is not None and call.attempt_id is not None:
        is_retried = call.state is CallState.RESERVED
        if call.state is CallState.RUNNING or (is_retried and request.deadline is None):
            return call.deadline
    now = changes.moment.now
    return now + session.deadline_ms if request.deadline is None else request.deadline


def _grant(changes: Changes, session: SessionRow, call: CallRow) -> Admission:
    return Admission.unchecked(
        attempt_id=call.attempt_id,
        attempt=call.attempts,
        deadline=call.deadline,
        call_count=call.call_count,
        max_calls=session.max_calls,
        store_replies=bool(session.store_replies),
        unproven=changes.count_unproven(call, but=call.attempt_id) > 0,
        ignore_unsupported=bool(session.ignore_unsupported),
        max_body_bytes=session.max_body_bytes,
        replay=None,
        fault=None,
        is_probe=None,
        tries=call.counted_tries,
    )


#: How far a caller may be off with the metadata service's clock, in seconds.
CLOCK_TOLERANCE_SECONDS = 5.0


def require_near_deadline(now: int, deadline: int | None) -> None:
    """Check a deadline in milliseconds since the epoch, None for the session's. Raises `BadRequest` for a far one."""
    if deadline is not None:
        require_possible_deadline((deadline - now) / 1000 - CLOCK_TOLERANCE_SECONDS)


def _require_valid(request: Admit, session: SessionRow, call: CallRow | None) -> None:
    """Raise the `Fault` of a request that may not run in any state of its call."""
    if request.problem is not None:
        raise request.problem.to_fault()
    max_bytes = session.max_body_bytes or DEFAULT_REQUEST_BYTES
    if (size := request.body_bytes or 0) > max_bytes:
        raise PayloadTooLarge(f"The body has {size} bytes; the limit of this session is {max_bytes}")
    if not session.allows(request.target):
        if call is None:
            session.require_calls_left()
        raise ForbiddenTarget(f"This session may not call {request.target!r}")
    if call is not None and call.body_sha256 not in {"", request.body_sha256}:
        raise RequestConflict(f"Request id {request.request_id!r} was used with another body")
    if call is not None and call.target not in {"", request.target}:
        raise RequestConflict(f"Request id {request.request_id!r} was used for target {call.target!r}")

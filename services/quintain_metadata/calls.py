"""Calls in the ledger: admit and settle, as `Steps`, for any store. What happens is `lifecycle`'s table."""

from __future__ import annotations

from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit, Outcome, Settle
from quintain.contracts.token import SessionToken
from quintain.errors import (
    Cancelled,
    Expired,
    Fault,
    ForbiddenTarget,
    ProviderFailed,
    ReplyExpired,
    RequestConflict,
)
from quintain_metadata import attempts, reservations, sessions
from quintain_metadata.lifecycle import (
    COUNTED,
    MOST_AHEAD_MS,
    Effect,
    Event,
    State,
    Transition,
    admit_event,
    refund_event,
    transition,
)
from quintain_metadata.records import Call, Held, Moment, Wait, hold, holder_alive, lease_runs, lose, move
from quintain_metadata.replies import keep_reply, kept_reply
from quintain_metadata.sessions import Session
from quintain_metadata.steps import Steps, lock, one, run

#: A held duplicate is known to wait for this long: its worker repeats its admit every 3 s, and may miss it twice.
JOINED_MS = 10_000


def admit(moment: Moment, ask: Admit, incarnation: str) -> Steps[Admission | Held]:
    """May this attempt spend? A grant, a stored answer, or `Held`.

    Raises the `Fault` that refuses it. The order is the protocol's: the token, the body, the target, the request
    id, what is known of the call, the deadline, the budget. A refusal ends a reservation.
    """
    session = yield from sessions.prove(moment.now, SessionToken.parse(ask.token))
    call = yield from hold(session.id, ask.request_id)
    if call is None or call.state is not State.RESERVED:
        return (yield from _admitted(moment, ask, incarnation, session, call))
    try:
        return (yield from _admitted(moment, ask, incarnation, session, call))
    except Fault as refusal:
        # Returned, not raised: an exception would undo the release.
        yield from move(moment, session, call, transition(call.state, Event.RELEASED), None)
        return Admission(attempt_id=ask.attempt_id, fault=FaultReply.of(refusal))


def _admitted(
    moment: Moment, ask: Admit, incarnation: str, session: Session, call: Call | None
) -> Steps[Admission | Held]:
    _require_fit(ask, session, call)
    if call is None:
        return (yield from _start(moment, ask, incarnation, session, None, transition(State.NONE, Event.ADMITTED)))
    alive = yield from holder_alive(moment, call)
    event = admit_event(
        call.state,
        call.attempts,
        current=call.attempt_id == ask.attempt_id,
        holder_alive=alive,
        late=call.deadline <= moment.now,
        cancelled=call.cancelled,
    )
    change = transition(call.state, event)
    match change.effect:
        case Effect.HELD:
            yield from _join(moment, call)
            return _held(moment, ask, session, Wait.CALL)
        case Effect.REPLAYED:
            return (yield from _stored_answer(session, call, ask.attempt_id))
        case Effect.REFUSED:
            raise Cancelled
    if event is Event.LOST:
        # Returned, not raised: an exception would undo the move to in doubt.
        return Admission(attempt_id=ask.attempt_id, fault=FaultReply.of((yield from lose(moment, call))))
    if event is Event.ADMITTED_AGAIN:
        # Others may follow a holder whose lease has lapsed: it goes on when it has renewed, if nobody did.
        return (yield from _grant(session, call)) if alive else _held(moment, ask, session, Wait.LEASE)
    return (yield from _start(moment, ask, incarnation, session, call, change))


def _require_fit(ask: Admit, session: Session, call: Call | None) -> None:
    """Raises the `Fault` of a request that may not run whatever became of its call."""
    if ask.problem is not None:
        raise ask.problem.raised()
    if not session.allows(ask.target):
        raise ForbiddenTarget(f"This session may not call {ask.target!r}")
    if call is not None and call.body_sha256 not in {"", ask.body_sha256}:
        raise RequestConflict(f"Request id {ask.request_id!r} was used with another body")


def _join(moment: Moment, call: Call) -> Steps[None]:
    """Another delivery waits for this call, so that nobody may cancel it for a while; unless that has been done."""
    yield from run(
        "UPDATE call SET joined_until = ? WHERE session_id = ? AND request_id = ? AND cancelled_at IS NULL",
        *(moment.now + JOINED_MS, call.session_id, call.request_id),
    )


def _held(moment: Moment, ask: Admit, session: Session, wait: Wait) -> Held:
    return Held(session.id, ask.request_id, ask.target, wait, _deadline(moment, ask, session))


def _start(
    moment: Moment, ask: Admit, incarnation: str, session: Session, call: Call | None, change: Transition
) -> Steps[Admission | Held]:
    """Begin an attempt: the only place where a call comes to run."""
    running = call is not None and call.state is State.RUNNING
    if not running:
        # A call that is taken over is not a new one: it was charged, and a pause does not end it.
        sessions.require_open(session)
    deadline = call.deadline if call is not None and running else _deadline(moment, ask, session)
    if deadline <= moment.now:
        raise Expired("The deadline passed before a worker was free")
    if (yield from attempts.is_known(ask.attempt_id)):
        raise Cancelled("Its worker gave this attempt up before the grant came")
    if not (yield from lease_runs(moment, incarnation)):
        return _held(moment, ask, session, Wait.LEASE)
    yield from lock("target", ask.target)
    if (yield from _closed_for_now(moment, ask.target)):
        return _held(moment, ask, session, Wait.TARGET)
    number = (0 if call is None else call.attempts) + change.attempts
    begun = yield from run(
        "INSERT INTO call (session_id, request_id, body_sha256, target, state, attempts, attempt_id, incarnation,"
        " deadline, call_count, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)"
        " ON CONFLICT (session_id, request_id) DO UPDATE SET body_sha256 = excluded.body_sha256,"
        " target = excluded.target, state = excluded.state, attempts = excluded.attempts,"
        " attempt_id = excluded.attempt_id, incarnation = excluded.incarnation, deadline = excluded.deadline,"
        " fault = NULL, updated_at = excluded.updated_at WHERE call.state = ? RETURNING 1",
        *(session.id, ask.request_id, ask.body_sha256, ask.target, change.to, number, ask.attempt_id, incarnation),
        *(deadline, moment.now, moment.now, State.NONE if call is None else call.state),
    )
    if not begun:
        # It was reserved between the look and the word: what it is now decides.
        return (yield from admit(moment, ask, incarnation))
    # The row first, the counter last: its row is the one everybody waits for.
    count = (yield from sessions.charge(session)) if change.used else session.used
    yield from run(
        "UPDATE call SET call_count = ? WHERE session_id = ? AND request_id = ?", count, session.id, ask.request_id
    )
    yield from run(
        "INSERT INTO attempt (id, session_id, request_id, number, incarnation, state, at)"
        " VALUES (?, ?, ?, ?, ?, 'running', ?)",
        *(ask.attempt_id, session.id, ask.request_id, number, incarnation, moment.now),
    )
    names = (session.id, ask.request_id, ask.body_sha256, ask.target)
    started = Call(*names, change.to, number, ask.attempt_id, incarnation, deadline, count, None)
    return (yield from _grant(session, started))


def settle(moment: Moment, ask: Settle) -> Steps[tuple[Call | None, Transition]]:
    """Record what became of an attempt; any attempt's result counts, whoever else was told to go on."""
    call = yield from hold(ask.session_id, ask.request_id)
    known = yield from one("SELECT state FROM attempt WHERE id = ?", ask.attempt_id)
    if call is None or known is None or known[0] == "void":
        change = Transition(State.NONE, effect=Effect.NOTED)
        if ask.outcome is Outcome.NEVER_SENT:
            yield from attempts.entomb(moment, ask)
            # With a fault its caller was refused; without one the call goes on to another worker.
            change = change if ask.fault is None else (yield from reservations.end(moment, call))
        return call, change
    event = yield from _settle_event(ask, call)
    yield from attempts.note(moment, ask)
    change = transition(call.state, event)
    if change.effect is Effect.NOTED:
        return call, change
    session = yield from sessions.load(call.session_id)
    assert session is not None
    yield from move(moment, session, call, change, _kept_fault(ask, change), ask.token_usage)
    if ask.outcome is Outcome.RESULT and ask.reply is not None and session.store_replies:
        yield from keep_reply(moment, call, ask.reply)
    if ask.token_usage is not None:
        yield from sessions.add_tokens(session, ask.token_usage)
    return call, change


def _deadline(moment: Moment, ask: Admit, session: Session) -> int:
    asked = moment.now + session.deadline_ms if ask.deadline is None else ask.deadline
    return min(asked, moment.now + MOST_AHEAD_MS)


def _grant(session: Session, call: Call) -> Steps[Admission]:
    assert call.attempt_id is not None, "a running call is held by an attempt"
    names = (call.session_id, call.request_id, call.attempt_id)
    return Admission(
        attempt_id=call.attempt_id,
        attempt=call.attempts,
        deadline=call.deadline,
        call_count=call.call_count,
        max_calls=session.max_calls,
        store_replies=bool(session.store_replies),
        # A call's only attempt has no other beside it.
        unproven=call.attempts > 1 and (yield from attempts.others_unproven(*names)),
    )


def _stored_answer(session: Session, call: Call, attempt_id: str) -> Steps[Admission]:
    if call.fault is not None:
        return Admission(attempt_id=attempt_id, fault=FaultReply.from_wire(call.fault))
    reply = yield from kept_reply(call)
    if reply is None:
        raise ReplyExpired
    return Admission(attempt_id=attempt_id, replay=reply, call_count=call.call_count, max_calls=session.max_calls)


def _kept_fault(ask: Settle, change: Transition) -> str | None:
    """The fault a call is kept with. What counts is kept with a fault that says so, whatever its worker knew."""
    if ask.outcome is Outcome.RESULT:
        return None
    fault = ask.fault
    if change.to in COUNTED and (fault is None or not fault.charged):
        if fault is not None and fault.code == Cancelled.code:
            return FaultReply.of(Cancelled(fault.error, charged=True)).to_wire().decode()
        said = "The call was not brought to its end" if fault is None else fault.error
        fault = FaultReply.of(ProviderFailed(f"{said} (an earlier attempt may have been billed)", charged=True))
    return None if fault is None else fault.to_wire().decode()


def _settle_event(ask: Settle, call: Call) -> Steps[Event]:
    current = call.attempt_id == ask.attempt_id
    match ask.outcome:
        case Outcome.RESULT:
            return Event.ANSWERED
        case Outcome.CHARGED:
            return Event.CHARGED if current else Event.STALE
        case Outcome.DOUBT:
            return Event.DOUBTED if current else Event.STALE
        case Outcome.REFUND | Outcome.NEVER_SENT:
            others = yield from attempts.others_unproven(ask.session_id, ask.request_id, ask.attempt_id)
            return refund_event(current=current, others_unproven=others)


def _closed_for_now(moment: Moment, target: str) -> Steps[bool]:
    """Whether the target is paused, or its calls in flight, over all living workers, have reached its limit."""
    row = yield from one(
        "SELECT target.paused_until > ? OR target.max_concurrency <= (SELECT count(*) FROM call"
        " WHERE call.target = target.name AND call.state = 'running'"
        " AND incarnation IN (SELECT incarnation FROM worker WHERE lease_until > ?)) FROM target WHERE name = ?",
        moment.now,
        moment.lapsed,
        target,
    )
    return row is not None and bool(row[0])

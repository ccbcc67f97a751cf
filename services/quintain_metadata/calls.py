"""Calls in the ledger: reserve, admit, settle, as `Steps`, for any store. What happens is `lifecycle`'s table."""

from __future__ import annotations

from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit, Outcome, Settle
from quintain.contracts.token import SessionToken
from quintain.errors import (
    BudgetExhausted,
    Cancelled,
    Expired,
    Fault,
    ForbiddenTarget,
    ProviderFailed,
    ReplyExpired,
    RequestConflict,
)
from quintain_metadata import attempts, sessions
from quintain_metadata.lifecycle import (
    COUNTED,
    Effect,
    Event,
    State,
    Transition,
    admit_event,
    refund_event,
    transition,
)
from quintain_metadata.records import Call, Held, Moment, hold, hold_reservations, holder_alive, load, lose, move
from quintain_metadata.replies import keep_reply, kept_reply
from quintain_metadata.sessions import Session
from quintain_metadata.steps import Steps, lock, one, run

#: Deadlines are at most this far ahead: below the broker's consumer timeout of 30 minutes.
MOST_AHEAD_MS = 25 * 60_000


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
    if ask.problem is not None:
        raise ask.problem.raised()
    if not session.allows(ask.target):
        raise ForbiddenTarget(f"This session may not call {ask.target!r}")
    if call is not None and call.body_sha256 not in {"", ask.body_sha256}:
        raise RequestConflict(f"Request id {ask.request_id!r} was used with another body")
    alive = call is not None and (yield from holder_alive(moment, call))
    late = call is not None and call.deadline <= moment.now
    state = State.NONE if call is None else call.state
    event = admit_event(
        state,
        0 if call is None else call.attempts,
        holder=None if call is None else call.attempt_id,
        attempt_id=ask.attempt_id,
        holder_alive=alive,
        late=late,
    )
    change = transition(state, event)
    if change.effect is Effect.HELD:
        return Held(session.id, ask.request_id, ask.target, joined=True)
    if change.effect is Effect.REPLAYED:
        assert call is not None
        return (yield from _stored_answer(session, call, ask.attempt_id))
    if event is Event.LOST:
        assert call is not None
        # Returned, not raised: an exception would undo the move to in doubt.
        return Admission(attempt_id=ask.attempt_id, fault=FaultReply.of((yield from lose(moment, call))))
    if event is Event.ADMITTED_AGAIN:
        assert call is not None
        return _grant(session, call, ask.attempt_id)
    return (yield from _start(moment, ask, incarnation, session, call, change))


def _start(
    moment: Moment, ask: Admit, incarnation: str, session: Session, call: Call | None, change: Transition
) -> Steps[Admission | Held]:
    """Begin an attempt: the only place where a call comes to run."""
    if call is None or call.state is not State.RUNNING:
        # A call that is taken over is not a new one: it was charged, and a pause does not end it.
        sessions.require_open(session)
    deadline = _deadline(moment, ask, session, call)
    if deadline <= moment.now:
        raise Expired("The deadline passed before a worker was free")
    if (yield from attempts.is_known(ask.attempt_id)):
        raise Cancelled("Its worker gave this attempt up before the grant came")
    yield from lock("target", ask.target)
    if (yield from _at_limit(moment, ask.target)):
        return Held(session.id, ask.request_id, ask.target, joined=False)
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
    names = (session.id, ask.request_id, ask.body_sha256, ask.target)
    started = Call(*names, change.to, number, ask.attempt_id, incarnation, deadline, count, None)
    yield from run(
        "INSERT INTO attempt (id, session_id, request_id, number, incarnation, state, at)"
        " VALUES (?, ?, ?, ?, ?, 'running', ?)",
        *(ask.attempt_id, session.id, ask.request_id, number, incarnation, moment.now),
    )
    return _grant(session, started, ask.attempt_id)


def settle(moment: Moment, ask: Settle) -> Steps[tuple[Call | None, Transition]]:
    """Record what became of an attempt; any attempt's result counts, whoever else was told to go on."""
    call = yield from hold(ask.session_id, ask.request_id)
    known = yield from one("SELECT state FROM attempt WHERE id = ?", ask.attempt_id)
    if call is None or known is None or known[0] == "void":
        change = Transition(State.NONE, effect=Effect.NOTED)
        if ask.outcome is Outcome.NEVER_SENT:
            yield from attempts.entomb(moment, ask)
            # With a fault its caller was refused; without one the call goes on to another worker.
            change = change if ask.fault is None else (yield from _released(moment, call))
        return call, change
    event = yield from _settle_event(ask, call)
    yield from attempts.note(moment, ask)
    change = transition(call.state, event)
    if change.effect is Effect.NOTED:
        return call, change
    session = yield from sessions.load(call.session_id)
    assert session is not None
    yield from move(moment, session, call, change, _kept_fault(ask, change))
    if ask.outcome is Outcome.RESULT and ask.reply is not None and session.store_replies:
        yield from keep_reply(moment, call, ask.reply)
    if ask.token_usage is not None:
        yield from sessions.add_tokens(session, ask.token_usage)
    return call, change


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
            yield from _released(moment, (yield from load(session_id, request_id)))
        released += len(rows)
    return released


def _released(moment: Moment, call: Call | None) -> Steps[Transition]:
    """End a call that is still only reserved."""
    if call is None or call.state is not State.RESERVED:
        return Transition(State.NONE if call is None else call.state, effect=Effect.NOTED)
    session = yield from sessions.load(call.session_id)
    assert session is not None
    change = transition(call.state, Event.RELEASED)
    yield from move(moment, session, call, change, None)
    return change


def _deadline(moment: Moment, ask: Admit, session: Session, call: Call | None) -> int:
    if call is not None and call.state is State.RUNNING:
        return call.deadline
    asked = moment.now + session.deadline_ms if ask.deadline is None else ask.deadline
    return min(asked, moment.now + MOST_AHEAD_MS)


def _grant(session: Session, call: Call, attempt_id: str) -> Admission:
    return Admission(
        attempt_id=attempt_id,
        attempt=call.attempts,
        deadline=call.deadline,
        call_count=call.call_count,
        max_calls=session.max_calls,
        store_replies=bool(session.store_replies),
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
            others = yield from attempts.others_unproven(ask)
            return refund_event(current=current, others_unproven=others)


def _at_limit(moment: Moment, target: str) -> Steps[bool]:
    """Whether the target's calls in flight, over all living workers, have reached its limit."""
    row = yield from one(
        "SELECT target.max_concurrency <= (SELECT count(*) FROM call JOIN worker USING (incarnation)"
        " WHERE call.target = target.name AND call.state = 'running' AND worker.lease_until > ?)"
        " FROM target WHERE name = ?",
        moment.lapsed,
        target,
    )
    return row is not None and bool(row[0])

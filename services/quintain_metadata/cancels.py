"""Cancelling in the ledger: a call that its caller takes back is marked, and never begins again. As `Steps`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from quintain_metadata import sessions
from quintain_metadata.lifecycle import Effect, Event, State, Transition, cancel_event, transition
from quintain_metadata.records import Call, Moment, hold_reservations, load_each
from quintain_metadata.sessions import Session
from quintain_metadata.steps import Steps, Value, lock_each, run, table_of

#: So many calls are held at once at most: a store has only so many locks.
PAGE = 200


@dataclass(slots=True)
class TakenBack:
    """How many calls were cancelled, and which of them run: they are to be aborted."""

    cancelled: int = 0
    to_abort: list[str] = field(default_factory=list)


def cancel(moment: Moment, session: Session, request_ids: Iterable[str]) -> Steps[TakenBack]:
    """Mark the calls of these request ids (at most `PAGE`), known or not: what does not run is refused when it is
    admitted, and gives its reservation back. What another delivery waits for, what has ended and what is marked
    already is left alone."""
    wanted = sorted(set(request_ids))
    # All calls before the reservations: whoever holds one call may be waiting for the reservations.
    yield from lock_each("call", session.id, wanted)
    yield from hold_reservations(session.id)
    taken, given_back = TakenBack(), 0
    while wanted:
        known = yield from load_each(session.id, wanted)
        given_back += yield from _mark_known(moment, session, known.values(), taken)
        unknown = [one for one in wanted if one not in known]
        # What was reserved between the look and the word is looked at again.
        wanted = yield from _mark_unknown(moment, session, unknown, taken)
    if given_back:
        # The rows first, the counter last: its row is the one everybody waits for.
        yield from sessions.give_back(session, given_back)
    return taken


def _mark_known(moment: Moment, session: Session, known: Iterable[Call], taken: TakenBack) -> Steps[int]:
    """Returns how many of them counted and do so no more."""
    marked: dict[State, list[str]] = {}
    given_back = 0
    for call in known:
        change = _change(moment, call)
        if change.effect is not Effect.NOTED:
            marked.setdefault(change.to, []).append(call.request_id)
            given_back -= change.used
    for state, names in marked.items():
        fields: list[Value] = [state, moment.now, moment.now, *names, session.id]
        yield from run(
            f"UPDATE call SET state = ?, cancelled_at = ?, updated_at = ? FROM {table_of(names)} AS wanted"
            " WHERE call.session_id = ? AND call.request_id = wanted.column1",
            *fields,
        )
        taken.cancelled += len(names)
    taken.to_abort += sorted(marked.get(State.RUNNING, ()))
    return given_back


def _change(moment: Moment, call: Call) -> Transition:
    joined = call.state is State.RUNNING and call.joined_until > moment.now
    return transition(call.state, cancel_event(cancelled=call.cancelled, joined=joined))


def _mark_unknown(moment: Moment, session: Session, names: list[str], taken: TakenBack) -> Steps[list[str]]:
    """Returns those that are known by now."""
    if not names:
        return []
    fields: list[Value] = []
    for name in names:
        fields += (session.id, name, transition(State.NONE, Event.CANCELLED).to, *[moment.now] * 3)
    values = ", ".join(["(?, ?, '', '', ?, 0, 0, 0, ?, ?, ?)"] * len(names))
    inserted = yield from run(
        "INSERT INTO call (session_id, request_id, body_sha256, target, state, attempts, deadline, call_count,"
        f" cancelled_at, created_at, updated_at) VALUES {values}"
        " ON CONFLICT (session_id, request_id) DO NOTHING RETURNING request_id",
        *fields,
    )
    taken.cancelled += len(inserted)
    return sorted(set(names) - {one[0] for one in inserted})

"""Calls as rows of the ledger, and the moment at which they are looked at: reading one, moving one, losing one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from quintain.contracts.invoke import FaultReply
from quintain.errors import Fault, TimedOut, WorkerLost
from quintain_metadata import sessions
from quintain_metadata.lifecycle import MOST_ATTEMPTS, Event, State, Transition, transition
from quintain_metadata.sessions import Session
from quintain_metadata.steps import Steps, lock, one, run


@dataclass(frozen=True, slots=True)
class Moment:
    """When an operation happens. Nobody's lease is taken for lapsed before ``mourn_from``: after a gap in this
    service's own running the workers had no chance to renew."""

    now: int
    mourn_from: int = 0

    @property
    def lapsed(self) -> int:
        """Leases that ran until then, or less, have lapsed."""
        return self.now if self.mourn_from <= self.now else 0


@dataclass(frozen=True, slots=True)
class Held:
    """No answer yet: another attempt runs the call, or the target is at its limit over the fleet."""

    session_id: str
    request_id: str
    target: str
    joined: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A row of ``call``."""

    session_id: str
    request_id: str
    body_sha256: str
    target: str
    state: State
    attempts: int
    attempt_id: str | None
    incarnation: str | None
    deadline: int
    call_count: int
    fault: str | None


_COLUMNS = ", ".join(field.name for field in dataclasses.fields(Call))


def load(session_id: str, request_id: str) -> Steps[Call | None]:
    """A call as it stands, or None where nobody has heard of it."""
    row = yield from one(f"SELECT {_COLUMNS} FROM call WHERE session_id = ? AND request_id = ?", session_id, request_id)
    if row is None:
        return None
    call = Call(*row)
    return dataclasses.replace(call, state=State(call.state))


def hold(session_id: str, request_id: str) -> Steps[Call | None]:
    """A call that nobody else moves until this operation ends: what is decided about it is true when it is written."""
    yield from lock("call", session_id, request_id)
    call = yield from load(session_id, request_id)
    if call is None or call.state is not State.RESERVED:
        return call
    yield from hold_reservations(session_id)
    return (yield from load(session_id, request_id))


def hold_reservations(session_id: str) -> Steps[None]:
    """Nobody else begins or ends a reservation of this session until this operation ends. They are given back by the
    thousand, and a lock for each would be more than a store has."""
    yield from lock("reservations", session_id)


def move(moment: Moment, session: Session, call: Call, change: Transition, fault: str | None) -> Steps[None]:
    """Apply a transition, on the condition that the call is still in the state it was decided for."""
    moved = yield from run(
        "UPDATE call SET state = ?, fault = ?, updated_at = ? WHERE session_id = ? AND request_id = ? AND state = ?"
        " RETURNING 1",
        *(change.to, fault, moment.now, call.session_id, call.request_id, call.state),
    )
    if moved and change.used < 0:
        yield from sessions.give_back(session, -change.used)


def lose(moment: Moment, call: Call) -> Steps[Fault]:
    """A running call whose holder is gone and that nobody may follow: in doubt. Returns the fault it is kept with."""
    change = transition(call.state, Event.LOST)
    fault: Fault = WorkerLost() if call.attempts >= MOST_ATTEMPTS else TimedOut()
    session = yield from sessions.load(call.session_id)
    assert session is not None
    yield from move(moment, session, call, change, FaultReply.of(fault).to_wire().decode())
    return fault


def holder_alive(moment: Moment, call: Call) -> Steps[bool]:
    """Whether the lease of the worker that holds this call runs."""
    row = yield from one("SELECT lease_until FROM worker WHERE incarnation = ?", call.incarnation)
    return row is not None and row[0] > moment.lapsed

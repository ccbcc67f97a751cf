"""Calls as rows of the ledger, and the moment at which they are looked at: reading one, moving one, losing one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from quintain.contracts.invoke import FaultReply, TokenUsage
from quintain.errors import Cancelled, Fault, TimedOut, WorkerLost
from quintain_metadata import sessions
from quintain_metadata.lifecycle import MOST_ATTEMPTS, Event, State, Transition, transition
from quintain_metadata.sessions import Session
from quintain_metadata.steps import Row, Steps, lock, one, run, table_of


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


class Wait(Enum):
    """What an admit waits for."""

    #: Another attempt runs the call: for its end.
    CALL = auto()
    #: The target is at its limit over the fleet, or paused: for a slot, or the end of the pause.
    TARGET = auto()
    #: The worker that asks has no lease that runs: for its heartbeat.
    LEASE = auto()


@dataclass(frozen=True, slots=True)
class Held:
    """No answer yet, and why. ``deadline`` is the asker's own, as if it were granted now."""

    session_id: str
    request_id: str
    target: str
    wait: Wait
    deadline: int

    @property
    def joined(self) -> bool:
        """Whether it is a duplicate of a running call."""
        return self.wait is Wait.CALL


@dataclass(frozen=True, slots=True)
class Call:
    """A row of ``call``. ``cancelled_at`` is when its caller took it back; ``joined_until`` is how long another
    delivery of it is known to wait for its answer."""

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
    cancelled_at: int | None = None
    joined_until: int = 0

    @property
    def cancelled(self) -> bool:
        """Whether its caller has taken it back."""
        return self.cancelled_at is not None


_FIELDS = [field.name for field in dataclasses.fields(Call)]
_COLUMNS = ", ".join(_FIELDS)
_STATE = _FIELDS.index("state")


def load(session_id: str, request_id: str) -> Steps[Call | None]:
    """A call as it stands, or None where nobody has heard of it."""
    row = yield from one(f"SELECT {_COLUMNS} FROM call WHERE session_id = ? AND request_id = ?", session_id, request_id)
    return None if row is None else _call(row)


def _call(row: Row) -> Call:
    columns = list(row)
    columns[_STATE] = State(columns[_STATE])
    return Call(*columns)


def load_each(session_id: str, request_ids: Sequence[str]) -> Steps[dict[str, Call]]:
    """Those of a session's calls that somebody has heard of, by their request ids."""
    rows = yield from run(
        f"SELECT {_COLUMNS} FROM {table_of(request_ids)} AS wanted JOIN call ON call.request_id = wanted.column1"
        " WHERE call.session_id = ?",
        *(*request_ids, session_id),
    )
    return {call.request_id: call for call in map(_call, rows)}


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


def move(
    moment: Moment, session: Session, call: Call, change: Transition, fault: str | None, took: TokenUsage | None = None
) -> Steps[None]:
    """Apply a transition, on the condition that the call is still in the state it was decided for. ``took`` is what
    the call's answer took, where its provider said so."""
    tokens = (None,) * 3 if took is None else (took.input, took.output, took.cached or 0)
    moved = yield from run(
        "UPDATE call SET state = ?, fault = ?, updated_at = ?, tokens_input = coalesce(?, tokens_input),"
        " tokens_output = coalesce(?, tokens_output), tokens_cached = coalesce(?, tokens_cached)"
        " WHERE session_id = ? AND request_id = ? AND state = ? RETURNING 1",
        *(change.to, fault, moment.now, *(None if count is None else sessions.countable(count) for count in tokens)),
        *(call.session_id, call.request_id, call.state),
    )
    if moved and change.used < 0:
        yield from sessions.give_back(session, -change.used)


def lose(moment: Moment, call: Call) -> Steps[Fault]:
    """A running call whose holder is gone and that nobody may follow: in doubt. Returns the fault it is kept with."""
    change = transition(call.state, Event.LOST)
    fault: Fault = WorkerLost() if call.attempts >= MOST_ATTEMPTS else TimedOut()
    if call.cancelled:
        fault = Cancelled(charged=True)
    session = yield from sessions.load(call.session_id)
    assert session is not None
    yield from move(moment, session, call, change, FaultReply.of(fault).to_wire().decode())
    return fault


def holder_alive(moment: Moment, call: Call) -> Steps[bool]:
    """Whether the lease of the worker that holds this call runs."""
    return (yield from lease_runs(moment, call.incarnation))


def lease_runs(moment: Moment, incarnation: str | None) -> Steps[bool]:
    """Whether a worker is registered, and its lease runs."""
    row = yield from one("SELECT lease_until FROM worker WHERE incarnation = ?", incarnation)
    return row is not None and row[0] > moment.lapsed

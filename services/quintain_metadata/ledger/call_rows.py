"""The rows that calls are decided by, how they are read, and the statements that write them.

The attempt that holds a call, or held it last, needs no row: the call names it, and without a row it may have been
billed. A row has an attempt that another one followed, one that was proven unbilled, and one that must never run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, NamedTuple

from quintain.contracts.values import sanitize_request_id
from quintain_metadata.ledger.lifecycle import CallState
from quintain_metadata.ledger.session_rows import TOKEN_KINDS, SessionRow, load_sessions
from quintain_metadata.store.base import Lookup, Moment, Row, SqlProgram, execute, fetch_one

#: The session id and the request id of a call.
CallKey = tuple[str, str]


class CallRow(NamedTuple):
    """A row of the table ``call``. Times are milliseconds since the epoch.

    ``cancelled_at`` is when its caller cancelled it; ``joined_until`` is until when another delivery is known to wait
    for its answer. ``uncounted_attempts`` were lost with a worker that ran other calls too. ``cost`` is what is
    reserved for the attempt that holds it, or held it last, in picodollars; ``lost``: that one was never reported.
    ``counted_tries`` of its tries failed and count; the next one begins at ``not_before`` at the earliest.
    ``grader`` is whose call it is, if it is a grader's.
    """

    session_id: str
    request_id: str
    body_sha256: str
    target: str
    state: CallState
    attempts: int
    attempt_id: str | None
    incarnation: str | None
    deadline: int
    call_count: int
    fault: str | None
    cancelled_at: int | None = None
    joined_until: int = 0
    uncounted_attempts: int = 0
    cost: int = 0
    lost: int = 0
    counted_tries: int = 0
    not_before: int = 0
    grader: str | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether its caller has cancelled it."""
        return self.cancelled_at is not None


class AttemptCounts(NamedTuple):
    """What is added to the counters of a call: its requests to providers, and what they cost, in picodollars.

    ``unproven`` of the tries failed, or were lost, and may have been billed. ``held`` is reserved for tries whose bill
    is not known, and ``unknown`` is how many of those nothing is reserved for.
    """

    tries: int = 0
    unproven: int = 0
    billed: int = 0
    held: int = 0
    unknown: int = 0

    def plus(self, other: AttemptCounts, *, times: int = 1) -> AttemptCounts:
        """Return the sum with others; ``times=-1`` takes them away."""
        return AttemptCounts(*(mine + times * more for mine, more in zip(self, other, strict=True)))


#: What nobody counted.
NO_COUNTS: Final = AttemptCounts()


class WorkerRow(NamedTuple):
    """A worker: whether its lease is valid, and how many calls it ran when it was lost; 0 while its lease is valid."""

    is_alive: bool
    lost_calls: int


_GONE = WorkerRow(is_alive=False, lost_calls=0)


@dataclass(slots=True)
class Rows:
    """What operations are decided by.

    ``attempts`` are, by call, the states of those with a row: running (and lost), unproven, retried (and unproven),
    proven (unbilled) or void (never to run, or to run again). ``attempt_costs`` are what is held for those of unknown
    cost, in picodollars. ``lost_costs`` are what sessions with a limit in money reserve for lost attempts, where there
    are take-overs. ``wrong_bounds`` are the targets of which a try cost so many picodollars more than its bound; read
    where a session has such a limit.
    """

    sessions: dict[str, SessionRow]
    calls: dict[CallKey, CallRow]
    attempts: dict[CallKey, dict[str, str]] = field(default_factory=dict)
    workers: dict[str, WorkerRow] = field(default_factory=dict)
    attempt_costs: dict[str, int] = field(default_factory=dict)
    lost_costs: dict[str, int] = field(default_factory=dict)
    wrong_bounds: dict[str, int] = field(default_factory=dict)

    def holder(self, call: CallRow) -> WorkerRow:
        """Return the worker that holds this call, or held it last."""
        return self.workers.get(call.incarnation or "", _GONE)


_CALL_COLUMNS = ", ".join(CallRow._fields)
_STATE_INDEX = CallRow._fields.index("state")
_STATES: Final[dict[str, CallState]] = {state.value: state for state in CallState}

_CALLS_SQL = (
    f"SELECT {_CALL_COLUMNS} FROM wanted JOIN call ON call.session_id = wanted.key1 AND call.request_id = wanted.key2"
)

_ATTEMPTS_SQL = (
    "SELECT attempt.session_id, attempt.request_id, attempt.id, attempt.state, attempt.cost FROM wanted JOIN attempt"
    " ON attempt.session_id = wanted.key1 AND attempt.request_id = wanted.key2"
)

#: Of a worker that is gone, how many calls it ran: what was recorded with the first of them, or their number now.
_WORKERS_SQL = (
    "SELECT worker.incarnation, lease_until, CASE WHEN lease_until > ? THEN 0 ELSE coalesce(lost_calls, (SELECT"
    " CAST(sum(running) AS bigint) FROM running_calls WHERE running_calls.incarnation = worker.incarnation), 0) END"
    " FROM wanted JOIN worker ON worker.incarnation = wanted.key1"
)

#: Makes a call running that is new, or that no attempt holds.
START_CALL_SQL = (
    "INSERT INTO call (session_id, request_id, body_sha256, target, state, attempts, attempt_id, incarnation,"
    " deadline, call_count, uncounted_attempts, cost, counted_tries, grader, created_at, updated_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (session_id, request_id) DO UPDATE SET body_sha256 = excluded.body_sha256,"
    " target = excluded.target, state = excluded.state, attempts = excluded.attempts,"
    " attempt_id = excluded.attempt_id, incarnation = excluded.incarnation, deadline = excluded.deadline,"
    " call_count = excluded.call_count, uncounted_attempts = excluded.uncounted_attempts, cost = excluded.cost,"
    " lost = 0, counted_tries = excluded.counted_tries, not_before = 0, grader = excluded.grader, fault = NULL,"
    " updated_at = excluded.updated_at"
)

_ADDED_COUNTS = (
    "tries = tries + ?, unproven_tries = unproven_tries + ?, billed = billed + ?, held = held + ?,"
    " unknown = unknown + ?"
)

#: Adds to the counters of a call: the parameters are `AttemptCounts`, and the call.
COUNT_SQL = f"UPDATE call SET {_ADDED_COUNTS} WHERE session_id = ? AND request_id = ?"

#: Records why money is held for a call: the HTTP status or the code of the last such try, the call.
HELD_FOR_SQL = "UPDATE call SET held_for = ? WHERE session_id = ? AND request_id = ?"

#: Applies a transition to a call that is still in its state.
TRANSITION_SQL = (
    "UPDATE call SET state = ?, fault = ?, cost = ?, lost = ?, updated_at = ?,"
    f" {', '.join(f'tokens_{kind} = coalesce(?, tokens_{kind})' for kind in TOKEN_KINDS)}, {_ADDED_COUNTS}"
    " WHERE session_id = ? AND request_id = ? AND state = ?"
)

#: Reserves a call, or moves the end of its reservation.
RESERVE_SQL = (
    "INSERT INTO call (session_id, request_id, body_sha256, target, state, attempts, deadline, call_count, created_at,"
    " updated_at) VALUES (?, ?, '', '', ?, 0, ?, 0, ?, ?) ON CONFLICT (session_id, request_id) DO UPDATE SET"
    " counted_tries = CASE call.state WHEN 'released' THEN 0 ELSE call.counted_tries END,"
    " state = excluded.state, deadline = excluded.deadline, updated_at = excluded.updated_at"
)

#: Marks a call as cancelled, known or not.
CANCEL_SQL = (
    "INSERT INTO call (session_id, request_id, body_sha256, target, state, attempts, deadline, call_count,"
    " cancelled_at, created_at, updated_at) VALUES (?, ?, '', '', ?, 0, 0, 0, ?, ?, ?)"
    " ON CONFLICT (session_id, request_id) DO UPDATE SET state = excluded.state, cancelled_at = excluded.cancelled_at,"
    " updated_at = excluded.updated_at"
)

#: Stores the fault of a call that a cancellation ended.
STORE_FAULT_SQL = "UPDATE call SET fault = ? WHERE session_id = ? AND request_id = ?"

#: Records until when another delivery is known to wait for a call's answer, unless the call is cancelled.
JOIN_SQL = "UPDATE call SET joined_until = ? WHERE session_id = ? AND request_id = ? AND cancelled_at IS NULL"

#: Records how many tries of a call count, and when its next one begins at the earliest.
RETRY_SQL = (
    "UPDATE call SET counted_tries = ?, not_before = ?, joined_until = 0 WHERE session_id = ? AND request_id = ?"
)

#: Takes back the number of an attempt that was never sent, or is tried again.
UNCOUNT_ATTEMPT_SQL = "UPDATE call SET attempts = attempts - 1 WHERE session_id = ? AND request_id = ?"

#: Records that a try of a target cost more than its bound: by how much, the target, and by how much.
RECORD_EXCESS_SQL = "UPDATE target SET bound_excess = ? WHERE name = ? AND bound_excess < ?"

#: Gives an attempt a row, unless it has one: id, session id, request id, number, incarnation, state, time, cost.
INSERT_ATTEMPT_SQL = (
    "INSERT INTO attempt (id, session_id, request_id, number, incarnation, state, at, cost)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id) DO NOTHING"
)

#: The same, and sets the state of one that has a row.
UPSERT_ATTEMPT_SQL = INSERT_ATTEMPT_SQL.replace("NOTHING", "UPDATE SET state = excluded.state, at = excluded.at")

#: Records that the bill of an attempt is known.
RESOLVE_ATTEMPT_COST_SQL = "UPDATE attempt SET cost = 0 WHERE id = ?"

#: The same of the attempt that held a call last.
RESOLVE_CALL_COST_SQL = "UPDATE call SET cost = 0, lost = 0 WHERE session_id = ? AND request_id = ?"

#: Parameters: the time and the attempt.
RECORD_UNPROVEN_SQL = "UPDATE attempt SET state = 'unproven', at = ? WHERE id = ?"

#: Records how many calls ran at a worker that is gone, if that was not recorded before.
RECORD_LOSS_SQL = "UPDATE worker SET lost_calls = coalesce(lost_calls, ?) WHERE incarnation = ?"

#: Whether the attempt that holds a call, or held it last, has no row: it may have been billed then.
HOLDER_WITHOUT_ROW = (
    "(call.attempt_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM attempt AS holder WHERE holder.id = call.attempt_id"
    " AND holder.session_id = call.session_id AND holder.request_id = call.request_id))"
)


def load_calls(keys: Collection[CallKey], *, sessions: Iterable[str] = ()) -> SqlProgram[Rows]:
    """Read these calls, their sessions and these ones."""
    rows = Rows((yield from load_sessions({*sessions, *map(itemgetter(0), keys)})), {})
    rows.calls = yield from read_calls(rows, list(keys))
    return rows


def read_calls(rows: Rows, keys: Sequence[CallKey]) -> SqlProgram[dict[CallKey, CallRow]]:
    """Return those of these calls that the ledger has, and read the attempts at those that wait for a next try."""
    calls, tried = dict[CallKey, CallRow](), list[CallKey]()
    for row in (yield Lookup(_CALLS_SQL, keys)):
        call, key = call_from_row(row), (row[0], row[1])
        calls[key] = call
        if call.state is CallState.RESERVED and call.attempt_id is not None:
            tried.append(key)
    if tried:
        yield from read_attempts(rows, tried)
    return calls


def read_attempts(rows: Rows, keys: Sequence[CallKey]) -> SqlProgram[None]:
    """Read the attempts at these calls that have a row."""
    for session_id, request_id, attempt_id, state, cost in (yield Lookup(_ATTEMPTS_SQL, keys)):
        rows.attempts.setdefault((session_id, request_id), {})[attempt_id] = state
        rows.attempt_costs[attempt_id] = cost


def read_workers(moment: Moment, rows: Rows, incarnations: Iterable[str | None]) -> SqlProgram[None]:
    """Read those of these workers that are registered."""
    keys = list(zip(sorted(filter(None, set(incarnations))), strict=True))
    for incarnation, lease_until, lost_calls in (yield Lookup(_WORKERS_SQL, keys, (moment.lease_cutoff,))):
        rows.workers[incarnation] = WorkerRow(lease_until > moment.lease_cutoff, lost_calls)


def read_wrong_bounds() -> SqlProgram[dict[str, int]]:
    """Return the targets of which a try cost more than its bound, and by how many picodollars."""
    rows = yield from execute("SELECT name, bound_excess FROM target WHERE bound_excess > 0")
    return {row[0]: row[1] for row in rows}


def load_call(session_id: str, request_id: str) -> SqlProgram[CallRow | None]:
    """Return a call, or None where the ledger has no row of it."""
    rows = yield Lookup(_CALLS_SQL, [(session_id, request_id)])
    return call_from_row(rows[0]) if rows else None


def call_from_row(row: Row) -> CallRow:
    """Return the call of a row with its columns."""
    columns = list(row)
    columns[_STATE_INDEX] = _STATES[columns[_STATE_INDEX]]
    return CallRow._make(columns)


def is_any_running(session_id: str, request_ids: Sequence[str]) -> SqlProgram[bool]:
    """Whether any of these calls of a session is running."""
    rows = yield Lookup(
        "SELECT 1 FROM wanted JOIN call ON call.session_id = wanted.key1 AND call.request_id = wanted.key2"
        " WHERE call.state = 'running' LIMIT 1",
        [(session_id, request_id) for request_id in request_ids],
    )
    return bool(rows)


def read_ended(attempts: Sequence[tuple[str, str, str]]) -> SqlProgram[list[CallKey]]:
    """Return the calls of these attempts, each given by session, request and attempt, that it does not run any more."""
    rows = yield Lookup(
        "SELECT session_id, request_id FROM wanted JOIN call ON call.session_id = wanted.key1"
        " AND call.request_id = wanted.key2 AND call.attempt_id = wanted.key3 WHERE call.state = 'running'",
        attempts,
    )
    running = {(row[0], row[1]) for row in rows}
    return [key for *call, _ in attempts if (key := (call[0], call[1])) not in running]


def resolved_target(session_id: str, request_id: str) -> SqlProgram[str | None]:
    """Return the target that a call was resolved to first; it never changes."""
    row = yield from fetch_one(
        "SELECT target FROM call WHERE session_id = ? AND request_id = ? AND target <> ''",
        *(session_id, sanitize_request_id(request_id)),
    )
    return None if row is None else row[0]

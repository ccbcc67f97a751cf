"""Reads and writes the rows of calls."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

from quintain.contracts.invoke import TokenUsage
from quintain.contracts.values import sanitize_request_id
from quintain_metadata import call_counter
from quintain_metadata.lifecycle import (
    CallState,
    Transition,
)
from quintain_metadata.session_rows import SessionRow
from quintain_metadata.store import (
    Moment,
    Row,
    SqlProgram,
    SqlValue,
    acquire_lock,
    execute,
    fetch_one,
    filled_up,
    values_table,
)

#: The session id and the request id of a call.
CallKey = tuple[str, str]


def is_any_running(session_id: str, request_ids: Sequence[str]) -> SqlProgram[bool]:
    """Whether any of these calls of a session is running."""
    row = yield from fetch_one(
        f"SELECT 1 FROM {values_table(request_ids)} AS wanted JOIN call ON call.request_id = wanted.column1"
        " WHERE call.session_id = ? AND call.state = 'running' LIMIT 1",
        *(*request_ids, session_id),
    )
    return row is not None


def resolved_target(session_id: str, request_id: str) -> SqlProgram[str | None]:
    """Return the target that a call was resolved to first; it never changes."""
    row = yield from fetch_one(
        "SELECT target FROM call WHERE session_id = ? AND request_id = ? AND target <> ''",
        *(session_id, sanitize_request_id(request_id)),
    )
    return None if row is None else row[0]


class CallRow(NamedTuple):
    """A row of the table ``call``. Times are milliseconds since the epoch.

    ``cancelled_at`` is when its caller cancelled it; ``joined_until`` is until when another delivery is known to wait
    for its answer. ``uncounted_attempts`` were lost with a worker that ran other calls too.
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

    @property
    def counted_attempts(self) -> int:
        """How many attempts count towards `MAX_ATTEMPTS`."""
        return self.attempts - self.uncounted_attempts

    @property
    def is_cancelled(self) -> bool:
        """Whether its caller has cancelled it."""
        return self.cancelled_at is not None


_CALL_COLUMNS = ", ".join(CallRow._fields)
_STATE_INDEX = CallRow._fields.index("state")
_STATES: Final[dict[str, CallState]] = {state.value: state for state in CallState}

LOAD_CALL_SQL = f"SELECT {_CALL_COLUMNS} FROM call WHERE session_id = ? AND request_id = ?"

#: Makes a call running that is new, or that no attempt holds; its parameters are `start_parameters`.
START_CALL_SQL = (
    "INSERT INTO call (session_id, request_id, body_sha256, target, state, attempts, attempt_id, incarnation,"
    " deadline, call_count, uncounted_attempts, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (session_id, request_id) DO UPDATE SET body_sha256 = excluded.body_sha256,"
    " target = excluded.target, state = excluded.state, attempts = excluded.attempts,"
    " attempt_id = excluded.attempt_id, incarnation = excluded.incarnation, deadline = excluded.deadline,"
    " call_count = excluded.call_count, uncounted_attempts = excluded.uncounted_attempts, fault = NULL,"
    " updated_at = excluded.updated_at"
)

#: Applies a transition to a call that is still in its state; its parameters are `transition_parameters`.
TRANSITION_SQL = (
    "UPDATE call SET state = ?, fault = ?, updated_at = ?, tokens_input = coalesce(?, tokens_input),"
    " tokens_output = coalesce(?, tokens_output), tokens_cached = coalesce(?, tokens_cached)"
    " WHERE session_id = ? AND request_id = ? AND state = ?"
)

#: Records until when another delivery is known to wait for a call's answer, unless the call is cancelled.
JOIN_SQL = "UPDATE call SET joined_until = ? WHERE session_id = ? AND request_id = ? AND cancelled_at IS NULL"

#: Takes back the number of an attempt that was never sent.
UNCOUNT_ATTEMPT_SQL = "UPDATE call SET attempts = attempts - 1 WHERE session_id = ? AND request_id = ?"

#: Adds to the number of a target's running calls at a worker.
COUNT_RUNNING_SQL = (
    "INSERT INTO running_calls (target, incarnation, running) VALUES (?, ?, ?)"
    " ON CONFLICT (target, incarnation) DO UPDATE SET running = running_calls.running + excluded.running"
)

_CHECKED_TRANSITION_SQL = f"{TRANSITION_SQL} RETURNING 1"


def read_calls(keys: Sequence[CallKey]) -> SqlProgram[dict[CallKey, CallRow]]:
    """Return those of these calls that the ledger has."""
    filled = filled_up(keys)
    rows = yield from execute(
        f"SELECT {_CALL_COLUMNS} FROM (VALUES {', '.join(['(?, ?)'] * len(filled))}) AS wanted"
        " JOIN call ON call.session_id = wanted.column1 AND call.request_id = wanted.column2",
        *itertools.chain.from_iterable(filled),
    )
    return {call[:2]: call for call in map(call_from_row, rows)}


def load_call(session_id: str, request_id: str) -> SqlProgram[CallRow | None]:
    """Return a call, or None where the ledger has no row of it."""
    row = yield from fetch_one(LOAD_CALL_SQL, session_id, request_id)
    return None if row is None else call_from_row(row)


def call_from_row(row: Row) -> CallRow:
    """Return the call of a row with its columns."""
    columns = list(row)
    columns[_STATE_INDEX] = _STATES[columns[_STATE_INDEX]]
    return CallRow._make(columns)


def load_calls(session_id: str, request_ids: Sequence[str]) -> SqlProgram[dict[str, CallRow]]:
    """Return those of a session's calls that the ledger has, by request id."""
    rows = yield from execute(
        f"SELECT {_CALL_COLUMNS} FROM {values_table(request_ids)} AS wanted JOIN call ON call.request_id = "
        "wanted.column1"
        " WHERE call.session_id = ?",
        *(*request_ids, session_id),
    )
    return {call.request_id: call for call in map(call_from_row, rows)}


def lock_call(session_id: str, request_id: str) -> SqlProgram[CallRow | None]:
    """Lock a call until the operation ends, so that its state stays as it was read; returns the call."""
    yield from acquire_lock("call", session_id, request_id)
    call = yield from load_call(session_id, request_id)
    if call is None or call.state is not CallState.RESERVED:
        return call
    yield from lock_reservations(session_id)
    return (yield from load_call(session_id, request_id))


def lock_reservations(session_id: str) -> SqlProgram[None]:
    """Lock all reservations of a session until the operation ends.

    One lock for all: they are released by the thousand, and a store's number of locks is limited.
    """
    yield from acquire_lock("reservations", session_id)


def count_running(target: str, incarnation: str, change: int) -> SqlProgram[None]:
    """Add ``change`` to the number of a target's running calls at a worker."""
    yield from execute(COUNT_RUNNING_SQL, target, incarnation, change)


def apply_transition(
    moment: Moment,
    session: SessionRow,
    call: CallRow,
    change: Transition,
    fault: str | None,
    token_usage: TokenUsage | None = None,
) -> SqlProgram[None]:
    """Apply a transition, on the condition that the call is still in the state it was decided for.

    ``fault`` is the fault to store, as JSON; ``token_usage`` the usage of the call, where its provider reported it.
    """
    updated_rows = yield from execute(
        _CHECKED_TRANSITION_SQL,
        *transition_parameters(moment, call, change, fault, token_usage),
    )
    if updated_rows and call.state is CallState.RUNNING and change.to is not CallState.RUNNING:
        assert call.incarnation is not None, "a running call is held by an attempt"
        yield from count_running(call.target, call.incarnation, -1)
    if updated_rows and change.used < 0:
        yield from call_counter.refund(session, -change.used)


def transition_parameters(
    moment: Moment, call: CallRow, change: Transition, fault: str | None, token_usage: TokenUsage | None
) -> tuple[SqlValue, ...]:
    """Return the parameters of `TRANSITION_SQL`, which are the arguments of `apply_transition`."""
    key = (call.session_id, call.request_id, call.state)
    if token_usage is None:
        return change.to, fault, moment.now, None, None, None, *key
    return change.to, fault, moment.now, *call_counter.clamp_token_counts(token_usage), *key


def start_parameters(moment: Moment, call: CallRow) -> tuple[SqlValue, ...]:
    """Return the parameters of `START_CALL_SQL` for a call as it is when it runs."""
    key = (call.session_id, call.request_id, call.body_sha256, call.target, call.state, call.attempts)
    held = (call.attempt_id, call.incarnation, call.deadline, call.call_count, call.uncounted_attempts)
    return *key, *held, moment.now, moment.now


def is_holder_alive(moment: Moment, call: CallRow) -> SqlProgram[bool]:
    """Whether the worker that runs this call is registered and its lease has not lapsed."""
    return (yield from is_lease_valid(moment, call.incarnation))


def is_lease_valid(moment: Moment, incarnation: str | None) -> SqlProgram[bool]:
    """Whether this worker is registered and its lease has not lapsed."""
    row = yield from fetch_one("SELECT lease_until FROM worker WHERE incarnation = ?", incarnation)
    return row is not None and row[0] > moment.lease_expiry_cutoff

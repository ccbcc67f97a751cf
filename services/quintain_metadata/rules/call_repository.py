"""Reads and writes the rows of calls, attempts and stored replies.

Replies are kept for a day, compressed when they are long.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from quintain.contracts.invoke import FaultReply, Result, TokenUsage
from quintain.contracts.ledger import AttemptOutcome, Settle
from quintain.errors import Cancelled, Fault, TimedOut, WorkerLost
from quintain_metadata.ledger.base import (
    LockOrder,
    Moment,
    Phase,
    Row,
    SqlProgram,
    SqlValue,
    acquire_lock,
    execute,
    fetch_one,
    values_table,
)
from quintain_metadata.rules import session_repository
from quintain_metadata.rules.lifecycle import MAX_ATTEMPTS, CallState, LifecycleEvent, Transition, transition
from quintain_metadata.rules.session_repository import SessionRow


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
        "SELECT target FROM call WHERE session_id = ? AND request_id = ? AND target <> ''", session_id, request_id
    )
    return None if row is None else row[0]


class CallRow(NamedTuple):
    """A row of the table ``call``. Times are milliseconds since the epoch.

    ``cancelled_at`` is when its caller cancelled it; ``joined_until`` is until when another delivery is known to wait
    for its answer.
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
    " deadline, call_count, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (session_id, request_id) DO UPDATE SET body_sha256 = excluded.body_sha256,"
    " target = excluded.target, state = excluded.state, attempts = excluded.attempts,"
    " attempt_id = excluded.attempt_id, incarnation = excluded.incarnation, deadline = excluded.deadline,"
    " call_count = excluded.call_count, fault = NULL, updated_at = excluded.updated_at"
)

#: The same, only if the call is new or still in the state of the last parameter; then it returns a row.
START_CALL_IN_STATE_SQL = f"{START_CALL_SQL} WHERE call.state = ? RETURNING 1"

#: Its parameters are `attempt_parameters`.
START_ATTEMPT_SQL = (
    "INSERT INTO attempt (id, session_id, request_id, number, incarnation, state, at)"
    " VALUES (?, ?, ?, ?, ?, 'running', ?)"
)

RECORD_OUTCOME_SQL = "UPDATE attempt SET state = ?, at = ? WHERE id = ?"

#: Applies a transition to a call that is still in its state; its parameters are `transition_parameters`.
TRANSITION_SQL = (
    "UPDATE call SET state = ?, fault = ?, updated_at = ?, tokens_input = coalesce(?, tokens_input),"
    " tokens_output = coalesce(?, tokens_output), tokens_cached = coalesce(?, tokens_cached)"
    " WHERE session_id = ? AND request_id = ? AND state = ?"
)

_CHECKED_TRANSITION_SQL = f"{TRANSITION_SQL} RETURNING 1"

STORE_REPLY_SQL = (
    "INSERT INTO reply (session_id, request_id, body, expires_at) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (session_id, request_id) DO NOTHING"
)


def load_call(session_id: str, request_id: str) -> SqlProgram[CallRow | None]:
    """Return a call, or None where the ledger has no row of it."""
    row = yield from fetch_one(LOAD_CALL_SQL, session_id, request_id)
    return None if row is None else call_from_row(row)


def call_from_row(row: Row) -> CallRow:
    """Return the call of a row of `LOAD_CALL_SQL`."""
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

    One lock for all: they are released by the thousand, and a store's number of locks is limited. Operations that share
    a transaction may hold it together, because each has the lock of its call too.
    """
    yield from acquire_lock("reservations", session_id, is_shared=True)


def running_calls_order(target: str, incarnation: str | None) -> LockOrder:
    """Return the place of a statement that changes the number of a target's running calls at a worker."""
    return (Phase.ROWS, target, incarnation or "")


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
        order=running_calls_order(call.target, call.incarnation),
    )
    if updated_rows and change.used < 0:
        yield from session_repository.refund(session, -change.used)


def transition_parameters(
    moment: Moment, call: CallRow, change: Transition, fault: str | None, token_usage: TokenUsage | None
) -> tuple[SqlValue, ...]:
    """Return the parameters of `TRANSITION_SQL`, which are the arguments of `apply_transition`."""
    key = (call.session_id, call.request_id, call.state)
    if token_usage is None:
        return change.to, fault, moment.now, None, None, None, *key
    counts = (token_usage.input, token_usage.output, token_usage.cached or 0)
    return change.to, fault, moment.now, *map(session_repository.clamp_token_count, counts), *key


def start_parameters(moment: Moment, call: CallRow) -> tuple[SqlValue, ...]:
    """Return the parameters of `START_CALL_SQL` for a call as it is when it runs."""
    key = (call.session_id, call.request_id, call.body_sha256, call.target, call.state, call.attempts)
    return *key, call.attempt_id, call.incarnation, call.deadline, call.call_count, moment.now, moment.now


def attempt_parameters(moment: Moment, call: CallRow) -> tuple[SqlValue, ...]:
    """Return the parameters of `START_ATTEMPT_SQL` for the attempt that a running call has just begun."""
    return call.attempt_id, call.session_id, call.request_id, call.attempts, call.incarnation, moment.now


def mark_in_doubt(moment: Moment, call: CallRow) -> SqlProgram[Fault]:
    """Mark a running call as in doubt, whose holder is gone and which no attempt may take over; returns its fault."""
    change = transition(call.state, LifecycleEvent.LOST)
    fault: Fault = WorkerLost() if call.attempts >= MAX_ATTEMPTS else TimedOut()
    if call.is_cancelled:
        fault = Cancelled(charged=True)
    session = yield from session_repository.load_session(call.session_id)
    assert session is not None
    yield from apply_transition(moment, session, call, change, FaultReply.from_fault(fault).to_wire().decode())
    return fault


def is_holder_alive(moment: Moment, call: CallRow) -> SqlProgram[bool]:
    """Whether the worker that runs this call is registered and its lease has not lapsed."""
    return (yield from is_lease_valid(moment, call.incarnation))


def is_lease_valid(moment: Moment, incarnation: str | None) -> SqlProgram[bool]:
    """Whether this worker is registered and its lease has not lapsed."""
    row = yield from fetch_one("SELECT lease_until FROM worker WHERE incarnation = ?", incarnation)
    return row is not None and row[0] > moment.lease_expiry_cutoff


def record_attempt_outcome(moment: Moment, settlement: Settle) -> SqlProgram[None]:
    """Record the outcome of a granted attempt; one that was never sent becomes void and is not counted."""
    state = {AttemptOutcome.NEVER_SENT: "void", AttemptOutcome.REFUND: "proven"}.get(settlement.outcome, "unproven")
    yield from execute(RECORD_OUTCOME_SQL, state, moment.now, settlement.attempt_id)
    if settlement.outcome is AttemptOutcome.NEVER_SENT:
        yield from execute(
            "UPDATE call SET attempts = attempts - 1 WHERE session_id = ? AND request_id = ?",
            settlement.session_id,
            settlement.request_id,
        )


def mark_attempt_void(moment: Moment, settlement: Settle) -> SqlProgram[None]:
    """Mark an attempt void that ended before its grant, so that a later grant has no effect."""
    yield from execute(
        "INSERT INTO attempt (id, session_id, request_id, number, incarnation, state, at)"
        " VALUES (?, ?, ?, 0, '', 'void', ?) ON CONFLICT (id) DO NOTHING",
        *(settlement.attempt_id, settlement.session_id, settlement.request_id, moment.now),
    )


def read_attempt_and_lease(moment: Moment, attempt_id: str, incarnation: str) -> SqlProgram[tuple[bool, bool]]:
    """Return whether this attempt was granted before, or marked void, and whether its worker's lease is valid."""
    row = yield from fetch_one(
        "SELECT (SELECT count(*) FROM attempt WHERE id = ?), (SELECT lease_until FROM worker WHERE incarnation = ?)",
        attempt_id,
        incarnation,
    )
    assert row is not None
    return row[0] > 0, row[1] is not None and row[1] > moment.lease_expiry_cutoff


def has_other_unproven_attempts(session_id: str, request_id: str, attempt_id: str) -> SqlProgram[bool]:
    """Whether another attempt of the same call may have been billed."""
    other = yield from fetch_one(
        "SELECT 1 FROM attempt WHERE session_id = ? AND request_id = ? AND id <> ? AND state NOT IN ('proven', 'void')",
        *(session_id, request_id, attempt_id),
    )
    return other is not None


#: How long replies are stored, in milliseconds, and the largest one after compression, in bytes; larger ones are not
#: stored.
REPLY_RETENTION_MS = 24 * 60 * 60_000
MAX_STORED_REPLY_BYTES = 1024 * 1024

#: Shorter replies are stored uncompressed, because compressing takes longer than writing them. Uncompressed JSON begins
#: with a brace, and zlib output never does.
COMPRESSION_MIN_BYTES = 2048


def load_reply(call: CallRow) -> SqlProgram[Result | None]:
    """Return the stored reply of a committed call, marked as replayed; None where it is no longer stored."""
    row = yield from fetch_one(
        "SELECT body FROM reply WHERE session_id = ? AND request_id = ?", call.session_id, call.request_id
    )
    if row is None:
        return None
    body = bytes(row[0])
    wire = body if body.startswith(b"{") else zlib.decompress(body)
    return Result.from_wire(wire).model_copy(update={"replayed": True})


def store_reply(moment: Moment, call: CallRow, reply: Result) -> SqlProgram[None]:
    """Store the reply of a call for `REPLY_RETENTION_MS`, unless it is too large."""
    parameters = reply_parameters(moment, call, reply)
    if parameters is not None:
        yield from execute(STORE_REPLY_SQL, *parameters)


def reply_parameters(moment: Moment, call: CallRow, reply: Result) -> tuple[SqlValue, ...] | None:
    """Return the parameters of `STORE_REPLY_SQL`, or None for a reply that is too large."""
    body = reply.to_wire()
    if len(body) >= COMPRESSION_MIN_BYTES:
        body = zlib.compress(body, level=1)
    if len(body) > MAX_STORED_REPLY_BYTES:
        return None
    return call.session_id, call.request_id, body, moment.now + REPLY_RETENTION_MS

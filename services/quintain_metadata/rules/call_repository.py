"""Reads and writes the rows of calls, attempts and stored replies.

Replies are kept for a day, compressed when they are long.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from quintain.contracts.invoke import FaultReply, Result, TokenUsage
from quintain.contracts.ledger import AttemptOutcome, Settle
from quintain.errors import Cancelled, Fault, TimedOut, WorkerLost
from quintain_metadata.ledger.base import Moment, Row, SqlProgram, acquire_lock, execute, fetch_one, values_table
from quintain_metadata.rules import sessions
from quintain_metadata.rules.lifecycle import MAX_ATTEMPTS, CallState, LifecycleEvent, Transition, transition
from quintain_metadata.rules.sessions import SessionRow


def resolved_target(session_id: str, request_id: str) -> SqlProgram[str | None]:
    """The target a call was first resolved to: it stays."""
    row = yield from fetch_one(
        "SELECT target FROM call WHERE session_id = ? AND request_id = ? AND target <> ''", session_id, request_id
    )
    return None if row is None else row[0]


@dataclass(frozen=True, slots=True)
class CallRow:
    """A row of ``call``. ``cancelled_at`` is when its caller took it back; ``joined_until`` is how long another
    delivery of it is known to wait for its answer."""

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
        """Whether its caller has taken it back."""
        return self.cancelled_at is not None


_CALL_FIELDS = [field.name for field in dataclasses.fields(CallRow)]
_CALL_COLUMNS = ", ".join(_CALL_FIELDS)
_STATE_INDEX = _CALL_FIELDS.index("state")


def load_call(session_id: str, request_id: str) -> SqlProgram[CallRow | None]:
    """A call as it stands, or None where nobody has heard of it."""
    row = yield from fetch_one(
        f"SELECT {_CALL_COLUMNS} FROM call WHERE session_id = ? AND request_id = ?", session_id, request_id
    )
    return None if row is None else _call_from_row(row)


def _call_from_row(row: Row) -> CallRow:
    columns = list(row)
    columns[_STATE_INDEX] = CallState(columns[_STATE_INDEX])
    return CallRow(*columns)


def load_calls(session_id: str, request_ids: Sequence[str]) -> SqlProgram[dict[str, CallRow]]:
    """Those of a session's calls that somebody has heard of, by their request ids."""
    rows = yield from execute(
        f"SELECT {_CALL_COLUMNS} FROM {values_table(request_ids)} AS wanted JOIN call ON call.request_id = "
        "wanted.column1"
        " WHERE call.session_id = ?",
        *(*request_ids, session_id),
    )
    return {call.request_id: call for call in map(_call_from_row, rows)}


def lock_call(session_id: str, request_id: str) -> SqlProgram[CallRow | None]:
    """A call that nobody else moves until this operation ends: what is decided about it is true when it is written."""
    yield from acquire_lock("call", session_id, request_id)
    call = yield from load_call(session_id, request_id)
    if call is None or call.state is not CallState.RESERVED:
        return call
    yield from lock_reservations(session_id)
    return (yield from load_call(session_id, request_id))


def lock_reservations(session_id: str) -> SqlProgram[None]:
    """Nobody else begins or ends a reservation of this session until this operation ends. They are given back by the
    thousand, and a lock for each would be more than a store has."""
    yield from acquire_lock("reservations", session_id)


def apply_transition(
    moment: Moment,
    session: SessionRow,
    call: CallRow,
    change: Transition,
    fault: str | None,
    token_usage: TokenUsage | None = None,
) -> SqlProgram[None]:
    """Apply a transition, on the condition that the call is still in the state it was decided for. ``token_usage`` is
    what the call's answer took, where its provider said so."""
    tokens = (None,) * 3 if token_usage is None else (token_usage.input, token_usage.output, token_usage.cached or 0)
    updated_rows = yield from execute(
        "UPDATE call SET state = ?, fault = ?, updated_at = ?, tokens_input = coalesce(?, tokens_input),"
        " tokens_output = coalesce(?, tokens_output), tokens_cached = coalesce(?, tokens_cached)"
        " WHERE session_id = ? AND request_id = ? AND state = ? RETURNING 1",
        *(
            change.to,
            fault,
            moment.now,
            *(None if count is None else sessions.clamp_token_count(count) for count in tokens),
        ),
        *(call.session_id, call.request_id, call.state),
    )
    if updated_rows and change.used < 0:
        yield from sessions.refund(session, -change.used)


def mark_in_doubt(moment: Moment, call: CallRow) -> SqlProgram[Fault]:
    """A running call whose holder is gone and that nobody may follow: in doubt. Returns the fault it is kept with."""
    change = transition(call.state, LifecycleEvent.LOST)
    fault: Fault = WorkerLost() if call.attempts >= MAX_ATTEMPTS else TimedOut()
    if call.is_cancelled:
        fault = Cancelled(charged=True)
    session = yield from sessions.load_session(call.session_id)
    assert session is not None
    yield from apply_transition(moment, session, call, change, FaultReply.from_fault(fault).to_wire().decode())
    return fault


def is_holder_alive(moment: Moment, call: CallRow) -> SqlProgram[bool]:
    """Whether the lease of the worker that holds this call runs."""
    return (yield from is_lease_valid(moment, call.incarnation))


def is_lease_valid(moment: Moment, incarnation: str | None) -> SqlProgram[bool]:
    """Whether a worker is registered, and its lease runs."""
    row = yield from fetch_one("SELECT lease_until FROM worker WHERE incarnation = ?", incarnation)
    return row is not None and row[0] > moment.lease_expiry_cutoff


def record_attempt_outcome(moment: Moment, settlement: Settle) -> SqlProgram[None]:
    """What became of an attempt that was granted; one that was never sent is none, and counts as none."""
    state = {AttemptOutcome.NEVER_SENT: "void", AttemptOutcome.REFUND: "proven"}.get(settlement.outcome, "unproven")
    yield from execute("UPDATE attempt SET state = ?, at = ? WHERE id = ?", state, moment.now, settlement.attempt_id)
    if settlement.outcome is AttemptOutcome.NEVER_SENT:
        yield from execute(
            "UPDATE call SET attempts = attempts - 1 WHERE session_id = ? AND request_id = ?",
            settlement.session_id,
            settlement.request_id,
        )


def mark_attempt_void(moment: Moment, settlement: Settle) -> SqlProgram[None]:
    """An attempt that was given up before its grant: a grant that comes late is void."""
    yield from execute(
        "INSERT INTO attempt (id, session_id, request_id, number, incarnation, state, at)"
        " VALUES (?, ?, ?, 0, '', 'void', ?) ON CONFLICT (id) DO NOTHING",
        *(settlement.attempt_id, settlement.session_id, settlement.request_id, moment.now),
    )


def attempt_exists(attempt_id: str) -> SqlProgram[bool]:
    """Whether this attempt was granted before, or given up: it is never granted anew."""
    return (yield from fetch_one("SELECT 1 FROM attempt WHERE id = ?", attempt_id)) is not None


def has_other_unproven_attempts(session_id: str, request_id: str, attempt_id: str) -> SqlProgram[bool]:
    """Whether another attempt of the same call may have been billed."""
    other = yield from fetch_one(
        "SELECT 1 FROM attempt WHERE session_id = ? AND request_id = ? AND id <> ? AND state NOT IN ('proven', 'void')",
        *(session_id, request_id, attempt_id),
    )
    return other is not None


#: Replies are kept this long, and not at all when larger than a mebibyte once compressed.
REPLY_RETENTION_MS = 24 * 60 * 60_000
MAX_STORED_REPLY_BYTES = 1024 * 1024

#: What is shorter is kept as it is: to begin compressing takes longer than to write it. JSON begins with a brace, and
#: nothing that zlib makes does.
COMPRESSION_MIN_BYTES = 2048


def load_reply(call: CallRow) -> SqlProgram[Result | None]:
    """The stored reply of a committed call, marked as replayed; None where it is no longer kept."""
    row = yield from fetch_one(
        "SELECT body FROM reply WHERE session_id = ? AND request_id = ?", call.session_id, call.request_id
    )
    if row is None:
        return None
    body = bytes(row[0])
    wire = body if body.startswith(b"{") else zlib.decompress(body)
    return Result.from_wire(wire).model_copy(update={"replayed": True})


def store_reply(moment: Moment, call: CallRow, reply: Result) -> SqlProgram[None]:
    """Keep the reply of a call, unless it is too large."""
    body = reply.to_wire()
    if len(body) >= COMPRESSION_MIN_BYTES:
        body = zlib.compress(body, level=1)
    if len(body) > MAX_STORED_REPLY_BYTES:
        return
    yield from execute(
        "INSERT INTO reply (session_id, request_id, body, expires_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (session_id, request_id) DO NOTHING",
        *(call.session_id, call.request_id, body, moment.now + REPLY_RETENTION_MS),
    )

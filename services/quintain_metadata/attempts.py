"""Reads and writes the rows of attempts, and decides what the loss of one with its worker does to its call.

The attempt that holds a call, or held it last, needs no row: the call names it, and without a row it may have been
billed. A row has an attempt that another one followed, one that was proven unbilled, and one that must never run.
"""

from __future__ import annotations

from typing import Final

from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import AttemptOutcome, Settle
from quintain.errors import Cancelled, Fault, TimedOut, WorkerLost
from quintain_metadata.call_rows import CallRow, apply_transition, filled_up, running_calls_order
from quintain_metadata.lifecycle import CallState, LifecycleEvent, transition
from quintain_metadata.session_rows import load_session
from quintain_metadata.store import Moment, Row, SqlProgram, Statement, execute, fetch_one, values_table

#: How many attempts a call has at most that count: one that dies with its worker is followed by another.
MAX_ATTEMPTS: Final = 3

#: How many attempts of a call do not count at most because they died with a worker that ran other calls too: any of
#: these may have ended it.
MAX_UNCOUNTED_ATTEMPTS: Final = 4

#: A call that lost so many attempts with their workers runs only where nothing runs beside it.
LOSSES_BEFORE_ALONE: Final = 2

#: How many calls a worker that is gone ran: what was recorded with the first of them, or their number now.
_LOST_CALLS = (
    "coalesce(lost_calls, (SELECT CAST(sum(running) AS bigint) FROM running_calls"
    " WHERE running_calls.incarnation = worker.incarnation), 0)"
)

_INSERT_ATTEMPT_SQL = (
    "INSERT INTO attempt (id, session_id, request_id, number, incarnation, state, at) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id)"
)


#: Parameters: the time and the attempt.
RECORD_UNPROVEN_SQL = "UPDATE attempt SET state = 'unproven', at = ? WHERE id = ?"


#: Whether the attempt that holds a call, or held it last, has no row: it may have been billed then.
HOLDER_WITHOUT_ROW = (
    "(call.attempt_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM attempt AS holder WHERE holder.id = call.attempt_id"
    " AND holder.session_id = call.session_id AND holder.request_id = call.request_id))"
)


def attempt_state(call: CallRow | None, attempt_id: str) -> SqlProgram[str | None]:
    """Return the state of an attempt; None where it was neither granted nor marked void."""
    row = yield from fetch_one("SELECT state FROM attempt WHERE id = ?", attempt_id)
    if row is not None:
        return str(row[0])
    return "running" if call is not None and call.attempt_id == attempt_id else None


def record_replaced_attempt(moment: Moment, call: CallRow, *, alone: bool) -> SqlProgram[bool]:
    """Give the attempt that held this call a row, before another attempt holds it; one that runs is lost.

    Returns False, and changes nothing, where the next attempt must be ``alone`` and is not.
    """
    if call.state is CallState.RUNNING:
        if not alone and (yield from _must_be_alone(call)):
            return False
        yield from record_loss(call)
    if call.attempt_id is not None:
        yield from _insert_attempt(moment, call, call.attempt_id, "running", "DO NOTHING")
    return True


def record_attempt_outcome(moment: Moment, call: CallRow, settlement: Settle) -> SqlProgram[None]:
    """Record the outcome of a granted attempt; one that was never sent becomes void and is not counted.

    The attempt that holds its call gets a row only where it was proven that nothing was billed.
    """
    state = {AttemptOutcome.NEVER_SENT: "void", AttemptOutcome.REFUND: "proven"}.get(settlement.outcome)
    if state is None:
        yield from execute(RECORD_UNPROVEN_SQL, moment.now, settlement.attempt_id)
    else:
        update = "DO UPDATE SET state = excluded.state, at = excluded.at"
        yield from _insert_attempt(moment, call, settlement.attempt_id, state, update)
    if settlement.outcome is AttemptOutcome.NEVER_SENT:
        yield from execute(
            "UPDATE call SET attempts = attempts - 1 WHERE session_id = ? AND request_id = ?",
            settlement.session_id,
            settlement.request_id,
        )


def _insert_attempt(moment: Moment, call: CallRow, attempt_id: str, state: str, if_present: str) -> SqlProgram[None]:
    key = (attempt_id, call.session_id, call.request_id)
    yield from execute(
        f"{_INSERT_ATTEMPT_SQL} {if_present}", *key, call.attempts, call.incarnation or "", state, moment.now
    )


def mark_attempt_void(moment: Moment, settlement: Settle) -> SqlProgram[None]:
    """Mark an attempt void that ended before its grant, so that a later grant has no effect."""
    key = (settlement.attempt_id, settlement.session_id, settlement.request_id)
    yield from execute(f"{_INSERT_ATTEMPT_SQL} DO NOTHING", *key, 0, "", "void", moment.now)


def read_attempt_and_lease(moment: Moment, attempt_id: str, incarnation: str) -> SqlProgram[tuple[bool, bool]]:
    """Return whether this attempt was granted before, or marked void, and whether its worker's lease is valid.

    An attempt that holds its call need not have a row: only one that does not hold it is asked for.
    """
    row = yield from fetch_one(
        "SELECT (SELECT count(*) FROM attempt WHERE id = ?), (SELECT lease_until FROM worker WHERE incarnation = ?)",
        attempt_id,
        incarnation,
    )
    assert row is not None
    return row[0] > 0, row[1] is not None and row[1] > moment.lease_expiry_cutoff


def count_other_unproven_attempts(call: CallRow, attempt_id: str) -> SqlProgram[int]:
    """Return how many attempts may have been billed beside this one, which holds the call: each of them has a row."""
    if call.attempts <= 1:
        return 0
    row = yield from fetch_one(
        "SELECT count(*) FROM attempt WHERE session_id = ? AND request_id = ? AND id <> ?"
        " AND state NOT IN ('proven', 'void')",
        *(call.session_id, call.request_id, attempt_id),
    )
    assert row is not None
    return int(row[0])


def _must_be_alone(call: CallRow) -> SqlProgram[bool]:
    """Whether a running call whose holder is gone may be taken over only where nothing runs beside it.

    Of a running call each attempt that is not proven unbilled was lost with its worker, the holder among them.
    """
    assert call.attempt_id is not None, "a running call is held by an attempt"
    others = yield from count_other_unproven_attempts(call, call.attempt_id)
    return others + 1 >= LOSSES_BEFORE_ALONE


def rows_of_attempts(attempt_ids: list[str]) -> SqlProgram[list[Row]]:
    """Return a row with the id of each of these attempts that has a row."""
    filled = filled_up(attempt_ids)
    sql = f"SELECT id FROM {values_table(filled)} AS wanted JOIN attempt ON attempt.id = wanted.column1"
    return (yield Statement(sql, tuple(filled)))


def mark_in_doubt(moment: Moment, call: CallRow, *, is_holder_alive: bool = False) -> SqlProgram[Fault]:
    """Mark a running call as in doubt, whose holder or whose settle is lost, and which no attempt may take over.

    Returns its fault.
    """
    change = transition(call.state, LifecycleEvent.LOST)
    is_last = False
    if not is_holder_alive:
        is_last = (yield from with_loss(call)).counted_attempts >= MAX_ATTEMPTS
        yield from record_loss(call)
    fault: Fault = WorkerLost() if is_last else TimedOut()
    if call.is_cancelled:
        fault = Cancelled(charged=True)
    session = yield from load_session(call.session_id)
    assert session is not None
    yield from apply_transition(moment, session, call, change, FaultReply.from_fault(fault).to_wire().decode())
    return fault


def with_loss(call: CallRow) -> SqlProgram[CallRow]:
    """Return a running call whose holder is gone, with the loss of its attempt counted or not."""
    row = yield from fetch_one(f"SELECT {_LOST_CALLS} FROM worker WHERE incarnation = ?", call.incarnation)
    if row is None or row[0] <= 1 or call.uncounted_attempts >= MAX_UNCOUNTED_ATTEMPTS:
        return call
    return call._replace(uncounted_attempts=call.uncounted_attempts + 1)


def record_loss(call: CallRow) -> SqlProgram[None]:
    """Record how many calls ran at the holder of this one, which is gone, before it is no longer counted there."""
    yield from execute(
        f"UPDATE worker SET lost_calls = {_LOST_CALLS} WHERE incarnation = ?",
        call.incarnation,
        order=running_calls_order("", call.incarnation),
    )

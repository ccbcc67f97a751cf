"""Reads and writes the rows of attempts, and decides what the loss of one with its worker does to its call.

The attempt that holds a call, or held it last, needs no row: the call names it, and without a row it may have been
billed. A row has an attempt that another one followed, one that was proven unbilled, and one that must never run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

from quintain.contracts.invoke import FaultReply
from quintain.errors import Cancelled, Fault, TimedOut, WorkerLost
from quintain_metadata.call_rows import CallKey, CallRow, apply_transition
from quintain_metadata.lifecycle import LifecycleEvent, transition
from quintain_metadata.session_rows import load_session
from quintain_metadata.store import Moment, Row, SqlProgram, SqlValue, execute, filled_up, values_table

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

#: Gives an attempt a row, unless it has one: id, session id, request id, number, incarnation, state, time.
INSERT_ATTEMPT_SQL = (
    "INSERT INTO attempt (id, session_id, request_id, number, incarnation, state, at) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id) DO NOTHING"
)

#: The same, and sets the state of one that has a row.
UPSERT_ATTEMPT_SQL = INSERT_ATTEMPT_SQL.replace("NOTHING", "UPDATE SET state = excluded.state, at = excluded.at")

#: Parameters: the time and the attempt.
RECORD_UNPROVEN_SQL = "UPDATE attempt SET state = 'unproven', at = ? WHERE id = ?"

#: Records how many calls ran at a worker that is gone, if that was not recorded before.
RECORD_LOSS_SQL = "UPDATE worker SET lost_calls = coalesce(lost_calls, ?) WHERE incarnation = ?"

#: Whether the attempt that holds a call, or held it last, has no row: it may have been billed then.
HOLDER_WITHOUT_ROW = (
    "(call.attempt_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM attempt AS holder WHERE holder.id = call.attempt_id"
    " AND holder.session_id = call.session_id AND holder.request_id = call.request_id))"
)


class AttemptRow(NamedTuple):
    """An attempt of a call; its state is running (and lost), unproven, proven (unbilled), or void (never to run)."""

    id: str
    session_id: str
    request_id: str
    state: str


class WorkerRow(NamedTuple):
    """A worker: the end of its lease, and how many calls it ran when it was lost; 0 while its lease is valid."""

    incarnation: str
    lease_until: int
    lost_calls: int


def read_attempts(attempt_ids: Sequence[str], calls: Sequence[CallKey]) -> SqlProgram[dict[str, AttemptRow]]:
    """Return, by id, the rows of these attempts, and of all attempts at these calls."""
    rows = list[Row]()
    columns = "attempt.id, attempt.session_id, attempt.request_id, attempt.state"
    if attempt_ids:
        filled = filled_up(attempt_ids)
        wanted = f"{values_table(filled)} AS wanted JOIN attempt ON attempt.id = wanted.column1"
        rows += yield from execute(f"SELECT {columns} FROM {wanted}", *filled)
    if calls:
        keys = filled_up(calls)
        rows += yield from execute(
            f"SELECT {columns} FROM (VALUES {', '.join(['(?, ?)'] * len(keys))}) AS wanted JOIN attempt"
            " ON attempt.session_id = wanted.column1 AND attempt.request_id = wanted.column2",
            *itertools.chain.from_iterable(keys),
        )
    return {row[0]: AttemptRow(*row) for row in rows}


def read_workers(moment: Moment, incarnations: Sequence[str]) -> SqlProgram[dict[str, WorkerRow]]:
    """Return those of these workers that are registered, by incarnation."""
    filled: list[SqlValue] = filled_up(list(incarnations))
    rows = yield from execute(
        f"SELECT incarnation, lease_until, CASE WHEN lease_until > ? THEN 0 ELSE {_LOST_CALLS} END"
        f" FROM {values_table(filled)} AS wanted JOIN worker ON worker.incarnation = wanted.column1",
        *(moment.lease_expiry_cutoff, *filled),
    )
    return {row[0]: WorkerRow(*row) for row in rows}


def mark_in_doubt(moment: Moment, call: CallRow, *, is_holder_alive: bool = False) -> SqlProgram[Fault]:
    """Mark a running call as in doubt, whose holder or whose settle is lost, and which no attempt may take over.

    Returns its fault.
    """
    fault: Fault = Cancelled(charged=True) if call.is_cancelled else TimedOut()
    if not is_holder_alive:
        workers = yield from read_workers(moment, [call.incarnation or ""])
        lost_calls = sum(worker.lost_calls for worker in workers.values())
        fault = fault_of_loss(call, lost_calls)
        yield from execute(RECORD_LOSS_SQL, lost_calls, call.incarnation)
    session = yield from load_session(call.session_id)
    assert session is not None
    change = transition(call.state, LifecycleEvent.LOST)
    yield from apply_transition(moment, session, call, change, FaultReply.from_fault(fault).to_wire().decode())
    return fault


def fault_of_loss(call: CallRow, lost_calls: int) -> Fault:
    """Return the fault of a call that no attempt may take over, whose holder was lost with so many calls."""
    if call.is_cancelled:
        return Cancelled(charged=True)
    return WorkerLost() if with_loss(call, lost_calls).counted_attempts >= MAX_ATTEMPTS else TimedOut()


def with_loss(call: CallRow, lost_calls: int) -> CallRow:
    """Return a running call whose holder is gone, with the loss of its attempt counted or not.

    ``lost_calls``: how many calls the holder ran.
    """
    if lost_calls <= 1 or call.uncounted_attempts >= MAX_UNCOUNTED_ATTEMPTS:
        return call
    return call._replace(uncounted_attempts=call.uncounted_attempts + 1)

"""Reads which of the admits that wait in a metadata service can be decided now, and renews its joins.

An admit that is not found here would be decided as before, so that its service need not ask about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from quintain.contracts.session import SessionState
from quintain_metadata.ledger.base import Moment, SqlProgram, SqlValue, acquire_lock, execute, values_table
from quintain_metadata.rules import targets
from quintain_metadata.rules.calls import DUPLICATE_WAIT_MS

#: The key of a call: its session's id and its request id.
CallKey = tuple[str, str]

#: How many calls one statement names at most: a statement may have 32,766 parameters.
MAX_CALLS_PER_STATEMENT = 10_000

#: Lists of calls are filled up to a multiple of this, so that few statements differ in length only.
CALLS_ROUNDED_TO = 64

#: Lists of attempts, which have at most a few dozen, are filled up to a multiple of this for the same reason: a
#: connection of PostgreSQL keeps each statement of another length, with what it knows of its parameters.
ATTEMPTS_ROUNDED_TO = 16


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """What the admits of one service wait for.

    ``joined`` are the calls that their admits join, ``new`` those that no attempt runs; ``sessions`` the sessions of
    both, and ``incarnations`` the workers whose leases are waited for.
    """

    joined: Sequence[CallKey] = ()
    new: Sequence[CallKey] = ()
    sessions: Sequence[str] = ()
    incarnations: Sequence[str] = ()


@dataclass(slots=True)
class Ready:
    """What need not be waited for any longer. ``now`` is the store's clock, in milliseconds since the epoch.

    ``closed_sessions`` may call nothing any more, ``paused_sessions`` no new call.
    """

    now: int
    calls: set[CallKey] = field(default_factory=set)
    closed_sessions: set[str] = field(default_factory=set)
    paused_sessions: set[str] = field(default_factory=set)
    incarnations: set[str] = field(default_factory=set)


def read_ready(moment: Moment, waited_for: WaitedFor) -> SqlProgram[Ready]:
    """Return what can be decided now, and record that the joined calls are waited for."""
    ready = Ready(moment.now)
    for page in _pages(waited_for.joined):
        yield from _renew_joins(moment, page)
        ready.calls |= yield from _ended_calls(moment, page)
    for page in _pages(waited_for.new):
        ready.calls |= yield from _answered_calls(page)
    yield from _read_sessions(moment, waited_for.sessions, ready)
    if waited_for.incarnations:
        rows = yield from execute(
            f"SELECT incarnation FROM {values_table(waited_for.incarnations)} AS wanted"
            " JOIN worker ON worker.incarnation = wanted.column1 WHERE lease_until > ?",
            *waited_for.incarnations,
            moment.lease_expiry_cutoff,
        )
        ready.incarnations = {row[0] for row in rows}
    return ready


def read_capacity(
    moment: Moment, target: str, attempts: Mapping[str, CallKey]
) -> SqlProgram[tuple[int | None, set[str]]]:
    """Return the target's free capacity (None: no limit), and which attempts are ended: granted before, or void.

    ``attempts`` are those that wait, in their order, with their calls; as many as have room are looked up.
    """
    capacity = yield from targets.free_capacity(moment, target)
    first_ids = list(attempts)[:capacity]
    if not first_ids:
        return capacity, set()
    first_ids += [first_ids[0]] * (-len(first_ids) % ATTEMPTS_ROUNDED_TO)
    table, parameters = _table([attempts[attempt_id] for attempt_id in first_ids])
    rows = yield from execute(
        f"SELECT id FROM {values_table(first_ids)} AS wanted JOIN attempt ON attempt.id = wanted.column1"
        f" UNION SELECT call.attempt_id FROM {table} AS wanted JOIN call ON {_IS_WANTED}",
        *(*first_ids, *parameters),
    )
    return capacity, {row[0] for row in rows}.intersection(first_ids)


def _pages(calls: Sequence[CallKey]) -> Iterator[list[CallKey]]:
    for start in range(0, len(calls), MAX_CALLS_PER_STATEMENT):
        page = list(calls[start : start + MAX_CALLS_PER_STATEMENT])
        yield page + page[:1] * (-len(page) % CALLS_ROUNDED_TO)


def _table(page: Sequence[CallKey]) -> tuple[str, list[SqlValue]]:
    """Return SQL for these calls as a table with ``column1`` and ``column2``, and its parameters."""
    return f"(VALUES {', '.join(['(?, ?)'] * len(page))})", [part for key in page for part in key]


_IS_WANTED = "call.session_id = wanted.column1 AND call.request_id = wanted.column2"


def _renew_joins(moment: Moment, page: Sequence[CallKey]) -> SqlProgram[None]:
    table, parameters = _table(page)
    # Services that renew joins of the same calls would lock their rows in different orders.
    yield from acquire_lock("joins")
    yield from execute(
        f"UPDATE call SET joined_until = ? FROM {table} AS wanted WHERE {_IS_WANTED} AND call.state = 'running'"
        " AND call.cancelled_at IS NULL AND call.joined_until < ?",
        *(moment.now + DUPLICATE_WAIT_MS, *parameters, moment.now + DUPLICATE_WAIT_MS // 2),
    )


def _ended_calls(moment: Moment, page: Sequence[CallKey]) -> SqlProgram[set[CallKey]]:
    """Return those of these calls that no worker with a valid lease runs."""
    table, parameters = _table(page)
    rows = yield from execute(
        f"SELECT call.session_id, call.request_id FROM {table} AS wanted JOIN call ON {_IS_WANTED}"
        " LEFT JOIN worker ON worker.incarnation = call.incarnation"
        " WHERE call.state <> 'running' OR worker.lease_until IS NULL OR worker.lease_until <= ?",
        *(*parameters, moment.lease_expiry_cutoff),
    )
    return {(row[0], row[1]) for row in rows}


def _answered_calls(page: Sequence[CallKey]) -> SqlProgram[set[CallKey]]:
    """Return those of these calls that were cancelled, or answered through another attempt."""
    table, parameters = _table(page)
    rows = yield from execute(
        f"SELECT call.session_id, call.request_id FROM {table} AS wanted JOIN call ON {_IS_WANTED}"
        " WHERE call.state IN ('committed', 'inDoubt') OR (call.state <> 'running' AND call.cancelled_at IS NOT NULL)",
        *parameters,
    )
    return {(row[0], row[1]) for row in rows}


def _read_sessions(moment: Moment, session_ids: Sequence[str], ready: Ready) -> SqlProgram[None]:
    """Find the sessions that are not open, or have an ancestor that is not."""
    if not session_ids:
        return
    rows = yield from execute(
        f"WITH RECURSIVE lineage (id, member) AS (SELECT column1, column1 FROM {values_table(session_ids)} AS wanted"
        " UNION ALL SELECT lineage.id, session.parent_id FROM lineage JOIN session ON session.id = lineage.member"
        " WHERE session.parent_id IS NOT NULL)"
        " SELECT lineage.id, session.state FROM lineage JOIN session ON session.id = lineage.member"
        " WHERE session.state <> 'open' OR session.expires_at <= ?",
        *session_ids,
        moment.now,
    )
    for session_id, state in rows:
        (ready.paused_sessions if state == SessionState.PAUSED else ready.closed_sessions).add(session_id)

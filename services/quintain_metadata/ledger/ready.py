"""Reads which of the admits that wait the ledger would decide otherwise by now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quintain.contracts.session import SessionState
from quintain_metadata.ledger.call_rows import CallKey
from quintain_metadata.ledger.decisions import DUPLICATE_WAIT_MS
from quintain_metadata.ledger.lifecycle import CallState
from quintain_metadata.store.base import Lookup, Moment, SqlProgram


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """What the waiting admits wait for.

    ``joined`` are the calls that their admits join, for other callers, ``redelivered`` those whose own messages were
    delivered again, and ``new`` those that no attempt runs; ``sessions`` are the sessions of all.
    """

    joined: Sequence[CallKey] = ()
    redelivered: Sequence[CallKey] = ()
    new: Sequence[CallKey] = ()
    sessions: Sequence[str] = ()


@dataclass(slots=True)
class Ready:
    """What need not be waited for any longer: ``ended`` calls, those that ran, and ``lost`` ones, of lost workers.

    ``answered`` calls ran elsewhere, or were cancelled. ``closed_sessions`` may call nothing any more,
    ``paused_sessions`` no new call.
    """

    ended: set[CallKey] = field(default_factory=set)
    lost: set[CallKey] = field(default_factory=set)
    answered: set[CallKey] = field(default_factory=set)
    closed_sessions: set[str] = field(default_factory=set)
    paused_sessions: set[str] = field(default_factory=set)


def read_ready(moment: Moment, waited_for: WaitedFor) -> SqlProgram[Ready]:
    """Return what can be decided now, and record that the joined calls are waited for."""
    ready = Ready()
    if waited_for.joined:
        yield Lookup(
            f"UPDATE call SET joined_until = ? FROM wanted WHERE {_IS_WANTED} AND call.state = 'running'"
            " AND call.cancelled_at IS NULL AND call.joined_until < ?",
            waited_for.joined,
            (moment.now + DUPLICATE_WAIT_MS, moment.now + DUPLICATE_WAIT_MS // 2),
        )
    rows = yield Lookup(
        f"SELECT call.session_id, call.request_id, call.state FROM wanted JOIN call ON {_IS_WANTED}"
        " LEFT JOIN worker ON worker.incarnation = call.incarnation"
        " WHERE call.state <> 'running' OR worker.lease_until IS NULL OR worker.lease_until <= ?",
        [*waited_for.joined, *waited_for.redelivered],
        (moment.lease_cutoff,),
    )
    for session_id, request_id, state in rows:
        (ready.lost if state == CallState.RUNNING else ready.ended).add((session_id, request_id))
    rows = yield Lookup(
        f"SELECT call.session_id, call.request_id FROM wanted JOIN call ON {_IS_WANTED}"
        " WHERE call.state IN ('committed', 'inDoubt') OR (call.state <> 'running' AND call.cancelled_at IS NOT NULL)",
        waited_for.new,
    )
    ready.answered = {(row[0], row[1]) for row in rows}
    for session_id, state in (yield Lookup(_SESSIONS_SQL, [(each,) for each in waited_for.sessions], (moment.now,))):
        (ready.paused_sessions if state == SessionState.PAUSED else ready.closed_sessions).add(session_id)
    return ready


_IS_WANTED = "call.session_id = wanted.key1 AND call.request_id = wanted.key2"

#: The sessions that are not open, or have an ancestor that is not.
_SESSIONS_SQL = (
    ", lineage (id, member) AS (SELECT key1, key1 FROM wanted"
    " UNION SELECT lineage.id, session.parent_id FROM lineage JOIN session ON session.id = lineage.member"
    " WHERE session.parent_id IS NOT NULL)"
    " SELECT lineage.id, session.state FROM lineage JOIN session ON session.id = lineage.member"
    " WHERE session.state <> 'open' OR session.expires_at <= ?"
)

"""Reads what calls that wait for money are decided by: what lost attempts reserve, and what is free."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from quintain.errors import Fault
from quintain_metadata.ledger.call_rows import CallKey
from quintain_metadata.ledger.session_rows import Counters, Funds, SessionRow, cost_limit_reached, load_sessions
from quintain_metadata.ledger.usage import IS_NOT_COMMITTED
from quintain_metadata.store.base import Lookup, Moment, SqlProgram

#: What is reserved for the calls of sessions and their descendants whose workers are gone.
_LOST_COSTS_SQL = (
    ", member (root, id) AS (SELECT key1, key1 FROM wanted UNION SELECT member.root, session.id FROM member"
    " JOIN session ON session.parent_id = member.id)"
    " SELECT member.root, CAST(sum(call.cost) AS bigint) FROM member JOIN call ON call.session_id = member.id"
    f" LEFT JOIN worker USING (incarnation) WHERE call.state = 'running' AND {IS_NOT_COMMITTED}"
    " AND (worker.lease_until IS NULL OR worker.lease_until <= ?) GROUP BY member.root"
)


def read_lost_costs(moment: Moment, sessions: Iterable[SessionRow]) -> SqlProgram[dict[str, int]]:
    """Return what is reserved for lost attempts, in picodollars, of each limit in money that these sessions have."""
    payers = {payer.id for session in sessions for payer in (session, *session.ancestors) if payer.max_cost is not None}
    rows = yield Lookup(_LOST_COSTS_SQL, [(each,) for each in sorted(payers)], (moment.lease_cutoff,))
    return {row[0]: row[1] for row in rows}


def read_unpayable(moment: Moment, incarnations: Iterable[str], limit: int) -> SqlProgram[dict[CallKey, Fault]]:
    """Return those of so many calls of these lost workers that nobody can take over for want of money, and why.

    So much is left for none of them although nothing were in flight: new calls would wait for what they reserve.
    """
    found = yield Lookup(
        "SELECT session_id, request_id, cost FROM wanted JOIN call ON call.incarnation = wanted.key1"
        " WHERE call.state = 'running' AND call.cost > 0 LIMIT ?",
        [(each,) for each in incarnations],
        (limit,),
    )
    sessions = yield from load_sessions({row[0] for row in found})
    lost = yield from read_lost_costs(moment, sessions.values())
    counters, unpayable = Counters(sessions), dict[CallKey, Fault]()
    for session_id, request_id, cost in found:
        left, of_limit = counters.cost_left(sessions[session_id], lost)
        if cost > left:
            unpayable[session_id, request_id] = cost_limit_reached(of_limit, left, cost)
    return unpayable


def read_funds(session_ids: Collection[str]) -> SqlProgram[list[Funds]]:
    """Return what the limits in money of these sessions, and of their ancestors, have."""
    sessions = yield from load_sessions(session_ids)
    counters = Counters(sessions)
    return [funds for session in sessions.values() for funds in counters.funds(session)]

"""Queries the ledger for the values of the Prometheus gauges.

The queries are cheap enough to run every few seconds on a large ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quintain.contracts.fleet import RegisteredTarget
from quintain.contracts.session import SessionState
from quintain_metadata.ledger.base import Moment, SqlProgram, execute, fetch_one
from quintain_metadata.rules import targets
from quintain_metadata.rules.lifecycle import CallState
from quintain_metadata.rules.sessions import IS_NOT_COMMITTED

#: A session that has charged this percentage of its limit counts as nearly spent.
NEAR_LIMIT_PERCENT = 90


@dataclass(frozen=True, slots=True)
class LedgerGauges:
    """Sessions by state; calls in doubt and nearly spent sessions among the open ones; the registered targets."""

    sessions: Mapping[str, int] = field(default_factory=dict)
    in_doubt: int = 0
    near_limit: int = 0
    targets: tuple[RegisteredTarget, ...] = ()


def read_gauges(moment: Moment) -> SqlProgram[LedgerGauges]:
    """Read the gauges. Calls are counted by the index of open sessions, never by a scan of all calls."""
    state_rows = yield from execute("SELECT state, count(*) FROM session GROUP BY state")
    in_doubt_row = yield from fetch_one(
        "SELECT count(*) FROM session JOIN call ON call.session_id = session.id AND call.state = ?"
        f" WHERE session.state = ? AND {IS_NOT_COMMITTED}",
        *(CallState.IN_DOUBT, SessionState.OPEN),
    )
    near_limit_row = yield from fetch_one(
        "SELECT count(*) FROM session WHERE state = ? AND max_calls > 0 AND used * 100 >= max_calls * ?",
        *(SessionState.OPEN, NEAR_LIMIT_PERCENT),
    )
    registered = yield from targets.list_targets(moment.now)
    assert in_doubt_row is not None
    assert near_limit_row is not None
    return LedgerGauges(
        {row[0]: row[1] for row in state_rows}, in_doubt_row[0], near_limit_row[0], tuple(registered.targets)
    )

"""Counts what sessions and their descendants used: calls by state, by target, and money."""

from __future__ import annotations

from dataclasses import dataclass

from quintain.contracts.money import to_dollars
from quintain.contracts.session import CostUsage, TargetUsage
from quintain.errors import Rejected, ReplyTooLarge
from quintain_metadata.ledger.call_rows import HOLDER_WITHOUT_ROW
from quintain_metadata.ledger.lifecycle import CallState
from quintain_metadata.ledger.session_rows import SessionRow, stored_usage
from quintain_metadata.store.base import SqlProgram, execute

#: A part of the condition of the index of a session's calls by state, which has no entries of answered calls.
IS_NOT_COMMITTED = "call.state <> 'committed'"

#: A committed call whose fault says that the provider has answered, with what is of no use.
_IS_ANSWERED = (
    "call.state = 'committed' AND ("
    + " OR ".join(
        f"""call.fault LIKE '%"code":"{fault.code}","status":{fault.status},%'""" for fault in (Rejected, ReplyTooLarge)
    )
    + ")"
)

#: Begins a query over a session (its one parameter) and all its descendants.
FAMILY_CTE = (
    "WITH RECURSIVE family (id) AS (SELECT CAST(? AS text) UNION ALL"
    " SELECT child.id FROM session child JOIN family ON child.parent_id = family.id)"
)


def cost_usage(session: SessionRow) -> CostUsage | None:
    """Return what a session cost; None where that is nothing, and nothing limits it."""
    left = session.money_left
    if left is None and not (session.cost_spent or session.cost_held or session.cost_reserved or session.cost_unknown):
        return None
    return CostUsage(
        spent_usd=to_dollars(session.cost_spent),
        held_usd=to_dollars(session.cost_held),
        reserved_usd=to_dollars(session.cost_reserved),
        excess_usd=to_dollars(session.cost_excess),
        unknown=session.cost_unknown,
        estimated=session.cost_estimated,
        left_usd=None if left is None else to_dollars(left[0]),
        free_usd=None if left is None else to_dollars(left[1]),
    )


@dataclass(frozen=True, slots=True)
class SessionCalls:
    """The calls of a session and its descendants, by state; ``used`` is the session's counter.

    ``reserved`` includes what descendants reserved and have not used; ``charged_faults`` are among the committed.
    """

    used: int
    reserved: int
    running: int
    refunded: int
    in_doubt: int
    charged_faults: int

    @property
    def committed(self) -> int:
        """The charged calls that are in no other state: counting them would read a row of each."""
        return self.used - self.reserved - self.running - self.in_doubt


def count_calls(session_id: str) -> SqlProgram[SessionCalls]:
    """Count by one statement, so that the counter and the calls are those of one moment."""
    rows = yield from execute(
        f"{FAMILY_CTE} SELECT call.state, count(*) FROM call WHERE call.session_id IN (SELECT id FROM family)"
        f" AND ({IS_NOT_COMMITTED} OR call.fault IS NOT NULL) AND NOT ({_IS_ANSWERED}) GROUP BY call.state"
        " UNION ALL SELECT 'unused', coalesce(sum(session.reserved - session.used), 0) FROM session JOIN family"
        " USING (id) WHERE session.reserved > session.used AND id <> ?"
        " UNION ALL SELECT 'used', used FROM session WHERE id = ?",
        *(session_id, session_id, session_id),
    )
    found = {row[0]: int(row[1]) for row in rows}
    return SessionCalls(
        used=found["used"],
        reserved=found.get(CallState.RESERVED, 0) + found["unused"],
        running=found.get(CallState.RUNNING, 0),
        refunded=found.get(CallState.REFUNDED, 0),
        in_doubt=found.get(CallState.IN_DOUBT, 0),
        charged_faults=found.get(CallState.COMMITTED, 0),
    )


#: The states of calls that were charged and sent to their target.
_CHARGED_STATES = ", ".join(f"'{state}'" for state in (CallState.RUNNING, CallState.COMMITTED, CallState.IN_DOUBT))

#: The number of calls with two attempts of which none is proven unbilled, and none void. Few calls have two attempts.
_MADE_TWICE = (
    "CAST(coalesce(sum(CASE WHEN attempts >= 2 AND (SELECT count(*) FROM attempt WHERE attempt.session_id ="
    " call.session_id AND attempt.request_id = call.request_id AND attempt.state NOT IN ('proven', 'void'))"
    f" + CASE WHEN {HOLDER_WITHOUT_ROW} THEN 1 ELSE 0 END >= 2 THEN 1 ELSE 0 END), 0) AS bigint)"
)


def usage_per_target(session_id: str) -> SqlProgram[dict[str, TargetUsage]]:
    """Return the calls and token usage of a session and its descendants, by target."""
    kinds = ("input", "output", "cached", "cache_write")
    sums = ", ".join(f"CAST(coalesce(sum(tokens_{kind}), 0) AS bigint)" for kind in kinds)
    rows = yield from execute(
        f"{FAMILY_CTE} SELECT target, count(*), count(tokens_input), {_MADE_TWICE}, {sums}"
        " FROM call WHERE session_id IN (SELECT id FROM family)"
        f" AND state IN ({_CHARGED_STATES}) GROUP BY target ORDER BY target",
        session_id,
    )
    return {target: _target_usage(*counts) for target, *counts in rows}


def _target_usage(calls: int, counted: int, made_twice: int, *tokens: int) -> TargetUsage:
    return TargetUsage(calls=calls, counted=counted, token_usage=stored_usage(*tokens), made_twice=made_twice)

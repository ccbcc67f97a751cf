"""Tells what is held for tries whose bill is not known, and releases it for an administrator who knows the bill."""

from __future__ import annotations

from collections import Counter

from quintain.contracts.money import HeldTries, dollars_text, to_dollars
from quintain.errors import BadRequest
from quintain_metadata.ledger.call_rows import load_calls
from quintain_metadata.ledger.session_rows import CostChange, Counters
from quintain_metadata.ledger.sessions import require_session
from quintain_metadata.ledger.usage import FAMILY_CTE
from quintain_metadata.store.base import ForEach, SqlProgram, execute

#: Attempts that were lost report no more: what they are said to have cost is known.
_RESOLVE_SQL = (
    "UPDATE attempt SET state = 'unproven', cost = 0"
    " WHERE session_id = ? AND request_id = ? AND state = 'running' AND cost > 0"
)


def held_tries(session_id: str) -> SqlProgram[list[HeldTries]]:
    """Return what a session and its descendants hold, by the cause of each call's last such try, the most first."""
    rows = yield from execute(
        f"{FAMILY_CTE} SELECT held_for, unproven_tries, held FROM call WHERE session_id IN (SELECT id FROM family)"
        " AND held > 0",
        session_id,
    )
    tries, amounts = Counter[str](), Counter[str]()
    for cause, unproven, held in rows:
        tries[cause] += max(1, unproven)
        amounts[cause] += held
    return [HeldTries(cause=cause, tries=tries[cause], usd=to_dollars(held)) for cause, held in amounts.most_common()]


def release_held(session_id: str, billed: int) -> SqlProgram[int]:
    """Record that the tries for which a session and its descendants hold money were billed so many picodollars in all.

    Returns what is free again, in picodollars. Attempts of these calls that report later change nothing. Raises
    `BadRequest` where there is no such session, or less is held.
    """
    yield from require_session(session_id)
    family = yield from execute(f"{FAMILY_CTE} SELECT id FROM family", session_id)
    rows = yield from load_calls([], sessions=[row[0] for row in family])
    found = yield from execute(
        f"{FAMILY_CTE} SELECT session_id, request_id, held FROM call"
        " WHERE session_id IN (SELECT id FROM family) AND held > 0 ORDER BY session_id, request_id",
        session_id,
    )
    if billed > (total := sum(int(row[2]) for row in found)):
        raise BadRequest(f"billed: session {session_id} holds {dollars_text(total)}, less than {dollars_text(billed)}")
    counters, left, known = Counters(rows.sessions), billed, list[tuple[int, str, str]]()
    for owner, request_id, held in found:
        spent = min(left, held)
        left -= spent
        counters.add_cost(rows.sessions[owner], CostChange(spent=spent, held=-held))
        known.append((spent, owner, request_id))
    yield ForEach(
        "UPDATE call SET billed = billed + ?, held = 0, cost = CASE WHEN lost > 0 THEN 0 ELSE cost END, lost = 0"
        " WHERE session_id = ? AND request_id = ?",
        known,
    )
    yield ForEach(_RESOLVE_SQL, [(owner, request_id) for _, owner, request_id in known])
    yield from counters.write()
    return total - billed

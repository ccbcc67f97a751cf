"""Counts what sessions and their descendants used: calls by state, by target, and money."""

from __future__ import annotations

from dataclasses import dataclass

from quintain.contracts.money import to_dollars
from quintain.contracts.session import CostUsage, UsageLine
from quintain.errors import Rejected, ReplyTooLarge
from quintain_metadata.ledger.lifecycle import CallState
from quintain_metadata.ledger.session_rows import TOKEN_KINDS, SessionRow, stored_usage
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

#: What is summed over the calls of one target and grader, after the tokens of each kind.
_SUMS = (
    f"CASE WHEN state IN ({_CHARGED_STATES}) THEN 1 ELSE 0 END",
    "CASE WHEN tokens_input IS NULL THEN 0 ELSE 1 END",
    "tries",
    "unproven_tries",
    "billed",
    "held",
    f"CASE WHEN state = '{CallState.RUNNING}' THEN cost ELSE 0 END",
    "unknown",
)


#: As `FAMILY_CTE`, with the target of the call of the first session for whose agent each other one was opened.
_AGENTS_CTE = (
    "WITH RECURSIVE family (id, agent) AS (SELECT CAST(? AS text), CAST(NULL AS text) UNION ALL"
    " SELECT child.id, coalesce(family.agent, asker.target) FROM session child JOIN family"
    " ON child.parent_id = family.id LEFT JOIN call AS asker"
    " ON asker.session_id = child.parent_id AND asker.request_id = child.opened_for)"
)


def usage_lines(session_id: str) -> SqlProgram[list[UsageLine]]:
    """Return what the calls of a session and its descendants took, by target, grader and agent.

    Requests of calls that were refunded are counted too.
    """
    summed = (*(f"tokens_{kind}" for kind in TOKEN_KINDS), *_SUMS)
    rows = yield from execute(
        f"{_AGENTS_CTE} SELECT target, grader, agent,"
        f" {', '.join(f'CAST(coalesce(sum({one}), 0) AS bigint)' for one in summed)}"
        " FROM call JOIN family ON call.session_id = family.id WHERE target <> ''"
        " GROUP BY target, grader, agent ORDER BY target, grader IS NOT NULL, grader, agent IS NOT NULL, agent",
        session_id,
    )
    lines = [_usage_line(*row) for row in rows]
    return [line for line in lines if line.calls or line.tries]


def _usage_line(target: str, grader: str | None, agent: str | None, *sums: int) -> UsageLine:
    tokens, (calls, counted, tries, unproven, billed, held, reserved, unknown) = (
        sums[: len(TOKEN_KINDS)],
        sums[len(TOKEN_KINDS) :],
    )
    cost = CostUsage(
        spent_usd=to_dollars(billed), held_usd=to_dollars(held), reserved_usd=to_dollars(reserved), unknown=unknown
    )
    return UsageLine(
        target=target,
        grader=grader,
        agent=agent,
        calls=calls,
        counted=counted,
        tries=tries,
        unproven_tries=unproven,
        token_usage=stored_usage(*tokens),
        cost=cost,
    )

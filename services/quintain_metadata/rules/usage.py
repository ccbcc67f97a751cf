"""Token usage of a session and its descendants, by target."""

from __future__ import annotations

from quintain.contracts.invoke import TokenUsage
from quintain.contracts.session import TargetUsage
from quintain_metadata.ledger.base import SqlProgram, execute
from quintain_metadata.rules.attempts import HOLDER_WITHOUT_ROW
from quintain_metadata.rules.lifecycle import CallState
from quintain_metadata.rules.sessions import FAMILY_CTE

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
    sums = ", ".join(f"CAST(coalesce(sum(tokens_{kind}), 0) AS bigint)" for kind in ("input", "output", "cached"))
    rows = yield from execute(
        f"{FAMILY_CTE} SELECT target, count(*), count(tokens_input), {_MADE_TWICE}, {sums}"
        " FROM call WHERE session_id IN (SELECT id FROM family)"
        f" AND state IN ({_CHARGED_STATES}) GROUP BY target ORDER BY target",
        session_id,
    )
    return {target: _target_usage(*counts) for target, *counts in rows}


def _target_usage(
    calls: int, counted: int, made_twice: int, tokens_in: int, tokens_out: int, cached: int
) -> TargetUsage:
    usage = TokenUsage(input=tokens_in, output=tokens_out, cached=cached or None)
    return TargetUsage(calls=calls, counted=counted, token_usage=usage, made_twice=made_twice)

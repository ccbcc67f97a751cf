"""What calls took, target by target: kept with each call's end, added up when somebody asks. As `Steps`."""

from __future__ import annotations

from quintain.contracts.invoke import TokenUsage
from quintain.contracts.metadata import TargetSpend
from quintain_metadata.lifecycle import State
from quintain_metadata.sessions import FAMILY
from quintain_metadata.steps import Steps, run

#: The states of a call that was charged and let go of to its target.
_STARTED = ", ".join(f"'{state}'" for state in (State.RUNNING, State.COMMITTED, State.IN_DOUBT))


def per_target(session_id: str) -> Steps[dict[str, TargetSpend]]:
    """What a session and its descendants spent, by target."""
    sums = ", ".join(f"CAST(coalesce(sum(tokens_{kind}), 0) AS bigint)" for kind in ("input", "output", "cached"))
    rows = yield from run(
        f"{FAMILY} SELECT target, count(*), count(tokens_input), {sums} FROM call JOIN family ON session_id = family.id"
        f" WHERE state IN ({_STARTED}) GROUP BY target ORDER BY target",
        session_id,
    )
    return {target: _spend(*counts) for target, *counts in rows}


def _spend(calls: int, counted: int, tokens_in: int, tokens_out: int, cached: int) -> TargetSpend:
    usage = TokenUsage(input=tokens_in, output=tokens_out, cached=cached or None)
    return TargetSpend(calls=calls, counted=counted, token_usage=usage)

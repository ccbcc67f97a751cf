"""Attempts in the ledger: what became of each. It runs, or is proven unbilled, or unproven, or void: never to run."""

from __future__ import annotations

from quintain.contracts.ledger import Outcome, Settle
from quintain_metadata.records import Moment
from quintain_metadata.steps import Steps, one, run


def note(moment: Moment, ask: Settle) -> Steps[None]:
    """What became of an attempt that was granted; one that was never sent is none, and counts as none."""
    state = {Outcome.NEVER_SENT: "void", Outcome.REFUND: "proven"}.get(ask.outcome, "unproven")
    yield from run("UPDATE attempt SET state = ?, at = ? WHERE id = ?", state, moment.now, ask.attempt_id)
    if ask.outcome is Outcome.NEVER_SENT:
        yield from run(
            "UPDATE call SET attempts = attempts - 1 WHERE session_id = ? AND request_id = ?",
            ask.session_id,
            ask.request_id,
        )


def entomb(moment: Moment, ask: Settle) -> Steps[None]:
    """An attempt that was given up before its grant: a grant that comes late is void."""
    yield from run(
        "INSERT INTO attempt (id, session_id, request_id, number, incarnation, state, at)"
        " VALUES (?, ?, ?, 0, '', 'void', ?) ON CONFLICT (id) DO NOTHING",
        *(ask.attempt_id, ask.session_id, ask.request_id, moment.now),
    )


def is_known(attempt_id: str) -> Steps[bool]:
    """Whether this attempt was granted before, or given up: it is never granted anew."""
    return (yield from one("SELECT 1 FROM attempt WHERE id = ?", attempt_id)) is not None


def others_unproven(session_id: str, request_id: str, attempt_id: str) -> Steps[bool]:
    """Whether another attempt of the same call may have been billed."""
    other = yield from one(
        "SELECT 1 FROM attempt WHERE session_id = ? AND request_id = ? AND id <> ? AND state NOT IN ('proven', 'void')",
        *(session_id, request_id, attempt_id),
    )
    return other is not None

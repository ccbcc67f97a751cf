"""Opens the child session of a running call, for the agent of its target."""

from __future__ import annotations

from quintain.contracts.ledger import OpenChild
from quintain.contracts.proof import SessionToken
from quintain.contracts.session import OpenSession, SessionOpened, SessionState
from quintain.errors import Unauthorized
from quintain_metadata.ledger.base import Moment, SqlProgram, execute, fetch_one
from quintain_metadata.rules import leases, reservations, sessions
from quintain_metadata.rules.lifecycle import CallState
from quintain_metadata.rules.session_repository import load_session


def open_child(moment: Moment, request: OpenChild, token: SessionToken) -> SqlProgram[SessionOpened]:
    """Open a child session of the call's session, until the call's deadline at most; an earlier one is closed.

    Raises `Unauthorized` if the attempt does not run the call now, and what `sessions.open_session` raises.
    """
    row = yield from fetch_one(
        "SELECT deadline FROM call WHERE session_id = ? AND request_id = ? AND state = ? AND attempt_id = ?"
        " AND incarnation = ?",
        *(request.session_id, request.request_id, CallState.RUNNING, request.attempt_id, request.incarnation),
    )
    parent = yield from load_session(request.session_id)
    remaining_seconds = 0.0 if row is None else (row[0] - moment.now) / 1000
    if parent is None or not parent.is_usable(moment.now) or remaining_seconds <= 0:
        raise Unauthorized
    yield from _close_earlier(moment, request)
    terms = OpenSession(
        default_target=request.targets[0],
        allowed_targets=request.targets,
        # A limit above the parent's would be refused, and a parent with a small budget is no error.
        max_calls=min(request.max_calls, parent.max_calls),
        expires_in_seconds=min(request.expires_in_seconds or remaining_seconds, remaining_seconds),
    )
    opened = yield from sessions.open_session(moment.now, terms, token, parent)
    yield from execute("UPDATE session SET opened_for = ? WHERE id = ?", request.request_id, opened.session_id)
    return opened


def _close_earlier(moment: Moment, request: OpenChild) -> SqlProgram[None]:
    rows = yield from execute(
        "SELECT id FROM session WHERE parent_id = ? AND opened_for = ? AND state <> ?",
        *(request.session_id, request.request_id, SessionState.CLOSED),
    )
    for (child_id,) in rows:
        child = yield from sessions.require_session(child_id)
        yield from leases.end_lost_calls(moment, child)
        yield from reservations.release_all(moment, child)
        yield from execute("UPDATE session SET state = ? WHERE id = ?", SessionState.CLOSED, child_id)

"""Opens and closes the child sessions of calls, for the agents that they are sent to."""

from __future__ import annotations

from quintain.contracts.credentials import SessionToken
from quintain.contracts.ledger import OpenChild
from quintain.contracts.money import picodollars, to_dollars
from quintain.contracts.session import AGENTS, OpenSession, SessionOpened, SessionState
from quintain.errors import Unauthorized
from quintain_metadata.ledger import calls, sessions
from quintain_metadata.ledger.lifecycle import CallState
from quintain_metadata.ledger.session_rows import load_session
from quintain_metadata.store.base import Lookup, Moment, SqlProgram, execute, fetch_one


def open_child(moment: Moment, request: OpenChild, token: SessionToken) -> SqlProgram[SessionOpened]:
    """Open a child session of the call's session, until the call's deadline at most; an earlier one is closed.

    The request that opened it may come again, with the same ``token``: it has the same answer, as its agent may use it.
    Raises `Unauthorized` if the attempt does not run the call now, and what `sessions.open_session` raises.
    """
    row = yield from fetch_one(
        "SELECT deadline, grader FROM call WHERE session_id = ? AND request_id = ? AND state = ? AND attempt_id = ?"
        " AND incarnation = ?",
        *(request.session_id, request.request_id, CallState.RUNNING, request.attempt_id, request.incarnation),
    )
    parent = yield from load_session(request.session_id)
    remaining_seconds = 0.0 if row is None else (row[0] - moment.now) / 1000
    if row is None or parent is None or not parent.is_usable(moment.now) or remaining_seconds <= 0:
        raise Unauthorized
    if (opened := (yield from sessions.opened_before(token))) is not None:
        return opened
    yield from _close_earlier(moment, request)
    max_cost = None if request.max_cost_usd is None else parent.narrowed_cost(picodollars(request.max_cost_usd))
    terms = OpenSession(
        default_target=request.targets[0],
        allowed_targets=request.targets,
        # A limit above the parent's would be refused, and a parent with a small budget is no error.
        max_calls=min(request.max_calls, parent.max_calls),
        max_cost_usd=None if max_cost is None else to_dollars(max_cost),
        expires_in_seconds=min(request.expires_in_seconds or remaining_seconds, remaining_seconds),
        grader=row[1] or AGENTS,
    )
    opened = yield from sessions.open_session(moment.now, terms, token, parent)
    yield from execute("UPDATE session SET opened_for = ? WHERE id = ?", request.request_id, opened.session_id)
    return opened


def _close_earlier(moment: Moment, request: OpenChild) -> SqlProgram[None]:
    rows = yield from execute(
        "SELECT id FROM session WHERE parent_id = ? AND opened_for = ? AND state <> ?",
        *(request.session_id, request.request_id, SessionState.CLOSED),
    )
    yield from close_all(moment, [row[0] for row in rows])


def close_all(moment: Moment, session_ids: list[str]) -> SqlProgram[None]:
    """Close sessions, and end what is under way in them and in their descendants."""
    yield from calls.end_family(moment, session_ids)
    keys = [(session_id,) for session_id in session_ids]
    yield Lookup(f"UPDATE session SET state = '{SessionState.CLOSED}' WHERE id IN (SELECT key1 FROM wanted)", keys)

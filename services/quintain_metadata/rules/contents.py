"""Which contents there are, who may use them, and when they end. Their bytes are in a `ContentStore`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from quintain.contracts.contents import GetContent, PutContent
from quintain.errors import BadRequest, Expired, Overloaded
from quintain_metadata.ledger.base import Moment, SqlProgram, acquire_lock, execute, fetch_one
from quintain_metadata.rules.lifecycle import COUNTED_STATES, MAX_DEADLINE_AHEAD_MS, CallState
from quintain_metadata.rules.session_repository import SessionRow
from quintain_metadata.rules.sessions import require_body_allowed

#: How long after its deadline a content is deleted, in milliseconds: what was begun before may end.
DELETE_AFTER_MS = 60_000

#: When a request that found the store full may be sent again, in milliseconds.
RETRY_AFTER_MS = 5_000

#: How many contents one sweep deletes at most.
MAX_SWEPT_CONTENTS = 16

#: The states of calls whose repeated requests get the stored answer: their bodies are of no use.
_ENDED_STATES = (CallState.COMMITTED, CallState.IN_DOUBT)


class ContentRow(NamedTuple):
    """A row of the table ``content``."""

    id: str
    size: int
    complete: int
    expires_at: int


def accept_content(
    moment: Moment, session: SessionRow, request: PutContent, max_bytes: int
) -> SqlProgram[ContentRow | None]:
    """Return the content that the request is about, which is new if it is not known, with its size set aside.

    Returns None where the call has ended: it needs no body. ``max_bytes`` is the limit of all contents together.

    Raises `PayloadTooLarge` for more than the session may send, `BudgetExhausted` where it has no calls left,
    `Overloaded` where the store is full, `Expired` for a deadline that has passed, and `BadRequest` for another size
    than before.
    """
    require_body_allowed(session, request.size)
    latest = moment.now + MAX_DEADLINE_AHEAD_MS
    expires_at = moment.now + session.deadline_ms if request.deadline is None else request.deadline
    expires_at = min(expires_at, latest)
    if expires_at <= moment.now:
        raise Expired("The deadline passed before the body was stored")
    call = yield from fetch_one(
        "SELECT state FROM call WHERE session_id = ? AND request_id = ?", session.id, request.request_id
    )
    state = CallState.NONE if call is None else CallState(call[0])
    if state in _ENDED_STATES:
        return None
    if state not in COUNTED_STATES:
        session.require_calls_left()
    row = yield from _find(session, request)
    if row is None:
        row = yield from _add(session, request, expires_at, max_bytes)
    if row.size != request.size:
        raise BadRequest(f"size: this content was announced with {row.size} bytes")
    if row.expires_at < expires_at:
        yield from execute("UPDATE content SET expires_at = ? WHERE id = ?", expires_at, row.id)
    return row


def _find(session: SessionRow, request: PutContent) -> SqlProgram[ContentRow | None]:
    row = yield from fetch_one(
        "SELECT id, size, complete, expires_at FROM content WHERE session_id = ? AND request_id = ? AND sha256 = ?",
        *(session.id, request.request_id, request.sha256),
    )
    return None if row is None else ContentRow(*row)


def _add(session: SessionRow, request: PutContent, expires_at: int, max_bytes: int) -> SqlProgram[ContentRow]:
    yield from acquire_lock("contents")
    if (added := (yield from _find(session, request))) is not None:
        return added
    used = yield from fetch_one("SELECT CAST(coalesce(sum(size), 0) AS bigint) FROM content")
    assert used is not None
    if used[0] + request.size > max_bytes:
        raise Overloaded(
            f"The content store is full: {used[0]} of {max_bytes} bytes (QUINTAIN_CONTENT_STORE_BYTES) are used",
            retry_after_ms=RETRY_AFTER_MS,
        )
    row = ContentRow(secrets.token_hex(16), request.size, 0, expires_at)
    yield from execute(
        "INSERT INTO content (id, session_id, request_id, sha256, size, complete, expires_at)"
        " VALUES (?, ?, ?, ?, ?, 0, ?)",
        *(row.id, session.id, request.request_id, request.sha256, request.size, expires_at),
    )
    return row


def mark_complete(content_id: str) -> SqlProgram[None]:
    """Record that all pieces of a content are stored, and that its hash is right."""
    yield from execute("UPDATE content SET complete = 1 WHERE id = ?", content_id)


def find_content_of_attempt(request: GetContent) -> SqlProgram[str | None]:
    """Return the id of the complete content of a call that runs in this attempt of this worker, or None."""
    row = yield from fetch_one(
        "SELECT content.id FROM call JOIN content ON content.session_id = call.session_id"
        " AND content.request_id = call.request_id AND content.sha256 = call.body_sha256"
        " WHERE call.session_id = ? AND call.request_id = ? AND call.state = ? AND call.attempt_id = ?"
        " AND call.incarnation = ? AND content.complete = 1",
        *(request.session_id, request.request_id, CallState.RUNNING, request.attempt_id, request.incarnation),
    )
    return None if row is None else str(row[0])


def ended_contents(moment: Moment) -> SqlProgram[list[str]]:
    """Return the ids of contents whose call was answered or whose deadline has passed, `MAX_SWEPT_CONTENTS` at most."""
    rows = yield from execute(
        "SELECT content.id FROM content LEFT JOIN call ON call.session_id = content.session_id"
        " AND call.request_id = content.request_id WHERE content.expires_at <= ? OR call.state IN (?, ?)"
        " ORDER BY content.id LIMIT ?",
        *(moment.now - DELETE_AFTER_MS, *_ENDED_STATES, MAX_SWEPT_CONTENTS),
    )
    return [row[0] for row in rows]


def forget_contents(content_ids: Sequence[str]) -> SqlProgram[None]:
    """Delete contents whose pieces were deleted: their size is free again."""
    for content_id in content_ids:
        yield from execute("DELETE FROM content WHERE id = ?", content_id)

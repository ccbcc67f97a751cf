"""Sessions in the ledger: opening, proving a token, amending, counting. As `Steps`, for any store."""

from __future__ import annotations

import dataclasses
import hmac
import json
from dataclasses import dataclass

from quintain.contracts.invoke import TokenUsage
from quintain.contracts.metadata import (
    DEFAULT_MAX_CALLS,
    AmendSession,
    Info,
    ListSessions,
    OpenSession,
    SessionList,
    SessionOpened,
    SessionState,
)
from quintain.contracts.token import SessionToken
from quintain.errors import BadRequest, BudgetExhausted, ForbiddenTarget, Overloaded, Unauthorized
from quintain_metadata.lifecycle import State
from quintain_metadata.steps import Steps, one, run

DEFAULT_DEADLINE_MS = 600_000
PAGE = 100

#: A whole number larger than this is no number to every reader of JSON.
MOST_WHOLE = 2**53 - 1

#: A session lives this long at most, where its life is bounded at all: a hundred years, in seconds.
MOST_SECONDS = 100 * 366 * 24 * 3600

#: One call's tokens of a kind are counted up to this.
MOST_TOKENS = 10**12

#: Begins a query over a session (its one parameter) and all its descendants.
FAMILY = (
    "WITH RECURSIVE family (id) AS (SELECT CAST(? AS text) UNION ALL"
    " SELECT child.id FROM session child JOIN family ON child.parent_id = family.id)"
)


@dataclass(frozen=True, slots=True)
class Session:
    """A row of ``session``, and its ancestors', nearest first."""

    id: str
    token_sha256: bytes
    parent_id: str | None
    default_target: str
    allowed_targets: str | None
    max_calls: int
    used: int
    state: str
    label: str | None
    deadline_ms: int
    store_replies: int
    created_at: int
    expires_at: int | None
    tokens_input: int
    tokens_output: int
    tokens_cached: int
    tokens_reasoning: int
    ancestors: tuple[Session, ...] = ()

    @property
    def lineage(self) -> tuple[Session, ...]:
        """The session and its ancestors: all are charged, and all must be open."""
        return (self, *self.ancestors)

    def allows(self, target: str) -> bool:
        """Whether it may call this target."""
        return self.allowed_targets is None or target in json.loads(self.allowed_targets)

    def usable(self, now: int) -> bool:
        """Whether its token still opens anything."""
        return all(
            one.state != SessionState.CLOSED and (one.expires_at is None or one.expires_at > now)
            for one in self.lineage
        )


_COLUMNS = ", ".join(field.name for field in dataclasses.fields(Session) if field.name != "ancestors")


def load(session_id: str) -> Steps[Session | None]:
    """A session with its ancestors, or None."""
    row = yield from one(f"SELECT {_COLUMNS} FROM session WHERE id = ?", session_id)
    if row is None:
        return None
    session = Session(*row)
    if session.parent_id is None:
        return session
    parent = yield from load(session.parent_id)
    assert parent is not None, "a parent is never deleted"
    return dataclasses.replace(session, ancestors=parent.lineage)


def prove(now: int, token: SessionToken) -> Steps[Session]:
    """The session this token opens. Raises `Unauthorized`, the same for every reason."""
    session = yield from load(token.id)
    # The comparison runs for unknown ids too, so that its time says nothing.
    known = session.token_sha256 if session is not None else bytes(32)
    if not hmac.compare_digest(token.sha256, bytes(known)) or session is None or not session.usable(now):
        raise Unauthorized
    return session


def require_open(session: Session) -> None:
    """Raises `Overloaded` while the session or an ancestor is paused: new calls wait for its operator."""
    if any(one.state == SessionState.PAUSED for one in session.lineage):
        raise Overloaded("This session is paused by its operator", retry_after_ms=10_000)


def open_session(now: int, ask: OpenSession, token: SessionToken, parent: Session | None) -> Steps[SessionOpened]:
    """Open a session, or a child that narrows its parent. Raises `BadRequest`, `ForbiddenTarget`."""
    max_calls, allowed, expires_at = _narrowed(now, ask, parent)
    deadline_ms = DEFAULT_DEADLINE_MS if ask.deadline_seconds is None else int(ask.deadline_seconds * 1000)
    keep = ask.store_replies is not False and (parent is None or bool(parent.store_replies))
    yield from run(
        "INSERT INTO session (id, token_sha256, parent_id, default_target, allowed_targets, max_calls, state, label,"
        " deadline_ms, store_replies, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, 'open', ?, ?, ?, ?, ?)",
        token.id,
        token.sha256,
        parent.id if parent else None,
        ask.default_target,
        None if allowed is None else json.dumps(sorted(set(allowed))),
        max_calls,
        ask.label,
        deadline_ms,
        int(keep),
        now,
        expires_at,
    )
    return SessionOpened(session_id=token.id, token=token.text, parent_id=parent.id if parent else None)


def _narrowed(now: int, ask: OpenSession, parent: Session | None) -> tuple[int, list[str] | None, int | None]:
    expires_at = None if ask.expires_in_seconds is None else now + _milliseconds(ask.expires_in_seconds)
    _countable(ask.max_calls)
    allowed = ask.allowed_targets
    if allowed is not None and ask.default_target not in allowed:
        raise BadRequest("defaultTarget: it is not among allowedTargets")
    if parent is None:
        return DEFAULT_MAX_CALLS if ask.max_calls is None else ask.max_calls, allowed, expires_at
    if ask.max_calls is not None and ask.max_calls > parent.max_calls:
        raise BadRequest(f"maxCalls: a child may only narrow its parent's {parent.max_calls}")
    for target in (ask.default_target, *(allowed or ())):
        if not parent.allows(target):
            raise ForbiddenTarget(f"This session may not call {target!r}, and so may no child of it")
    if allowed is None and parent.allowed_targets is not None:
        allowed = json.loads(parent.allowed_targets)
    # A child never outlives its parent: the parent's expiry is checked with its own.
    return min(DEFAULT_MAX_CALLS, parent.max_calls) if ask.max_calls is None else ask.max_calls, allowed, expires_at


def _countable(max_calls: int | None) -> None:
    if max_calls is not None and max_calls > MOST_WHOLE:
        raise BadRequest(f"maxCalls: at most {MOST_WHOLE}")


def _milliseconds(seconds: float) -> int:
    if seconds > MOST_SECONDS:
        raise BadRequest(f"expiresInSeconds: at most {MOST_SECONDS}")
    return int(seconds * 1000)


def charge(session: Session, calls: int = 1) -> Steps[int]:
    """Count calls against the session and all its ancestors; returns the session's own count.

    Raises `BudgetExhausted`, which undoes the operation: never check first and charge then.
    """
    own = 0
    for payer in session.lineage:
        row = yield from one(
            "UPDATE session SET used = used + ? WHERE id = ? AND used + ? <= max_calls RETURNING used",
            calls,
            payer.id,
            calls,
        )
        if row is None:
            raise BudgetExhausted(f"Max calls exceeded (limit: {payer.max_calls})")
        own = row[0] if payer is session else own
    return own


def give_back(session: Session, calls: int = 1) -> Steps[None]:
    """Take calls off the session and all its ancestors."""
    for payer in session.lineage:
        yield from run("UPDATE session SET used = used - ? WHERE id = ?", calls, payer.id)


def add_tokens(session: Session, usage: TokenUsage) -> Steps[None]:
    """Add up the tokens of a call."""
    counts = (usage.input, usage.output, usage.cached or 0, usage.reasoning or 0)
    for payer in session.lineage:
        yield from run(
            "UPDATE session SET tokens_input = tokens_input + ?, tokens_output = tokens_output + ?,"
            " tokens_cached = tokens_cached + ?, tokens_reasoning = tokens_reasoning + ? WHERE id = ?",
            *map(countable, counts),
            payer.id,
        )


def countable(tokens: int) -> int:
    """A provider's count; one that cannot be true costs nobody the call's settlement."""
    return min(max(0, tokens), MOST_TOKENS)


def amend(now: int, ask: AmendSession) -> Steps[Info]:
    """Change a session's limit or state. Usage is never reset; a limit below it becomes it."""
    session = yield from existing(ask.session_id)
    _countable(ask.max_calls)
    if ask.max_calls is not None:
        yield from run(
            "UPDATE session SET max_calls = CASE WHEN used > ? THEN used ELSE ? END WHERE id = ?",
            ask.max_calls,
            ask.max_calls,
            session.id,
        )
    if ask.state is not None and session.state != SessionState.CLOSED:
        yield from run("UPDATE session SET state = ? WHERE id = ?", ask.state, session.id)
    return (yield from show(now, session.id))


def show(now: int, session_id: str) -> Steps[Info]:
    """A session as its info. Raises `BadRequest` where there is none."""
    session = yield from existing(session_id)
    return (yield from info(now, session))


def info(now: int, session: Session) -> Steps[Info]:
    """A session and its counters, its descendants' calls included."""
    counts = yield from run(
        f"{FAMILY} SELECT state, count(*) FROM call JOIN family ON session_id = family.id GROUP BY state",
        session.id,
    )
    by_state = {row[0]: row[1] for row in counts}
    targets = yield from run("SELECT name FROM target ORDER BY name")
    return Info(
        session_id=session.id,
        target_name=session.default_target,
        max_calls=session.max_calls,
        call_count=session.used,
        available_targets=[row[0] for row in targets if session.allows(row[0])],
        reserved=by_state.get(State.RESERVED, 0),
        running=by_state.get(State.RUNNING, 0),
        committed=by_state.get(State.COMMITTED, 0),
        refunded=by_state.get(State.REFUNDED, 0),
        in_doubt=by_state.get(State.IN_DOUBT, 0),
        token_usage=TokenUsage(
            input=session.tokens_input,
            output=session.tokens_output,
            cached=session.tokens_cached or None,
            reasoning=session.tokens_reasoning or None,
        ),
        expires_at=session.expires_at,
        state=SessionState(session.state),
        label=session.label,
        parent_id=session.parent_id,
        now=now,
    )


def page(now: int, ask: ListSessions) -> Steps[SessionList]:
    """One page of sessions, newest first; the cursor is the last one's ``created_at.id``."""
    before, _, last = (ask.cursor or "").partition(".")
    if ask.cursor and not (before.isdecimal() and len(before) < 18):
        raise BadRequest("cursor: take it from the page before")
    rows = yield from run(
        "SELECT id, created_at FROM session WHERE (created_at < ? OR (created_at = ? AND id < ?))"
        " AND (CAST(? AS text) IS NULL OR state = ?) ORDER BY created_at DESC, id DESC LIMIT ?",
        int(before) if before else now + 1,
        int(before) if before else now + 1,
        last,
        ask.state,
        ask.state,
        PAGE + 1,
    )
    sessions: list[Info] = []
    for row in rows[:PAGE]:
        sessions.append((yield from show(now, row[0])))  # noqa: PERF401 -- a step cannot be taken in a comprehension
    more = len(rows) > PAGE
    return SessionList(sessions=sessions, cursor=f"{rows[PAGE - 1][1]}.{rows[PAGE - 1][0]}" if more else None)


def existing(session_id: str) -> Steps[Session]:
    """The session of this id. Raises `BadRequest` where there is none."""
    session = yield from load(session_id)
    if session is None:
        raise BadRequest(f"sessionId: there is no session {session_id!r}; `quintain session list` shows them")
    return session

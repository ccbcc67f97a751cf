"""Opens, authenticates, amends and lists sessions."""

from __future__ import annotations

import json

from quintain.contracts.credentials import CallProof, SessionToken
from quintain.contracts.message import DEFAULT_REQUEST_BYTES
from quintain.contracts.money import NO_LIMIT, picodollars, to_dollars
from quintain.contracts.session import (
    DEFAULT_MAX_CALLS,
    AmendSession,
    Info,
    ListSessions,
    OpenSession,
    SessionList,
    SessionOpened,
    SessionState,
)
from quintain.errors import BadRequest, ForbiddenTarget, Unauthorized
from quintain_metadata.ledger.call_rows import read_wrong_bounds, resolved_target
from quintain_metadata.ledger.session_rows import (
    Counters,
    SessionRow,
    load_session,
    load_sessions,
    require_authorized,
    require_authorized_for,
    stored_usage,
)
from quintain_metadata.ledger.targets import (
    current_fingerprints,
    differences,
    group_slots,
    live_served_targets,
    one_question_targets,
    quota_names,
    target_costs,
    target_timeouts,
)
from quintain_metadata.ledger.usage import cost_usage, count_calls
from quintain_metadata.store.base import SqlProgram, execute

DEFAULT_DEADLINE_MS = 600_000
PAGE_SIZE = 100

#: The largest integer that every JSON parser reads exactly.
MAX_SAFE_INTEGER = 2**53 - 1

#: The longest lifetime of a session that has one, in seconds: a hundred years.
MAX_LIFETIME_SECONDS = 100 * 366 * 24 * 3600


def authenticate(now: int, credential: SessionToken | CallProof) -> SqlProgram[SessionRow]:
    """Return the session of this token or proof. Raises `Unauthorized`, with the same message for every reason."""
    session = yield from load_session(credential.id)
    try:
        return require_authorized(now, credential, session)
    except Unauthorized:
        if not isinstance(credential, CallProof):
            raise
        # Made without a routing key, it is also good for the target for which its call was admitted before.
        target = yield from resolved_target(credential.id, credential.request_id)
        return require_authorized_for(now, credential, session, target)


def open_session(
    now: int, request: OpenSession, token: SessionToken, parent: SessionRow | None
) -> SqlProgram[SessionOpened]:
    """Open a session, or a child session within its parent's limits; one with this ``token`` is answered as it was.

    Raises `BadRequest`, `ForbiddenTarget`; `BudgetExhausted` where the parent does not have the calls to reserve.
    """
    if (opened := (yield from opened_before(token))) is not None:
        return opened
    max_calls, allowed, expires_at = _resolve_limits(now, request, parent)
    reserved = _resolve_reserved(request, max_calls, parent)
    if parent is not None and reserved:
        # What is reserved for a session that ended must be found by its own expiry.
        expiries = [
            one
            for one in (expires_at, *(session.expires_at for session in (parent, *parent.ancestors)))
            if one is not None
        ]
        expires_at = min(expiries, default=None)
    deadline_ms = DEFAULT_DEADLINE_MS if request.deadline_seconds is None else int(request.deadline_seconds * 1000)
    store_replies = request.store_replies is not False and (parent is None or bool(parent.store_replies))
    inherited = parent is not None and bool(parent.ignore_unsupported)
    ignore_unsupported = inherited if request.unsupported is None else request.unsupported == "ignore"
    max_body_bytes = _resolve_max_body_bytes(request, parent)
    max_cost = _resolve_max_cost(request, parent)
    _require_no_larger_share(request, parent)
    yield from execute(
        "INSERT INTO session (id, token_sha256, parent_id, default_target, allowed_targets, max_calls, state, label,"
        " deadline_ms, store_replies, created_at, expires_at, reserved, ignore_unsupported,"
        " max_body_bytes, weight, priority, max_cost, warn_at, grader)"
        " VALUES (?, ?, ?, ?, ?, ?, 'open', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        token.id,
        token.sha256,
        parent.id if parent else None,
        request.default_target,
        None if allowed is None else json.dumps(list(dict.fromkeys(allowed))),
        max_calls,
        request.label,
        deadline_ms,
        int(store_replies),
        now,
        expires_at,
        reserved,
        int(ignore_unsupported),
        max_body_bytes,
        request.weight,
        request.priority,
        max_cost,
        None if request.warn_at is None else round(request.warn_at * 1_000_000),
        request.grader or (parent.grader if parent else None),
    )
    if parent is not None and reserved:
        parent.require_not_paused()
        payers = yield from load_sessions({parent.id})
        counters = Counters(payers)
        counters.charge(payers[parent.id], reserved)
        yield from counters.write()
    return SessionOpened(session_id=token.id, token=token.text, parent_id=parent.id if parent else None)


def opened_before(token: SessionToken) -> SqlProgram[SessionOpened | None]:
    """Return the answer to the request that opened the session with this token, if there is one."""
    session = yield from load_session(token.id)
    if session is None or not token.matches(session.token_sha256):
        return None
    return SessionOpened(session_id=token.id, token=token.text, parent_id=session.parent_id)


def _resolve_limits(
    now: int, request: OpenSession, parent: SessionRow | None
) -> tuple[int, list[str] | None, int | None]:
    expires_at = None if request.expires_in_seconds is None else now + _lifetime_ms(request.expires_in_seconds)
    _require_valid_max_calls(request.max_calls)
    allowed = request.allowed_targets
    if allowed is not None and request.default_target not in allowed:
        raise BadRequest("defaultTarget: it is not among allowedTargets")
    if parent is None:
        return DEFAULT_MAX_CALLS if request.max_calls is None else request.max_calls, allowed, expires_at
    if request.max_calls is not None and request.max_calls > parent.max_calls:
        raise BadRequest(f"maxCalls: a child may only narrow its parent's {parent.max_calls}")
    for target in (request.default_target, *(allowed or ())):
        if not parent.allows(target):
            raise ForbiddenTarget(f"This session may not call {target!r}, so its child sessions may not either")
    if allowed is None and parent.allowed_targets is not None:
        allowed = json.loads(parent.allowed_targets)
    max_calls = min(DEFAULT_MAX_CALLS, parent.max_calls) if request.max_calls is None else request.max_calls
    # A child expires with its parent at the latest: `is_usable` checks the parent's expiry too.
    return max_calls, allowed, expires_at


def _resolve_max_body_bytes(request: OpenSession, parent: SessionRow | None) -> int | None:
    if parent is None:
        return request.max_body_bytes
    if request.max_body_bytes is None:
        return parent.max_body_bytes
    if request.max_body_bytes > (limit := parent.max_body_bytes or DEFAULT_REQUEST_BYTES):
        raise BadRequest(f"maxBodyBytes: a child may only narrow its parent's {limit}")
    return request.max_body_bytes


def _require_no_larger_share(request: OpenSession | AmendSession, parent: SessionRow | None) -> None:
    """Raise `BadRequest` where a child would have a larger share of a quota than its parent."""
    if parent is None:
        return
    if request.weight is not None and request.weight > parent.weight:
        raise BadRequest(f"weight: a child may only lower its parent's {parent.weight}")
    if request.priority is not None and request.priority.rank < parent.priority.rank:
        raise BadRequest(f"priority: a child may only lower its parent's {parent.priority}")


def _resolve_max_cost(request: OpenSession, parent: SessionRow | None) -> int | None:
    if request.max_cost_usd is None:
        return None
    max_cost = picodollars(request.max_cost_usd)
    for payer in () if parent is None else (parent, *parent.ancestors):
        if payer.max_cost is not None and max_cost > payer.max_cost:
            raise BadRequest(f"maxCostUsd: a child may only narrow its parent's {to_dollars(payer.max_cost)}")
    return max_cost


def _resolve_reserved(request: OpenSession, max_calls: int, parent: SessionRow | None) -> int:
    if not request.reserve:
        return 0
    if parent is None:
        raise BadRequest("reserve: only a child session reserves calls, from its parent")
    reserved = max_calls if request.reserve is True else request.reserve
    if reserved > max_calls:
        raise BadRequest(f"reserve: at most the session's maxCalls, {max_calls}")
    return reserved


def _require_valid_max_calls(max_calls: int | None) -> None:
    if max_calls is not None and max_calls > MAX_SAFE_INTEGER:
        raise BadRequest(f"maxCalls: at most {MAX_SAFE_INTEGER}")


def _lifetime_ms(seconds: float) -> int:
    if seconds > MAX_LIFETIME_SECONDS:
        raise BadRequest(f"expiresInSeconds: at most {MAX_LIFETIME_SECONDS}")
    return int(seconds * 1000)


def amend_session(now: int, request: AmendSession) -> SqlProgram[Info]:
    """Change a session's limits or state. Usage is never reset; a limit below the usage is set to the usage."""
    session = yield from require_session(request.session_id)
    _require_valid_max_calls(request.max_calls)
    if request.max_calls is not None:
        yield from execute(
            "UPDATE session SET max_calls = CASE WHEN used > ? THEN used ELSE ? END WHERE id = ?",
            request.max_calls,
            request.max_calls,
            session.id,
        )
    if request.max_cost_usd == NO_LIMIT:
        yield from execute("UPDATE session SET max_cost = NULL WHERE id = ?", session.id)
    elif request.max_cost_usd is not None:
        limit, bound = picodollars(request.max_cost_usd), "cost_spent + cost_held + cost_reserved"
        yield from execute(
            f"UPDATE session SET max_cost = CASE WHEN {bound} > ? THEN {bound} ELSE ? END WHERE id = ?",
            *(limit, limit, session.id),
        )
    if request.max_body_bytes is not None:
        yield from execute("UPDATE session SET max_body_bytes = ? WHERE id = ?", request.max_body_bytes, session.id)
    if request.weight is not None or request.priority is not None:
        _require_no_larger_share(request, next(iter(session.ancestors), None))
        yield from execute(
            "UPDATE session SET weight = coalesce(?, weight), priority = coalesce(?, priority) WHERE id = ?",
            *(request.weight, request.priority, session.id),
        )
    if request.state is not None and session.state != SessionState.CLOSED:
        yield from execute("UPDATE session SET state = ? WHERE id = ?", request.state, session.id)
    return (yield from info_by_id(now, session.id))


def open_children(now: int, session_id: str) -> SqlProgram[list[str]]:
    """Return the ids of a session's children that are neither closed nor expired, in order."""
    rows = yield from execute(
        "SELECT id FROM session WHERE parent_id = ? AND state <> ? AND (expires_at IS NULL OR expires_at > ?)"
        " ORDER BY id",
        *(session_id, SessionState.CLOSED, now),
    )
    return [row[0] for row in rows]


def info_by_id(now: int, session_id: str) -> SqlProgram[Info]:
    """Return a session's information. Raises `BadRequest` where there is no such session."""
    session = yield from require_session(session_id)
    return (yield from session_info(now, session))


def session_info(now: int, session: SessionRow) -> SqlProgram[Info]:
    """Return a session's counters, with the calls of its descendants included."""
    counts = yield from count_calls(session.id)
    served = yield from live_served_targets(now)
    targets = yield from current_fingerprints(served)
    different_since = yield from differences(now, served)
    available = session.available(targets)
    fingerprints = {name: fingerprint for name in available if (fingerprint := targets[name]) is not None}
    timeouts = yield from target_timeouts()
    slots = {name: slots for name, slots in (yield from group_slots(now)).items() if name in available}
    excess = {name: to_dollars(amount) for name, amount in (yield from read_wrong_bounds()).items()}
    quotas = {name: quota for name, quota in (yield from quota_names(now)).items() if name in available}
    costs = {name: terms for name, terms in (yield from target_costs(now)).items() if name in available}
    return Info(
        session_id=session.id,
        target_name=session.default_target,
        max_calls=session.max_calls,
        call_count=counts.used,
        available_targets=available,
        allowed_targets=None if session.allowed_targets is None else json.loads(session.allowed_targets),
        target_fingerprints=fingerprints or None,
        different_since={name: since for name, since in different_since.items() if session.allows(name)} or None,
        reserved=counts.reserved,
        running=counts.running,
        committed=counts.committed,
        refunded=counts.refunded,
        in_doubt=counts.in_doubt,
        charged_faults=counts.charged_faults,
        tries=session.tries,
        unproven_tries=session.unproven_tries,
        token_usage=stored_usage(
            session.tokens_input,
            session.tokens_output,
            session.tokens_cached,
            session.tokens_cache_write,
            session.tokens_cache_write_1h,
            session.tokens_reasoning,
        ),
        max_cost_usd=None if session.max_cost is None else to_dollars(session.max_cost),
        cost=cost_usage(session),
        expires_at=session.expires_at,
        state=SessionState(session.state),
        label=session.label,
        parent_id=session.parent_id,
        unsupported="ignore" if session.ignore_unsupported else None,
        max_body_bytes=session.max_body_bytes,
        group_slots=slots or None,
        target_timeouts={name: seconds for name, seconds in timeouts.items() if name in available} or None,
        one_question_targets=(yield from one_question_targets(available)) or None,
        target_costs=costs or None,
        quotas=quotas or None,
        wrong_bounds={name: usd for name, usd in excess.items() if session.allows(name)} or None,
        weight=session.weight,
        priority=session.priority,
        now=now,
    )


def list_page(now: int, request: ListSessions) -> SqlProgram[SessionList]:
    """Return one page of sessions, newest first; the cursor is the ``created_at.id`` of the last one."""
    created_before, _, last_id = (request.cursor or "").partition(".")
    if request.cursor and not (created_before.isdecimal() and len(created_before) < 18):
        raise BadRequest("cursor: use the cursor of the previous page")
    rows = yield from execute(
        "SELECT id, created_at FROM session WHERE (created_at < ? OR (created_at = ? AND id < ?))"
        " AND (CAST(? AS text) IS NULL OR state = ?) ORDER BY created_at DESC, id DESC LIMIT ?",
        int(created_before) if created_before else now + 1,
        int(created_before) if created_before else now + 1,
        last_id,
        request.state,
        request.state,
        PAGE_SIZE + 1,
    )
    sessions: list[Info] = []
    for row in rows[:PAGE_SIZE]:
        sessions.append((yield from info_by_id(now, row[0])))  # noqa: PERF401 -- `yield from` is not allowed in a comprehension
    has_more = len(rows) > PAGE_SIZE
    return SessionList(
        sessions=sessions, cursor=f"{rows[PAGE_SIZE - 1][1]}.{rows[PAGE_SIZE - 1][0]}" if has_more else None
    )


def require_session(session_id: str) -> SqlProgram[SessionRow]:
    """Return the session of this id. Raises `BadRequest` where there is none."""
    session = yield from load_session(session_id)
    if session is None:
        raise BadRequest(f"sessionId: there is no session {session_id!r}; `quintain session list` shows them")
    return session

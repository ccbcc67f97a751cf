"""Workers' leases: registration, renewal, drain requests, and what is forgotten."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from types import MappingProxyType

from quintain.contracts.fleet import SetUser, UserRights
from quintain.contracts.ledger import CallKey, DrainState, Heartbeat, LeaseRenewed, Register
from quintain.contracts.session import RegisteredWorker, WorkerList
from quintain.contracts.values import shorten
from quintain.errors import BadRequest, ForbiddenTarget, Unauthorized
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.ledger.targets import RunningCounts, free_slots_of_others, record_served_targets
from quintain_metadata.store.base import ForEach, Lookup, SqlProgram, execute

#: The rank of each drain state in the ledger: a late message never lowers it.
DRAIN_RANKS = {drain: rank for rank, drain in enumerate(DrainState)}

_DRAINS_BY_RANK = tuple(DrainState)


#: Where nobody counts the calls that run.
NONE_RUNNING: RunningCounts = MappingProxyType({})

#: The user of connections that name none.
DEFAULT_USER = "guest"


def drain_from_rank(rank: int) -> DrainState:
    """Return the drain state of this rank."""
    return _DRAINS_BY_RANK[rank]


def list_workers(now: int) -> SqlProgram[WorkerList]:
    """Return all workers with a valid lease, and those that were asked to drain, sorted by id."""
    running_rows = yield from execute(
        "SELECT incarnation, CAST(sum(running) AS bigint) FROM running_calls GROUP BY incarnation"
    )
    running_by_incarnation = {row[0]: row[1] for row in running_rows}
    rows = yield from execute(
        "SELECT worker_id, incarnation, lease_until, drain FROM worker WHERE lease_until > ? OR drain >= ?"
        " ORDER BY worker_id, incarnation",
        *(now, DRAIN_RANKS[DrainState.REQUESTED]),
    )
    workers = [
        RegisteredWorker(
            worker_id=worker_id,
            incarnation=incarnation,
            lease_until=lease_until,
            drain=drain_from_rank(rank),
            running=running_by_incarnation.get(incarnation, 0),
        )
        for worker_id, incarnation, lease_until, rank in rows
    ]
    return WorkerList(workers=workers, now=now)


def request_drain(now: int, worker_id: str) -> SqlProgram[WorkerList]:
    """Ask every live process with this worker id to drain; returns their states.

    A repeated request has no further effect.

    Raises `BadRequest` where there is no such worker, or none that can drain on request.
    """
    live_workers = [worker for worker in (yield from list_workers(now)).workers if worker.lease_until > now]
    matching = [worker for worker in live_workers if worker.worker_id == worker_id]
    if not matching:
        raise BadRequest(_unknown_worker_message(worker_id, live_workers))
    if all(worker.drain is DrainState.UNSUPPORTED for worker in matching):
        raise BadRequest(
            f"Worker {shorten(worker_id)!r} cannot be drained by a request: it is part of `quintain up` or "
            "`quintain run`; stop that command or its process instead"
        )
    yield from execute(
        "UPDATE worker SET drain = ? WHERE worker_id = ? AND lease_until > ? AND drain = ?",
        *(DRAIN_RANKS[DrainState.REQUESTED], worker_id, now, DRAIN_RANKS[DrainState.SUPPORTED]),
    )
    draining_incarnations = {worker.incarnation for worker in matching if worker.drain is not DrainState.UNSUPPORTED}
    workers = [
        worker for worker in (yield from list_workers(now)).workers if worker.incarnation in draining_incarnations
    ]
    return WorkerList(workers=workers, now=now)


def _unknown_worker_message(worker_id: str, live_workers: list[RegisteredWorker]) -> str:
    ids = dict.fromkeys(worker.worker_id for worker in live_workers if worker.drain is not DrainState.DRAINED)
    hint = f"there are {', '.join(map(shorten, ids))}" if ids else "none is: start one with `quintain serve worker`"
    return f"No worker {shorten(worker_id)!r} is alive; {hint}"


#: A worker is deleted this long after its lease lapsed, in milliseconds: no call of it can still run.
WORKER_RETENTION_MS = 24 * 60 * 60_000


#: How many cancelled calls the answer to one heartbeat lists at most; the others follow with the next.
MAX_CANCELLED_PER_HEARTBEAT = 500


def register_worker(
    now: int,
    registration: Register,
    lease_ms: int = DEFAULT_TIMINGS.lease_ms,
    user: str = DEFAULT_USER,
    running: RunningCounts = NONE_RUNNING,
) -> SqlProgram[LeaseRenewed]:
    """Register a worker of a user of the broker, and its targets, with a lease of ``lease_ms`` milliseconds.

    A registration with ``sole`` ends the leases of earlier processes with the same worker id; those of other users only
    where the user may serve any target. Raises `ForbiddenTarget`.
    """
    is_limited = yield from check_targets(user, (target.name for target in registration.targets))
    for target in registration.targets:
        yield from execute(
            "INSERT INTO target (name, provider, model, judge_target, max_concurrency, registered_at, fingerprint,"
            " timeout_ms, cost_terms, keeps_conversation, position)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, (SELECT coalesce(max(position), 0) + 1 FROM target))"
            " ON CONFLICT (name) DO UPDATE SET provider = excluded.provider,"
            " model = excluded.model, judge_target = excluded.judge_target,"
            " max_concurrency = excluded.max_concurrency, registered_at = excluded.registered_at,"
            " fingerprint = excluded.fingerprint, timeout_ms = excluded.timeout_ms, cost_terms = excluded.cost_terms,"
            " keeps_conversation = excluded.keeps_conversation,"
            " bound_excess = CASE WHEN coalesce(target.cost_terms, '') = coalesce(excluded.cost_terms, '')"
            " THEN target.bound_excess ELSE 0 END",
            *(target.name, target.provider, target.model, target.judge_target, target.max_concurrency, now),
            *(target.fingerprint, None if target.timeout_seconds is None else math.ceil(target.timeout_seconds * 1000)),
            *(None if target.cost is None else target.cost.to_wire().decode(), int(target.keeps_conversation)),
        )
    yield from record_served_targets(now, registration)
    if registration.sole:
        # 0 counts as lapsed even while the expiry of leases is suspended.
        yield from execute(
            "UPDATE worker SET lease_until = 0 WHERE worker_id = ? AND incarnation <> ? AND (user_name = ? OR ? = 0)",
            *(registration.worker_id, registration.incarnation, user, int(is_limited)),
        )
    heartbeat = Heartbeat(
        worker_id=registration.worker_id, incarnation=registration.incarnation, drain=registration.drain
    )
    return (yield from renew_leases(now, [(heartbeat, user)], lease_ms, running))[0]


def renew_leases(
    now: int, of_users: Sequence[tuple[Heartbeat, str]], lease_ms: int, running: RunningCounts = NONE_RUNNING
) -> SqlProgram[list[LeaseRenewed]]:
    """Renew the leases of several workers, one heartbeat of each and its user; ``running`` are the calls that run.

    Each answer lists the cancelled calls that this worker runs, and whether it must drain.
    ``known`` is false for a worker that the ledger does not know, which then registers again. Raises `ForbiddenTarget`
    and `Unauthorized`.
    """
    yield from _check_users(of_users)
    heartbeats = [heartbeat for heartbeat, _ in of_users]
    keys = [(each.incarnation,) for each in heartbeats]
    rows = yield Lookup("SELECT key1 FROM wanted JOIN worker ON worker.incarnation = wanted.key1", keys)
    known = {row[0] for row in rows}
    yield ForEach(
        _RENEW_SQL,
        [
            (each.incarnation, each.worker_id, now + lease_ms, DRAIN_RANKS[each.drain or DrainState.UNSUPPORTED], user)
            for each, user in of_users
        ],
    )
    rows = yield Lookup("SELECT key1, drain FROM wanted JOIN worker ON worker.incarnation = wanted.key1", keys)
    drains = {row[0]: drain_from_rank(row[1]) for row in rows}
    cancelled = yield from _cancelled_calls(keys)
    other_slots = yield from free_slots_of_others(now, [key[0] for key in keys], running)
    return [
        LeaseRenewed(
            now=now,
            known=each.incarnation in known,
            taken_back=cancelled.get(each.incarnation),
            drain=drains[each.incarnation] is DrainState.REQUESTED or None,
            other_slots=other_slots.get(each.incarnation),
        )
        for each in heartbeats
    ]


def live_workers(cutoff: int) -> SqlProgram[set[str]]:
    """Return the workers whose leases end later than this."""
    return {row[0] for row in (yield from execute("SELECT incarnation FROM worker WHERE lease_until > ?", cutoff))}


#: Sets the end of a worker's lease. What was lost with one that is back is counted anew when it is lost again.
_RENEW_SQL = (
    "INSERT INTO worker (incarnation, worker_id, lease_until, drain, user_name) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (incarnation) DO UPDATE SET lease_until = excluded.lease_until, lost_calls = NULL,"
    " drain = CASE WHEN worker.drain > excluded.drain THEN worker.drain ELSE excluded.drain END"
)


def require_user(user_id: str | None) -> str:
    """Return the user of the broker that a worker's message names. Raises `BadRequest` if it names none."""
    if user_id is None:
        raise BadRequest("user_id: the message of a worker must name its user, which the broker checks")
    return user_id


def set_user(now: int, request: SetUser) -> SqlProgram[UserRights]:
    """Record which targets the workers of a user may serve; where they may serve any, the record is deleted.

    Of its workers that serve others, the next heartbeat is refused.
    """
    if request.targets is None:
        yield from execute("DELETE FROM broker_user WHERE name = ?", request.user)
    else:
        yield from execute(
            "INSERT INTO broker_user (name, targets) VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET targets = excluded.targets",
            *(request.user, json.dumps(request.targets)),
        )
    return UserRights(user=request.user, targets=request.targets, now=now)


def check_targets(user: str, names: Iterable[str]) -> SqlProgram[bool]:
    """Return whether a user's workers may serve certain targets only. Raises `ForbiddenTarget` if not these."""
    allowed = (yield from _allowed_targets([user])).get(user)
    if allowed is not None:
        _require_allowed(user, allowed, names)
    return allowed is not None


def _allowed_targets(users: Iterable[str]) -> SqlProgram[dict[str, list[str]]]:
    keys = [(user,) for user in sorted({*users})]
    rows = yield Lookup("SELECT name, targets FROM wanted JOIN broker_user ON broker_user.name = wanted.key1", keys)
    return {row[0]: json.loads(row[1]) for row in rows}


def _require_allowed(user: str, allowed: Sequence[str], names: Iterable[str]) -> None:
    if others := sorted({*names} - {*allowed}):
        raise ForbiddenTarget(
            f"The broker's user {shorten(user)!r} may serve {', '.join(allowed) or 'no target'} and not "
            f"{shorten(others[0])}: use another user, or allow it with `quintain broker add-user --only`"
        )


def _check_users(of_users: Sequence[tuple[Heartbeat, str]]) -> SqlProgram[None]:
    """Hold heartbeats against what their users' workers may serve, and the workers that they are of."""
    allowed = yield from _allowed_targets(user for _, user in of_users)
    limited = {beat.incarnation: (beat, user) for beat, user in of_users if user in allowed}
    keys = [(incarnation,) for incarnation in limited]
    rows = yield Lookup("SELECT incarnation, user_name FROM wanted JOIN worker ON incarnation = wanted.key1", keys)
    if any(row[1] != limited[row[0]][1] for row in rows):
        raise Unauthorized("This worker is another user's of the broker")
    served = yield Lookup("SELECT incarnation, target FROM wanted JOIN served_target ON incarnation = key1", keys)
    for beat, user in limited.values():
        names = [row[1] for row in served if row[0] == beat.incarnation]
        _require_allowed(user, allowed[user], names)


def _cancelled_calls(incarnations: Sequence[tuple[str]]) -> SqlProgram[dict[str, list[CallKey]]]:
    """Return the cancelled calls that these workers run, `MAX_CANCELLED_PER_HEARTBEAT` of each at most."""
    rows = yield Lookup(
        "SELECT incarnation, cancelled_at, session_id, request_id FROM wanted JOIN call"
        " ON call.incarnation = wanted.key1 WHERE state = 'running' AND cancelled_at IS NOT NULL",
        incarnations,
    )
    calls: dict[str, list[CallKey]] = {}
    for incarnation, _, session_id, request_id in sorted(set(map(tuple, rows))):
        of_worker = calls.setdefault(incarnation, [])
        if len(of_worker) < MAX_CANCELLED_PER_HEARTBEAT:
            of_worker.append(CallKey(session_id=session_id, request_id=request_id))
    return calls


def delete_forgotten(now: int) -> SqlProgram[None]:
    """Delete workers whose leases lapsed long ago, what they served, and what was learned of quotas as long ago."""
    for condition in ("worker WHERE lease_until", "quota_state WHERE saved_at"):
        yield from execute(f"DELETE FROM {condition} <= ?", now - WORKER_RETENTION_MS)
    yield from execute("DELETE FROM served_target WHERE incarnation NOT IN (SELECT incarnation FROM worker)")

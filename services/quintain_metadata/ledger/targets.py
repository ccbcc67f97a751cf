"""Registered targets: their limits, running calls and pauses, and which worker serves them with which fingerprint."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from quintain.contracts.fleet import RegisteredTarget, TargetList
from quintain.contracts.ledger import DrainState, Register
from quintain.contracts.money import CostTerms
from quintain.contracts.session import MAX_PAUSE_SECONDS, PauseTarget, ResumeTarget, TargetPause
from quintain.contracts.values import shorten
from quintain.errors import UnknownTarget
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.store.base import Lookup, SqlProgram, execute, fetch_one


@dataclasses.dataclass(frozen=True, slots=True)
class RouteRequest:
    """The target that a request names, the field that named it, and the targets that the session may call."""

    target: str
    field_name: str
    is_registered: bool
    available_targets: list[str]


def unknown_target(route: RouteRequest) -> UnknownTarget:
    """Return the fault that lists the available targets, in the wording of AgentV."""
    return UnknownTarget(
        f"Unknown {route.field_name} '{shorten(route.target)}'. Available: {', '.join(route.available_targets)}",
        available_targets=route.available_targets,
    )


MAX_PAUSE_MS = MAX_PAUSE_SECONDS * 1000

#: A provider that asks for no longer delays only the call that it refused, in seconds.
MIN_PAUSE_SECONDS = DEFAULT_TIMINGS.shared_pause_seconds

#: Pauses a target that has no quota, and shortens no pause: until when, the target, until when.
PAUSE_TARGET_SQL = (
    "UPDATE target SET paused_until = ? WHERE name = ? AND paused_until < ? AND NOT EXISTS (SELECT 1 FROM served_target"
    " WHERE served_target.target = target.name AND quota_id IS NOT NULL)"
)


def extend_pause(now: int, target: str, duration_ms: int) -> SqlProgram[int | None]:
    """Pause a target for ``duration_ms`` from now, at most a day; a pause is never shortened.

    Returns the end of the pause, or None where the target is not registered.
    """
    paused_until = now + min(duration_ms, MAX_PAUSE_MS)
    row = yield from fetch_one(
        "UPDATE target SET paused_until = CASE WHEN paused_until > ? THEN paused_until ELSE ? END WHERE name = ?"
        " RETURNING paused_until",
        *(paused_until, paused_until, target),
    )
    return None if row is None else row[0]


def list_targets(now: int) -> SqlProgram[TargetList]:
    """Return every registered target with its limit, running calls and pause, sorted by name."""
    running_rows = yield from execute("SELECT target, CAST(sum(running) AS bigint) FROM running_calls GROUP BY target")
    running_by_target = {row[0]: row[1] for row in running_rows}
    served = yield from live_served_targets(now)
    different_since = yield from differences(now, served)
    rows = yield from execute("SELECT name, provider, model, max_concurrency, paused_until FROM target ORDER BY name")
    targets = [
        RegisteredTarget(
            name=name,
            provider=provider,
            model=model,
            max_concurrency=max_concurrency,
            running=running_by_target.get(name, 0),
            paused_until=paused_until if paused_until > now else None,
            workers_by_fingerprint=_workers_by_fingerprint(served.get(name, ())) or None,
            different_since=different_since.get(name),
        )
        for name, provider, model, max_concurrency, paused_until in rows
    ]
    return TargetList(targets=targets, now=now)


def _workers_by_fingerprint(served: Iterable[WorkerFingerprint]) -> dict[str, list[str]]:
    workers: dict[str, list[str]] = {}
    for one in served:
        if one.fingerprint is not None:
            workers.setdefault(one.fingerprint, []).append(one.worker_id)
    return {fingerprint: sorted(ids) for fingerprint, ids in workers.items()}


def pause_target(now: int, request: PauseTarget) -> SqlProgram[TargetPause]:
    """Pause a target until the later end of its provider's pause and this one. Raises `UnknownTarget`."""
    paused_until = yield from extend_pause(now, request.target, math.ceil(request.for_seconds * 1000))
    if paused_until is None:
        raise (yield from _unknown_target_fault(request.target))
    return TargetPause(target=request.target, paused_until=paused_until, now=now)


def resume_target(now: int, request: ResumeTarget) -> SqlProgram[TargetPause]:
    """End a target's pause, including its provider's, which reports it again if needed. Raises `UnknownTarget`.

    Sessions with a limit in money may call it again, too, where a try of it has cost more than its bound.
    """
    sql = "UPDATE target SET paused_until = 0, bound_excess = 0 WHERE name = ? RETURNING 1"
    if (yield from fetch_one(sql, request.target)) is None:
        raise (yield from _unknown_target_fault(request.target))
    return TargetPause(target=request.target, now=now)


def target_limits() -> SqlProgram[dict[str, tuple[int, int]]]:
    """Return of all registered targets how many calls may run, and when their pauses end."""
    rows = yield from execute("SELECT name, max_concurrency, paused_until FROM target")
    return {row[0]: (row[1], row[2]) for row in rows}


def running_calls() -> SqlProgram[list[tuple[str, str, str, str, str, int]]]:
    """Return all running calls: session, request, attempt, target, worker and deadline."""
    rows = yield from execute(
        "SELECT session_id, request_id, attempt_id, target, incarnation, deadline FROM call WHERE state = 'running'"
    )
    return [(row[0], row[1], row[2], row[3], row[4], row[5]) for row in rows]


def target_names() -> SqlProgram[list[str]]:
    """Return the names of all registered targets, in the order of registration."""
    rows = yield from execute("SELECT name FROM target ORDER BY position, name")
    return [row[0] for row in rows]


def _unknown_target_fault(target: str) -> SqlProgram[UnknownTarget]:
    return unknown_target(
        RouteRequest(target, "target", is_registered=False, available_targets=(yield from target_names()))
    )


#: How long the pause between two runs of one worker may be, in milliseconds: Kubernetes waits for 5 minutes at most.
RESTART_MS = 5 * 60_000


#: The rank of the first drain state in which a worker takes no more calls.
DRAINING_RANK = list(DrainState).index(DrainState.DRAINING)


class WorkerFingerprint(NamedTuple):
    """A target as one live worker serves it, since a time in milliseconds since the epoch."""

    target: str
    worker_id: str
    fingerprint: str | None
    since: int


def record_served_targets(now: int, registration: Register) -> SqlProgram[None]:
    """Store what a worker's registration says; the time stays where the fingerprint does."""
    for card in registration.targets:
        quota = card.quota
        yield from execute(
            "INSERT INTO served_target (incarnation, target, fingerprint, since, group_slots, quota_id, quota_name,"
            " quota_terms, cost_terms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (incarnation, target) DO UPDATE SET fingerprint = excluded.fingerprint,"
            " group_slots = excluded.group_slots, quota_id = excluded.quota_id, quota_name = excluded.quota_name,"
            " quota_terms = excluded.quota_terms, cost_terms = excluded.cost_terms,"
            " since = CASE WHEN COALESCE(served_target.fingerprint, '') = COALESCE(excluded.fingerprint, '')"
            " THEN served_target.since ELSE excluded.since END",
            *(registration.incarnation, card.name, card.fingerprint, now, card.slots),
            *((None, None, None) if quota is None else (quota.id, quota.name, quota.terms.to_wire().decode())),
            None if card.cost is None else card.cost.to_wire().decode(),
        )


def group_slots(now: int) -> SqlProgram[dict[str, int]]:
    """Return the targets that live workers serve, each with the fewest slots that one of them has."""
    rows = yield from execute(
        "SELECT target, min(group_slots) FROM served_target JOIN worker USING (incarnation) WHERE lease_until > ?"
        " GROUP BY target",
        now,
    )
    return {row[0]: row[1] for row in rows}


def quota_names(now: int) -> SqlProgram[dict[str, str]]:
    """Return the targets that live workers serve with a quota, each with the quota's name."""
    rows = yield from execute(
        "SELECT target, quota_name FROM served_target JOIN worker USING (incarnation)"
        " WHERE lease_until > ? AND quota_name IS NOT NULL ORDER BY since",
        now,
    )
    return {row[0]: row[1] for row in rows}


def target_costs(now: int) -> SqlProgram[dict[str, CostTerms]]:
    """Return what calls of the targets that live workers serve can cost at most, as the latest one says."""
    rows = yield from execute(
        "SELECT target, cost_terms FROM served_target JOIN worker USING (incarnation)"
        " WHERE lease_until > ? AND cost_terms IS NOT NULL ORDER BY since",
        now,
    )
    return {row[0]: CostTerms.from_wire(row[1].encode()) for row in rows}


def target_timeouts() -> SqlProgram[dict[str, float]]:
    """Return the targets whose calls have a time limit of their own, in seconds."""
    rows = yield from execute("SELECT name, timeout_ms FROM target WHERE timeout_ms IS NOT NULL")
    return {row[0]: row[1] / 1000 for row in rows}


def one_question_targets(among: Collection[str]) -> SqlProgram[list[str]]:
    """Return those of these targets that keep no history, in the order of their names."""
    rows = yield from execute("SELECT name FROM target WHERE keeps_conversation = 0 ORDER BY name")
    return [row[0] for row in rows if row[0] in among]


#: How many calls of a target run at a worker, by target and worker.
RunningCounts = Mapping[tuple[str, str], int]


def free_slots_of_others(
    now: int, incarnations: Sequence[str], running: RunningCounts
) -> SqlProgram[dict[str, dict[str, int]]]:
    """Return, for each of these workers, the free slots of its targets in other live workers, where there are any.

    They are no more than the target's own limit has room for.
    """
    rows = yield Lookup(
        ", own AS (SELECT DISTINCT target FROM served_target WHERE incarnation IN (SELECT key1 FROM wanted))"
        " SELECT served_target.target, served_target.incarnation, group_slots, max_concurrency, drain < ? AND"
        " paused_until <= ? FROM own JOIN served_target USING (target) JOIN worker USING (incarnation)"
        " JOIN target ON target.name = served_target.target WHERE lease_until > ?",
        [(incarnation,) for incarnation in incarnations],
        (DRAINING_RANK, now, now),
    )
    free, limits = dict[str, dict[str, int]](), dict[str, int]()
    for target, incarnation, slots, limit, takes_calls in rows:
        left = max(0, int(slots) - running.get((target, incarnation), 0))
        free.setdefault(target, {})[incarnation] = left if takes_calls else 0
        limits[target] = int(limit)
    found: dict[str, dict[str, int]] = {}
    for target, of_workers in free.items():
        total = sum(of_workers.values())
        room = limits[target] - sum(running.get((target, incarnation), 0) for incarnation in of_workers)
        for incarnation in of_workers.keys() & {*incarnations}:
            if (others := min(total - of_workers[incarnation], room)) > 0:
                found.setdefault(incarnation, {})[target] = others
    return found


def live_served_targets(now: int) -> SqlProgram[dict[str, list[WorkerFingerprint]]]:
    """Return, by target, what workers with a valid lease serve; the one that changed last comes first."""
    rows = yield from execute(
        "SELECT target, worker_id, fingerprint, since FROM served_target JOIN worker USING (incarnation)"
        " WHERE lease_until > ? ORDER BY target, since DESC, incarnation",
        now,
    )
    by_target: dict[str, list[WorkerFingerprint]] = {}
    for row in rows:
        by_target.setdefault(row[0], []).append(WorkerFingerprint(*row))
    return by_target


def count_workers(since: int) -> SqlProgram[dict[str, int]]:
    """Return, by target, how many workers have a lease until ``since`` or later, in milliseconds since the epoch."""
    rows = yield from execute(
        "SELECT target, count(*) FROM served_target JOIN worker USING (incarnation) WHERE lease_until >= ?"
        " GROUP BY target",
        since,
    )
    return {row[0]: row[1] for row in rows}


def count_last_workers(lease_ms: int) -> SqlProgram[dict[str, int]]:
    """Return, by target, how many workers were live when a lease was last renewed."""
    row = yield from fetch_one("SELECT max(lease_until) FROM worker")
    return {} if row is None or row[0] is None else (yield from count_workers(row[0] - lease_ms))


def current_fingerprints(live: Mapping[str, Sequence[WorkerFingerprint]]) -> SqlProgram[dict[str, str | None]]:
    """Return every registered target, in the order of registration, with the fingerprint of the live worker that
    changed last.

    Where no worker is live it is that of the last registration.
    """
    rows = yield from execute("SELECT name, fingerprint FROM target ORDER BY position, name")
    return {name: live[name][0].fingerprint if name in live else last for name, last in rows}


def differences(now: int, live: Mapping[str, Sequence[WorkerFingerprint]]) -> SqlProgram[dict[str, int]]:
    """Return, for the targets whose live workers serve them with different fingerprints, since when they do.

    Of a worker that reports no fingerprint, nothing is known. A worker that starts again within `RESTART_MS` goes on
    with what its predecessor served.
    """
    fingerprints = {target: {one.fingerprint for one in served} - {None} for target, served in live.items()}
    first_seen = {(target, one): now for target, found in fingerprints.items() if len(found) > 1 for one in found}
    if not first_seen:
        return {}
    # Latest first: each row may only continue what later ones began.
    rows = yield from execute(
        "SELECT target, fingerprint, since, lease_until FROM served_target JOIN worker USING (incarnation)"
        " ORDER BY lease_until DESC"
    )
    for target, fingerprint, since, lease_until in rows:
        first = first_seen.get((target, fingerprint))
        if first is not None and lease_until >= first - RESTART_MS:
            first_seen[target, fingerprint] = min(first, since)
    # Of a target's fingerprints, the second oldest is the one with which the difference began.
    return {
        target: sorted(first_seen[target, one] for one in fingerprints[target])[1]
        for target in dict.fromkeys(target for target, _ in first_seen)
    }

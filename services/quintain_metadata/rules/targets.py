"""Registered targets: their names, limits, running calls and pauses, for operators and for heartbeats."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from quintain.contracts.fleet import RegisteredTarget, TargetList
from quintain.contracts.session import (
    MAX_PAUSE_SECONDS,
    PauseTarget,
    ResumeTarget,
    TargetPause,
)
from quintain.contracts.values import shorten
from quintain.errors import UnknownTarget
from quintain_metadata.ledger.base import (
    CapacityCheck,
    Moment,
    Row,
    SqlProgram,
    Statement,
    execute,
    fetch_one,
    lock_on,
)
from quintain_metadata.rules.served_targets import WorkerFingerprint, differences, live_served_targets


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


def paused_targets(now: int) -> SqlProgram[dict[str, int]]:
    """Return the paused targets and the end of each pause, in milliseconds since the epoch."""
    rows = yield from execute("SELECT name, paused_until FROM target WHERE paused_until > ? ORDER BY name", now)
    return {row[0]: row[1] for row in rows}


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


def free_capacity(moment: Moment, target: str) -> SqlProgram[int | None]:
    """Return how many more calls of the target may run now: none while it is paused; None where it is not registered.

    The calls of workers whose leases have lapsed are not counted. The counts are maintained by triggers on ``call``.
    """
    return _capacity_of((yield _capacity_query(moment, target)))


def lock_and_check_full(moment: Moment, target: str) -> SqlProgram[bool]:
    """Lock a target until the operation ends; returns whether no further call of it may run now."""
    return _capacity_of((yield CapacityCheck(lock_on("target", target), _capacity_query(moment, target)))) == 0


def _capacity_query(moment: Moment, target: str) -> Statement:
    return Statement(
        "SELECT CASE WHEN paused_until > ? THEN 0 ELSE max_concurrency - (SELECT coalesce(sum(running), 0)"
        " FROM running_calls JOIN worker USING (incarnation)"
        " WHERE running_calls.target = target.name AND worker.lease_until > ?) END FROM target WHERE name = ?",
        (moment.now, moment.lease_expiry_cutoff, target),
    )


def _capacity_of(rows: list[Row]) -> int | None:
    return max(0, int(rows[0][0])) if rows else None


def pause_target(now: int, request: PauseTarget) -> SqlProgram[TargetPause]:
    """Pause a target until the later end of its provider's pause and this one. Raises `UnknownTarget`."""
    paused_until = yield from extend_pause(now, request.target, math.ceil(request.for_seconds * 1000))
    if paused_until is None:
        raise (yield from _unknown_target_fault(request.target))
    return TargetPause(target=request.target, paused_until=paused_until, now=now)


def resume_target(now: int, request: ResumeTarget) -> SqlProgram[TargetPause]:
    """End a target's pause, including its provider's, which reports it again if needed. Raises `UnknownTarget`."""
    if (yield from fetch_one("UPDATE target SET paused_until = 0 WHERE name = ? RETURNING 1", request.target)) is None:
        raise (yield from _unknown_target_fault(request.target))
    return TargetPause(target=request.target, now=now)


def target_names() -> SqlProgram[list[str]]:
    """Return the names of all registered targets, in the order of registration."""
    rows = yield from execute("SELECT name FROM target ORDER BY position, name")
    return [row[0] for row in rows]


def _unknown_target_fault(target: str) -> SqlProgram[UnknownTarget]:
    return unknown_target(
        RouteRequest(target, "target", is_registered=False, available_targets=(yield from target_names()))
    )

"""Reads the state of the whole fleet from the ledger, and finds what changed between two readings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quintain.contracts.fleet import (
    MAX_FLEET_SESSIONS,
    FleetChanged,
    FleetSession,
    FleetState,
    RegisteredTarget,
    SessionChanged,
    SessionEvent,
    TargetChanged,
    TargetEvent,
    WorkerChanged,
    WorkerEvent,
)
from quintain.contracts.ledger import DrainState
from quintain.contracts.message import Message
from quintain.contracts.session import RegisteredWorker, SessionState
from quintain_metadata.ledger.base import SqlProgram, execute, fetch_one
from quintain_metadata.rules import leases, targets

#: What is told of a worker that reaches a drain state.
_DRAIN_EVENTS = {DrainState.DRAINING: WorkerEvent.DRAINING, DrainState.DRAINED: WorkerEvent.DRAINED}


def read_fleet(now: int) -> SqlProgram[FleetState]:
    """Return every target, the live workers and the newest open sessions. Calls are counted by indexes only."""
    registered = yield from targets.list_targets(now)
    listed = yield from leases.list_workers(now)
    rows = yield from execute(
        "SELECT id, label, parent_id, default_target, used, max_calls, state FROM session WHERE state <> ?"
        " AND (expires_at IS NULL OR expires_at > ?) ORDER BY created_at DESC, id DESC LIMIT ?",
        *(SessionState.CLOSED, now, MAX_FLEET_SESSIONS),
    )
    count = yield from fetch_one(
        "SELECT count(*) FROM session WHERE state <> ? AND (expires_at IS NULL OR expires_at > ?)",
        *(SessionState.CLOSED, now),
    )
    assert count is not None
    return FleetState(
        targets=registered.targets,
        workers=[worker for worker in listed.workers if worker.lease_until > now],
        sessions=[
            FleetSession(
                session_id=row[0],
                label=row[1],
                parent_id=row[2],
                default_target=row[3],
                call_count=row[4],
                max_calls=row[5],
                state=SessionState(row[6]),
            )
            for row in rows
        ],
        more_sessions=max(0, count[0] - len(rows)),
        now=now,
    )


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """An event on ``quintain.events``: its routing key, the AMQP type and the body."""

    key: str
    type: str
    body: Message


def find_changes(before: FleetState, after: FleetState) -> FleetChanged:
    """Return the rows that differ between two readings; the service, the interval and the calls are left empty."""
    old_workers = {worker.incarnation: _without_lease(worker) for worker in before.workers}
    old_targets = {target.name: target for target in before.targets}
    old_sessions = {session.session_id: session for session in before.sessions}
    live = {worker.incarnation for worker in after.workers}
    sessions = {session.session_id for session in after.sessions}
    return FleetChanged(
        service="",
        now=after.now,
        interval_ms=0,
        targets=[target for target in after.targets if old_targets.get(target.name) != target],
        workers=[worker for worker in after.workers if old_workers.get(worker.incarnation) != _without_lease(worker)],
        lost_workers=[incarnation for incarnation in old_workers if incarnation not in live],
        sessions=[session for session in after.sessions if old_sessions.get(session.session_id) != session],
        # A session that newer ones have pushed out of the reading has not ended.
        ended_sessions=[] if after.more_sessions else [one for one in old_sessions if one not in sessions],
    )


def find_events(before: FleetState, after: FleetState, changed: FleetChanged) -> Iterator[FleetEvent]:
    """Yield the event of each target, worker and session whose state is another one than before."""
    yield from _target_events(before, changed, after.now)
    yield from _worker_events(before, changed, after.now)
    yield from _session_events(before, changed, after.now)


def _target_events(before: FleetState, changed: FleetChanged, now: int) -> Iterator[FleetEvent]:
    old = {target.name: target for target in before.targets}
    for target in changed.targets:
        if (event := _target_event(old.get(target.name), target)) is not None:
            body = TargetChanged(event=event, target=target, now=now)
            yield FleetEvent(f"target.{target.name}.{event}", "target", body)


def _worker_events(before: FleetState, changed: FleetChanged, now: int) -> Iterator[FleetEvent]:
    old = {worker.incarnation: worker for worker in before.workers}
    for worker in changed.workers:
        if (event := _worker_event(old.get(worker.incarnation), worker)) is not None:
            yield _worker_changed(event, worker, now)
    for incarnation in changed.lost_workers:
        if old[incarnation].drain is not DrainState.DRAINED:
            yield _worker_changed(WorkerEvent.LOST, old[incarnation], now)


def _session_events(before: FleetState, changed: FleetChanged, now: int) -> Iterator[FleetEvent]:
    old = {session.session_id: session for session in before.sessions}
    for session in changed.sessions:
        if (event := _session_event(old.get(session.session_id), session)) is not None:
            yield _session_changed(event, session, now)
    for session_id in changed.ended_sessions:
        yield _session_changed(SessionEvent.ENDED, old[session_id], now)


def _without_lease(worker: RegisteredWorker) -> RegisteredWorker:
    """The worker without the end of its lease, which every heartbeat moves."""
    return worker.model_copy(update={"lease_until": 0})


def _target_event(before: RegisteredTarget | None, after: RegisteredTarget) -> TargetEvent | None:
    if after.paused_until is not None:
        is_paused_before = before is not None and before.paused_until is not None
        return None if is_paused_before else TargetEvent.PAUSED
    if before is None:
        return TargetEvent.REGISTERED
    return None if before.paused_until is None else TargetEvent.RESUMED


def _worker_event(before: RegisteredWorker | None, after: RegisteredWorker) -> WorkerEvent | None:
    if before is None:
        return WorkerEvent.REGISTERED
    return None if before.drain is after.drain else _DRAIN_EVENTS.get(after.drain)


def _session_event(before: FleetSession | None, after: FleetSession) -> SessionEvent | None:
    if _is_spent(after) and not (before is not None and _is_spent(before)):
        return SessionEvent.SPENT
    if before is None:
        return SessionEvent.OPENED
    if before.state is after.state:
        return None
    return SessionEvent.PAUSED if after.state is SessionState.PAUSED else SessionEvent.RESUMED


def _is_spent(session: FleetSession) -> bool:
    return session.call_count >= session.max_calls


def _worker_changed(event: WorkerEvent, worker: RegisteredWorker, now: int) -> FleetEvent:
    body = WorkerChanged(event=event, worker=worker, now=now)
    # A worker's id may have dots, which separate the words of a routing key.
    return FleetEvent(f"worker.{worker.worker_id[:MAX_KEY_ID]}.{event}", "worker", body)


def _session_changed(event: SessionEvent, session: FleetSession, now: int) -> FleetEvent:
    body = SessionChanged(event=event, session=session, now=now)
    return FleetEvent(f"session.{session.session_id[:MAX_KEY_ID]}.{event}", "session", body)


#: So many characters of an id stand in a routing key, which has 255 bytes at most.
MAX_KEY_ID = 50

"""Finds what changed in the fleet between two readings of the ledger, and publishes it on ``quintain.events``.

Every half second one task, that no call waits for, publishes what became of calls and what changed in the ledger since
its last reading. The ledger is read so often only while somebody listens, which the broker tells: a message that no
queue is bound for comes back. Events are transient, and one that cannot be published is dropped and counted. Decision
17 has the reasons.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from quintain.bus.base import Bus, Envelope
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
from quintain.contracts.money import to_dollars
from quintain.contracts.session import CostUsage, RegisteredWorker, SessionState, is_at
from quintain.errors import BudgetUnavailable, BusError, Fault, Unroutable
from quintain.rpc.server import log_defect
from quintain.runtime.concurrency import cancel_and_wait
from quintain.topology import CONSUMED_QUEUES, EVENTS, FLEET_KEY, backlog_queue, target_queue
from quintain_metadata.ledger import leases, targets
from quintain_metadata.metrics import CallCounter
from quintain_metadata.store.base import Ledger, SqlProgram, execute, fetch_one

#: What is told of a worker that reaches a drain state.
_DRAIN_EVENTS = {DrainState.DRAINING: WorkerEvent.DRAINING, DrainState.DRAINED: WorkerEvent.DRAINED}


def read_fleet(now: int) -> SqlProgram[FleetState]:
    """Return every target, the live workers and the newest open sessions. Calls are counted by indexes only."""
    registered = yield from targets.list_targets(now)
    listed = yield from leases.list_workers(now)
    rows = yield from execute(
        "SELECT id, label, parent_id, default_target, used, max_calls, state, max_cost, warn_at, cost_spent, cost_held,"
        " cost_reserved, cost_excess, cost_unknown FROM session WHERE state <> ?"
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
                max_cost_usd=None if row[7] is None else to_dollars(row[7]),
                warn_at=None if row[8] is None else row[8] / 1_000_000,
                cost=_cost_of(*row[9:]) if row[7] is not None or any(row[9:]) else None,
            )
            for row in rows
        ],
        more_sessions=max(0, count[0] - len(rows)),
        now=now,
    )


def _cost_of(spent: int, held: int, reserved: int, excess: int, unknown: int) -> CostUsage:
    return CostUsage(
        spent_usd=to_dollars(spent),
        held_usd=to_dollars(held),
        reserved_usd=to_dollars(reserved),
        excess_usd=to_dollars(excess),
        unknown=unknown,
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
        earlier = old.get(session.session_id)
        if (event := _session_event(earlier, session)) is not None:
            yield _session_changed(event, session, now)
        if _is_warned(session) and not (earlier is not None and _is_warned(earlier)):
            yield _session_changed(SessionEvent.WARNED, session, now)
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


def _is_warned(session: FleetSession) -> bool:
    limit, cost = session.max_cost_usd, session.cost
    return limit is not None and cost is not None and is_at(cost, limit, session.warn_at)


def _worker_changed(event: WorkerEvent, worker: RegisteredWorker, now: int) -> FleetEvent:
    body = WorkerChanged(event=event, worker=worker, now=now)
    # A worker's id may have dots, which separate the words of a routing key.
    return FleetEvent(f"worker.{worker.worker_id[:MAX_KEY_ID]}.{event}", "worker", body)


def _session_changed(event: SessionEvent, session: FleetSession, now: int) -> FleetEvent:
    body = SessionChanged(event=event, session=session, now=now)
    return FleetEvent(f"session.{session.session_id[:MAX_KEY_ID]}.{event}", "session", body)


#: So many characters of an id stand in a routing key, which has 255 bytes at most.
MAX_KEY_ID = 50


log = logging.getLogger(__name__)

#: How often events are published, in seconds.
INTERVAL_SECONDS = 0.5

#: How often the ledger is read while nobody listens to the fleet: who listens to single events hears them so late.
UNHEARD_SECONDS = 5.0

#: Readings of the ledger take at most this part of the time. What one takes is the shortest of the last few: a longer
#: one has waited for something else, and a machine with much else to do would make all pages old.
READING_SHARE, LAST_READINGS = 1 / 50, 5

#: How many targets' queues are counted in one interval; the others have their turn in the next ones.
MAX_COUNTED_QUEUES = 50

#: How many events of one interval are published at most, besides the one of the whole fleet.
MAX_EVENTS = 200

#: An event that the broker has not taken after this time is dropped, in seconds.
PUBLISH_SECONDS = 2.0


class FleetEvents:
    """Publishes the events of one metadata service."""

    def __init__(self, bus: Bus, ledger: Ledger, call_counter: CallCounter, service_id: str) -> None:
        self._bus, self._ledger, self._call_counter, self._service_id = bus, ledger, call_counter, service_id
        self._last: FleetState | None = None
        self._published_at = time.monotonic()
        self._is_heard = False
        self._lost_events = 0
        self._next_reading_at = -math.inf
        self._reading_seconds: deque[float] = deque(maxlen=LAST_READINGS)
        self._next_queue = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to publish."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="fleet events")

    async def stop(self) -> None:
        """Stop; what was not published is lost."""
        await cancel_and_wait(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            try:
                await self._publish_changes()
            except (BudgetUnavailable, BusError, Fault) as error:
                log.debug("No events for now: %s", error.message)
            except Exception as error:
                # Nothing may end the task, or the fleet would look as if nothing happened any more.
                log_defect(error, "publishing events")

    async def _publish_changes(self) -> None:
        before = self._last
        after = await self._read() or before
        changed = FleetChanged(service="", now=0, interval_ms=0)
        if before is not None and after is not None:
            changed = find_changes(before, after)
        self._last = after
        now = time.monotonic()
        event = changed.model_copy(
            update={
                "service": self._service_id,
                "now": await self._ledger.now(),
                "interval_ms": int((now - self._published_at) * 1000),
                "calls": self._call_counter.take(),
                "lost_events": self._lost_events,
                **await self._count_queues(),
            }
        )
        self._published_at = now
        is_heard = await self._publish(FleetEvent(FLEET_KEY, FLEET_KEY, event))
        if is_heard and not self._is_heard:
            self._next_reading_at = -math.inf
        self._is_heard = is_heard
        if before is not None and after is not None:
            events = list(find_events(before, after, changed))
            self._lost_events += max(0, len(events) - MAX_EVENTS)
            await asyncio.gather(*(self._publish(each) for each in events[:MAX_EVENTS]))

    async def _read(self) -> FleetState | None:
        """Read the ledger if it is time to."""
        started_at = time.monotonic()
        if started_at < self._next_reading_at:
            return None
        self._next_reading_at = started_at + UNHEARD_SECONDS
        state = await self._ledger.transact(lambda moment: read_fleet(moment.now))
        ended_at = time.monotonic()
        self._reading_seconds.append(ended_at - started_at)
        self._next_reading_at = ended_at + pause_seconds(self._reading_seconds, is_heard=self._is_heard)
        return state

    async def _count_queues(self) -> dict[str, dict[str, int]]:
        """Return what waits in the queues of the targets whose turn it is, and the consumers of these and our own.

        Other users have no right to ask the broker for it. Nothing is counted while nobody listens.
        """
        if self._last is None or not self._is_heard:
            return {}
        turn = _turn([target.name for target in self._last.targets], self._next_queue)
        self._next_queue += len(turn)
        of_targets = (queue(name) for name in turn for queue in (target_queue, backlog_queue))
        counts = await self._bus.count([*CONSUMED_QUEUES, *of_targets])
        queued = {
            name: counts[queue].messages + counts[backlog].messages
            for name in turn
            if (queue := target_queue(name).name) in counts and (backlog := backlog_queue(name).name) in counts
        }
        return {"queued": queued, "consumers": {name: count.consumers for name, count in counts.items()}}

    async def _publish(self, event: FleetEvent) -> bool:
        """Publish an event; returns whether a queue is bound for it."""
        envelope = Envelope(body=event.body.to_wire(), type=event.type, persistent=False)
        try:
            await self._bus.publish(EVENTS, event.key, envelope, timeout_seconds=PUBLISH_SECONDS)
        except Unroutable:
            return False
        except BusError:
            self._lost_events += 1
        return True


def pause_seconds(last_readings: Iterable[float], *, is_heard: bool) -> float:
    """The pause after a reading; what the last ones took is in seconds."""
    return max(min(last_readings) / READING_SHARE, 0 if is_heard else UNHEARD_SECONDS)


def _turn(names: Sequence[str], start: int) -> list[str]:
    """The next names of a list that is read in a circle, at most `MAX_COUNTED_QUEUES`."""
    return [names[(start + offset) % len(names)] for offset in range(min(len(names), MAX_COUNTED_QUEUES))]

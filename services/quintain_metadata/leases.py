"""Workers' leases: registration, renewal, drain requests, and the sweep that ends overdue calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quintain.contracts.ledger import CallKey, DrainState, Heartbeat, LeaseRenewed, Register
from quintain.contracts.session import RegisteredWorker, WorkerList
from quintain.contracts.values import shorten
from quintain.errors import BadRequest
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata import attempts, call_counter, call_rows, session_rows
from quintain_metadata.lifecycle import CallState, LifecycleEvent, transition
from quintain_metadata.session_rows import SessionRow
from quintain_metadata.sessions import FAMILY_CTE, IS_NOT_COMMITTED
from quintain_metadata.store import Moment, SqlProgram, SqlValue, execute, values_table
from quintain_metadata.targets import (
    delete_served_targets_of_forgotten_workers,
    extend_pause,
    free_slots_of_others,
    paused_targets,
    record_served_targets,
)

#: How long after its deadline a running call ends whose holder lives, in milliseconds: its attempt has ended, and its
#: settle was lost with its queue.
LOST_SETTLE_MS = 60_000

#: The rank of each drain state in the ledger: a late message never lowers it.
DRAIN_RANKS = {drain: rank for rank, drain in enumerate(DrainState)}

_DRAINS_BY_RANK = tuple(DrainState)


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


#: How many calls one sweep ends at most, so that it does not block the writer for long.
MAX_SWEPT_CALLS = 500

#: A worker is deleted this long after its lease lapsed, in milliseconds: no call of it can still run.
WORKER_RETENTION_MS = 24 * 60 * 60_000


#: How many cancelled calls the answer to one heartbeat lists at most; the others follow with the next.
MAX_CANCELLED_PER_HEARTBEAT = 500

#: How many leases one statement renews.
LEASES_PER_STATEMENT = (64, 16, 4, 1)


def register_worker(
    now: int, registration: Register, lease_ms: int = DEFAULT_TIMINGS.lease_ms
) -> SqlProgram[LeaseRenewed]:
    """Register a worker and its targets, with a lease of ``lease_ms`` milliseconds.

    A registration with ``sole`` ends the leases of earlier processes with the same worker id.
    """
    for target in registration.targets:
        yield from execute(
            "INSERT INTO target (name, provider, model, judge_target, max_concurrency, registered_at, fingerprint,"
            " position) VALUES (?, ?, ?, ?, ?, ?, ?, (SELECT coalesce(max(position), 0) + 1 FROM target))"
            " ON CONFLICT (name) DO UPDATE SET provider = excluded.provider,"
            " model = excluded.model, judge_target = excluded.judge_target,"
            " max_concurrency = excluded.max_concurrency, registered_at = excluded.registered_at,"
            " fingerprint = excluded.fingerprint",
            *(target.name, target.provider, target.model, target.judge_target, target.max_concurrency, now),
            target.fingerprint,
        )
    yield from record_served_targets(now, registration)
    if registration.sole:
        # 0 counts as lapsed even while the expiry of leases is suspended.
        yield from execute(
            "UPDATE worker SET lease_until = 0 WHERE worker_id = ? AND incarnation <> ?",
            registration.worker_id,
            registration.incarnation,
        )
    heartbeat = Heartbeat(
        worker_id=registration.worker_id, incarnation=registration.incarnation, drain=registration.drain
    )
    return (yield from renew_lease(now, heartbeat, lease_ms))


def renew_lease(now: int, heartbeat: Heartbeat, lease_ms: int = DEFAULT_TIMINGS.lease_ms) -> SqlProgram[LeaseRenewed]:
    """Renew one worker's lease, as `renew_leases` does."""
    return (yield from renew_leases(now, [heartbeat], lease_ms))[0]


def renew_leases(now: int, heartbeats: Sequence[Heartbeat], lease_ms: int) -> SqlProgram[list[LeaseRenewed]]:
    """Renew the leases of several workers, one heartbeat of each, and apply the pauses that they report.

    Each answer lists the paused targets, the cancelled calls that this worker runs, and whether it must drain.
    ``known`` is false for a worker that the ledger does not know, which then registers again.
    """
    for target, duration_ms in sorted(pause for each in heartbeats for pause in (each.pauses or {}).items()):
        yield from extend_pause(now, target, duration_ms)
    known, drains, cancelled = set[str](), dict[str, DrainState](), dict[str, list[CallKey]]()
    other_slots: dict[str, dict[str, int]] = {}
    # Sorted, so that two services lock the rows of the same workers in one order.
    for page in _pages(sorted(heartbeats, key=lambda each: each.incarnation)):
        incarnations = [each.incarnation for each in page]
        wanted = f"{values_table(incarnations)} AS wanted JOIN worker ON worker.incarnation = wanted.column1"
        known.update(row[0] for row in (yield from execute(f"SELECT column1 FROM {wanted}", *incarnations)))
        drains |= yield from _extend_leases(now + lease_ms, page)
        cancelled |= yield from _cancelled_calls(incarnations)
        other_slots |= yield from free_slots_of_others(now, incarnations)
    paused = (yield from paused_targets(now)) or None
    return [
        LeaseRenewed(
            now=now,
            known=each.incarnation in known,
            paused=paused,
            taken_back=cancelled.get(each.incarnation),
            drain=drains[each.incarnation] is DrainState.REQUESTED or None,
            other_slots=other_slots.get(each.incarnation),
        )
        for each in heartbeats
    ]


def _extend_leases(lease_until: int, heartbeats: Sequence[Heartbeat]) -> SqlProgram[dict[str, DrainState]]:
    """Set the end of these workers' leases; returns the drain state of each, by incarnation.

    What was lost with one that is back is counted anew when it is lost again.
    """
    values: list[SqlValue] = []
    for each in heartbeats:
        rank = DRAIN_RANKS[each.drain or DrainState.UNSUPPORTED]
        values += [each.incarnation, each.worker_id, lease_until, rank]
    drains = yield from execute(
        "INSERT INTO worker (incarnation, worker_id, lease_until, drain)"
        f" VALUES {', '.join(['(?, ?, ?, ?)'] * len(heartbeats))}"
        " ON CONFLICT (incarnation) DO UPDATE SET lease_until = excluded.lease_until, lost_calls = NULL,"
        " drain = CASE WHEN worker.drain > excluded.drain THEN worker.drain ELSE excluded.drain END"
        " RETURNING incarnation, drain",
        *values,
    )
    return {incarnation: drain_from_rank(rank) for incarnation, rank in drains}


def _cancelled_calls(incarnations: Sequence[str]) -> SqlProgram[dict[str, list[CallKey]]]:
    """Return the cancelled calls that these workers run, `MAX_CANCELLED_PER_HEARTBEAT` of each at most."""
    rows = yield from execute(
        f"SELECT incarnation, session_id, request_id FROM {values_table(incarnations)} AS wanted"
        " JOIN call ON call.incarnation = wanted.column1 WHERE state = 'running' AND cancelled_at IS NOT NULL"
        " ORDER BY cancelled_at, session_id, request_id LIMIT ?",
        *incarnations,
        MAX_CANCELLED_PER_HEARTBEAT * len(incarnations),
    )
    calls: dict[str, list[CallKey]] = {}
    for incarnation, session_id, request_id in rows:
        of_worker = calls.setdefault(incarnation, [])
        if len(of_worker) < MAX_CANCELLED_PER_HEARTBEAT:
            of_worker.append(CallKey(session_id=session_id, request_id=request_id))
    return calls


def _pages(heartbeats: list[Heartbeat]) -> Iterator[list[Heartbeat]]:
    """Split a list into pages of few different lengths, so that there are few different statements."""
    while heartbeats:
        size = next(size for size in LEASES_PER_STATEMENT if size <= len(heartbeats))
        yield heartbeats[:size]
        heartbeats = heartbeats[size:]


def sweep(moment: Moment) -> SqlProgram[int]:
    """End the overdue calls and delete expired replies and workers; returns how many calls were overdue.

    A reservation past its deadline is released: it provably reached no provider. A running call past its deadline
    becomes in doubt once its holder's lease has lapsed, or after `LOST_SETTLE_MS`: a call that may have reached a
    provider is never refunded by a timeout. What an expired child session reserved is given back to its parent.
    """
    expired = yield from execute(
        "SELECT id FROM session WHERE reserved > 0 AND expires_at <= ? ORDER BY id LIMIT ?",
        *(moment.now, MAX_SWEPT_CALLS),
    )
    for (session_id,) in expired:
        yield from call_counter.release_reserved(session_id)
    overdue = yield from execute(
        "SELECT call.session_id, call.request_id FROM call LEFT JOIN worker USING (incarnation)"
        " WHERE call.state IN ('reserved', 'running') AND call.deadline <= ?"
        " AND (call.state = 'reserved' OR call.deadline <= ? OR worker.lease_until IS NULL OR worker.lease_until <= ?)"
        " ORDER BY call.state LIMIT ?",
        *(moment.now, moment.now - LOST_SETTLE_MS, moment.lease_expiry_cutoff, MAX_SWEPT_CALLS),
    )
    for session_id, request_id in overdue:
        yield from _end_overdue(moment, session_id, request_id)
    yield from execute("DELETE FROM reply WHERE expires_at <= ?", moment.now)
    yield from execute("DELETE FROM worker WHERE lease_until <= ?", moment.now - WORKER_RETENTION_MS)
    yield from delete_served_targets_of_forgotten_workers()
    yield from execute(
        "DELETE FROM running_calls WHERE running = 0 AND incarnation NOT IN (SELECT incarnation FROM worker)"
    )
    return len(overdue)


def end_lost_calls(moment: Moment, session: SessionRow) -> SqlProgram[None]:
    """Mark the running calls of a session that is closed, and of its descendants, as in doubt whose workers are gone.

    No attempt can take them over. At most `MAX_SWEPT_CALLS`: the sweep ends the others at their deadlines.
    """
    lost = yield from execute(
        f"{FAMILY_CTE} SELECT call.session_id, call.request_id FROM call LEFT JOIN worker USING (incarnation)"
        f" WHERE call.session_id IN (SELECT id FROM family) AND call.state = 'running' AND {IS_NOT_COMMITTED}"
        " AND (worker.lease_until IS NULL OR worker.lease_until <= ?) LIMIT ?",
        *(session.id, moment.lease_expiry_cutoff, MAX_SWEPT_CALLS),
    )
    for session_id, request_id in sorted((row[0], row[1]) for row in lost):
        call = yield from call_rows.lock_call(session_id, request_id)
        is_running = call is not None and call.state is CallState.RUNNING
        if call is not None and is_running and not (yield from call_rows.is_holder_alive(moment, call)):
            yield from attempts.mark_in_doubt(moment, call)


def _end_overdue(moment: Moment, session_id: str, request_id: str) -> SqlProgram[None]:
    """End an overdue call, if it still is overdue: its state may have changed since the query."""
    call = yield from call_rows.lock_call(session_id, request_id)
    if call is None or call.deadline > moment.now:
        return
    if call.state is CallState.RESERVED:
        session = yield from session_rows.load_session(session_id)
        assert session is not None
        yield from call_rows.apply_transition(
            moment, session, call, transition(call.state, LifecycleEvent.RELEASED), None
        )
    elif call.state is CallState.RUNNING:
        is_holder_alive = yield from call_rows.is_holder_alive(moment, call)
        if not is_holder_alive or call.deadline <= moment.now - LOST_SETTLE_MS:
            yield from attempts.mark_in_doubt(moment, call, is_holder_alive=is_holder_alive)

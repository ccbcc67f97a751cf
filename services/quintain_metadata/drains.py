"""The workers, as an operator sees them, and the wish that one of them drains: it hears it with its next heartbeat."""

from __future__ import annotations

from quintain.contracts.ledger import Drain
from quintain.contracts.names import shown
from quintain.contracts.operating import RegisteredWorker, WorkerList
from quintain.errors import BadRequest
from quintain_metadata.steps import Steps, run

#: How the ledger counts a worker's drain: the higher number stands, whatever comes late.
RANKS = {drain: rank for rank, drain in enumerate(Drain)}

_DRAINS = tuple(Drain)


def drain_of(rank: int) -> Drain:
    """What the ledger's number says."""
    return _DRAINS[rank]


def registered(now: int) -> Steps[WorkerList]:
    """Every worker that lives, and those that were asked to drain; sorted."""
    counted = yield from run("SELECT incarnation, count(*) FROM call WHERE state = 'running' GROUP BY incarnation")
    running = {row[0]: row[1] for row in counted}
    rows = yield from run(
        "SELECT worker_id, incarnation, lease_until, drain FROM worker WHERE lease_until > ? OR drain >= ?"
        " ORDER BY worker_id, incarnation",
        *(now, RANKS[Drain.ASKED]),
    )
    workers = [
        RegisteredWorker(
            worker_id=worker_id,
            incarnation=incarnation,
            lease_until=lease_until,
            drain=drain_of(rank),
            running=running.get(incarnation, 0),
        )
        for worker_id, incarnation, lease_until, rank in rows
    ]
    return WorkerList(workers=workers, now=now)


def ask(now: int, worker_id: str) -> Steps[WorkerList]:
    """Ask every living process of this id to drain; returns these. Asked again, it says how far they are.

    Raises `BadRequest` where there is none, or none that drains when it is asked.
    """
    living = [one for one in (yield from registered(now)).workers if one.lease_until > now]
    named = [one for one in living if one.worker_id == worker_id]
    if not named:
        raise BadRequest(_nobody(worker_id, living))
    if all(one.drain is Drain.UNABLE for one in named):
        raise BadRequest(
            f"Worker {shown(worker_id)!r} does not drain when it is asked: it is a part of `quintain up` or `quintain "
            "run`, or of an older release; stop that command, or its process, itself"
        )
    yield from run(
        "UPDATE worker SET drain = ? WHERE worker_id = ? AND lease_until > ? AND drain = ?",
        *(RANKS[Drain.ASKED], worker_id, now, RANKS[Drain.ABLE]),
    )
    asked = {one.incarnation for one in named if one.drain is not Drain.UNABLE}
    workers = [one for one in (yield from registered(now)).workers if one.incarnation in asked]
    return WorkerList(workers=workers, now=now)


def _nobody(worker_id: str, living: list[RegisteredWorker]) -> str:
    ids = dict.fromkeys(one.worker_id for one in living if one.drain is not Drain.DRAINED)
    there = f"there are {', '.join(map(shown, ids))}" if ids else "none lives: start one with `quintain serve worker`"
    return f"No worker {shown(worker_id)!r} lives; {there}"

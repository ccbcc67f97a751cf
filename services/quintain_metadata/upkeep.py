"""What the ledger does by itself: workers' leases, known and paused targets, and the sweep of what time has ended."""

from __future__ import annotations

from quintain.contracts.ledger import CallKey, Drain, Heartbeat, LeaseRenewed, Register
from quintain.contracts.operating import LONGEST_PAUSE_SECONDS
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata import records, sessions
from quintain_metadata.drains import RANKS, drain_of
from quintain_metadata.lifecycle import Event, State, transition
from quintain_metadata.records import Moment
from quintain_metadata.steps import Steps, one, run

#: How many calls one sweep moves at most, so that it never holds the writer for long.
SWEEP_MOST = 500

#: A worker whose lease lapsed this long ago is forgotten: no call of its can still be running.
FORGET_MS = 24 * 60 * 60_000

LONGEST_PAUSE_MS = LONGEST_PAUSE_SECONDS * 1000

#: How many cancelled calls one heartbeat names at most; the others come with the next.
TAKEN_BACK_MOST = 500


def register(now: int, ask: Register, lease_ms: int = DEFAULT_TIMINGS.lease_ms) -> Steps[LeaseRenewed]:
    """Begin a worker's lease of so many milliseconds, and know its targets from now on. Where its id is its alone, the
    leases of before end."""
    for card in ask.targets:
        yield from run(
            "INSERT INTO target (name, provider, model, judge_target, max_concurrency, registered_at)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET provider = excluded.provider,"
            " model = excluded.model, judge_target = excluded.judge_target,"
            " max_concurrency = excluded.max_concurrency, registered_at = excluded.registered_at",
            *(card.name, card.provider, card.model, card.judge_target, card.max_concurrency, now),
        )
    if ask.sole:
        # A lease that ended so long ago has lapsed in anybody's eyes, even while nobody's is taken for lapsed.
        yield from run(
            "UPDATE worker SET lease_until = 0 WHERE worker_id = ? AND incarnation <> ?", ask.worker_id, ask.incarnation
        )
    beat = Heartbeat(worker_id=ask.worker_id, incarnation=ask.incarnation, drain=ask.drain)
    return (yield from renew(now, beat, lease_ms))


def renew(now: int, ask: Heartbeat, lease_ms: int = DEFAULT_TIMINGS.lease_ms) -> Steps[LeaseRenewed]:
    """Renew a worker's lease and pause the targets it says; it is told what is paused, which of its calls their callers
    have cancelled, and whether it is to drain. A worker this ledger does not know is told so, and registers again."""
    for target, milliseconds in sorted((ask.pauses or {}).items()):
        yield from pause(now, target, milliseconds)
    known = yield from one("SELECT 1 FROM worker WHERE incarnation = ?", ask.incarnation)
    row = yield from one(
        "INSERT INTO worker (incarnation, worker_id, lease_until, drain) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (incarnation) DO UPDATE SET lease_until = excluded.lease_until,"
        " drain = CASE WHEN worker.drain > excluded.drain THEN worker.drain ELSE excluded.drain END RETURNING drain",
        *(ask.incarnation, ask.worker_id, now + lease_ms, RANKS[ask.drain or Drain.UNABLE]),
    )
    assert row is not None
    return LeaseRenewed(
        now=now,
        known=known is not None,
        paused=(yield from _paused(now)) or None,
        taken_back=(yield from _taken_back(ask.incarnation)) or None,
        drain=drain_of(row[0]) is Drain.ASKED or None,
    )


def pause(now: int, target: str, milliseconds: int) -> Steps[int | None]:
    """Nobody calls this target for so long from now, a day at most; a pause is never made shorter. Returns until
    when, or None where no such target is registered."""
    until = now + min(milliseconds, LONGEST_PAUSE_MS)
    row = yield from one(
        "UPDATE target SET paused_until = CASE WHEN paused_until > ? THEN paused_until ELSE ? END WHERE name = ?"
        " RETURNING paused_until",
        *(until, until, target),
    )
    return None if row is None else row[0]


def _paused(now: int) -> Steps[dict[str, int]]:
    rows = yield from run("SELECT name, paused_until FROM target WHERE paused_until > ? ORDER BY name", now)
    return {row[0]: row[1] for row in rows}


def _taken_back(incarnation: str) -> Steps[list[CallKey]]:
    rows = yield from run(
        "SELECT session_id, request_id FROM call WHERE incarnation = ? AND state = 'running'"
        " AND cancelled_at IS NOT NULL ORDER BY cancelled_at, session_id, request_id LIMIT ?",
        *(incarnation, TAKEN_BACK_MOST),
    )
    return [CallKey(session_id=row[0], request_id=row[1]) for row in rows]


def target_names() -> Steps[list[str]]:
    """Every registered target, sorted."""
    rows = yield from run("SELECT name FROM target ORDER BY name")
    return [row[0] for row in rows]


def target_of(session_id: str, request_id: str) -> Steps[str | None]:
    """The target a call was first resolved to: it stays."""
    row = yield from one(
        "SELECT target FROM call WHERE session_id = ? AND request_id = ? AND target <> ''", session_id, request_id
    )
    return None if row is None else row[0]


def sweep(moment: Moment) -> Steps[int]:
    """End what time has ended; returns how many calls it moved.

    A reservation past its deadline is given back: it provably reached no provider. A running call past its
    deadline is in doubt once its holder's lease has lapsed: nothing that may have reached a provider is
    refunded by a clock.
    """
    overdue = yield from run(
        "SELECT call.session_id, call.request_id FROM call LEFT JOIN worker USING (incarnation)"
        " WHERE call.state IN ('reserved', 'running') AND call.deadline <= ?"
        " AND (call.state = 'reserved' OR worker.lease_until IS NULL OR worker.lease_until <= ?) LIMIT ?",
        *(moment.now, moment.lapsed, SWEEP_MOST),
    )
    for session_id, request_id in overdue:
        yield from _end(moment, session_id, request_id)
    yield from run("DELETE FROM reply WHERE expires_at <= ?", moment.now)
    yield from run("DELETE FROM worker WHERE lease_until <= ?", moment.now - FORGET_MS)
    return len(overdue)


def _end(moment: Moment, session_id: str, request_id: str) -> Steps[None]:
    """End a call that was found overdue, where it still is: somebody may have come between."""
    call = yield from records.hold(session_id, request_id)
    if call is None or call.deadline > moment.now:
        return
    if call.state is State.RESERVED:
        session = yield from sessions.load(session_id)
        assert session is not None
        yield from records.move(moment, session, call, transition(call.state, Event.RELEASED), None)
    elif call.state is State.RUNNING and not (yield from records.holder_alive(moment, call)):
        yield from records.lose(moment, call)

"""Which worker serves which target, with which fingerprint, and since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quintain.contracts.ledger import DrainState, Register
from quintain_metadata.ledger.base import SqlProgram, execute, fetch_one, values_table

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
        yield from execute(
            "INSERT INTO served_target (incarnation, target, fingerprint, since, group_slots)"
            " VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (incarnation, target) DO UPDATE SET fingerprint = excluded.fingerprint,"
            " group_slots = excluded.group_slots,"
            " since = CASE WHEN COALESCE(served_target.fingerprint, '') = COALESCE(excluded.fingerprint, '')"
            " THEN served_target.since ELSE excluded.since END",
            *(registration.incarnation, card.name, card.fingerprint, now, card.slots),
        )


def group_slots(now: int) -> SqlProgram[dict[str, int]]:
    """Return the targets that live workers serve, each with the fewest slots that one of them has."""
    rows = yield from execute(
        "SELECT target, min(group_slots) FROM served_target JOIN worker USING (incarnation) WHERE lease_until > ?"
        " GROUP BY target",
        now,
    )
    return {row[0]: row[1] for row in rows}


#: The workers that serve each target, and the free slots of one of them; parameters: now, now, `DRAINING_RANK`.
_FREE_SLOTS = (
    "CASE WHEN lease_until > ? AND paused_until <= ? AND drain < ? AND group_slots > coalesce(running, 0)"
    " THEN group_slots - coalesce(running, 0) ELSE 0 END"
)
_SERVING_WORKERS = (
    "served_target JOIN worker ON worker.incarnation = served_target.incarnation"
    " JOIN target ON target.name = served_target.target LEFT JOIN running_calls"
    " ON running_calls.target = served_target.target AND running_calls.incarnation = served_target.incarnation"
)


def free_slots_of_others(now: int, incarnations: Sequence[str]) -> SqlProgram[dict[str, dict[str, int]]]:
    """Return, for each of these workers, the free slots of its targets in other live workers, where there are any.

    They are no more than the target's own limit has room for.
    """
    rows = yield from execute(
        f"WITH own AS (SELECT served_target.incarnation, served_target.target, {_FREE_SLOTS} AS slots"
        f" FROM {_SERVING_WORKERS} WHERE served_target.incarnation IN"
        f" (SELECT column1 FROM {values_table(incarnations)} AS wanted)),"
        f" total AS (SELECT served_target.target, sum({_FREE_SLOTS}) AS slots, max(max_concurrency)"
        " - (SELECT coalesce(sum(running), 0) FROM running_calls JOIN worker USING (incarnation)"
        f" WHERE target = served_target.target AND lease_until > ?) AS room FROM {_SERVING_WORKERS}"
        " WHERE served_target.target IN (SELECT target FROM own) GROUP BY served_target.target)"
        " SELECT incarnation, own.target, total.slots - own.slots, room"
        " FROM own JOIN total ON total.target = own.target",
        *(now, now, DRAINING_RANK),
        *incarnations,
        *(now, now, DRAINING_RANK, now),
    )
    slots: dict[str, dict[str, int]] = {}
    for incarnation, target, others, room in rows:
        if (count := min(int(others), int(room))) > 0:
            slots.setdefault(incarnation, {})[target] = count
    return slots


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


def delete_served_targets_of_forgotten_workers() -> SqlProgram[None]:
    """Delete what workers served that the ledger does not know any more."""
    yield from execute("DELETE FROM served_target WHERE incarnation NOT IN (SELECT incarnation FROM worker)")

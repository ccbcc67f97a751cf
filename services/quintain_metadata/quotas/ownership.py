"""Which metadata service owns which quota, where several share a ledger: a row with a lease and what its owner knows.

The owner decides all admits of its quota, and others forward theirs to its queue. A lapsed lease lets another service
take the quota, together with the locks of its targets. An admit of the former owner is decided before that, so that
its grant is among the running calls that are read, or after that, and finds that it owns nothing (`calls.run_batch`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from quintain.timings import Timings
from quintain_metadata.quotas.quota_rows import RunningCall, read_running
from quintain_metadata.store.base import AdvisoryLock, ForEach, Ledger, Moment, SqlProgram, execute, fetch_one


class Known(NamedTuple):
    """What an owner knows of its quota: for the next owner, and for who asks another service; both as JSON."""

    state: str
    figures: str


class TakenQuota(NamedTuple):
    """A quota that was taken: what its last owner knew, how many seconds ago, and the calls that run.

    ``state`` is None where it had no owner before.
    """

    state: str | None
    seconds: float
    running: list[RunningCall]


class _Row(NamedTuple):
    owner: str
    lease_until: int
    figures: str | None


@dataclass(slots=True)
class OwnershipChange:
    """What a renewal changed: the quotas that another service owns by now, and those that were taken."""

    lost: set[str] = field(default_factory=set)
    taken: dict[str, TakenQuota] = field(default_factory=dict)


class QuotaOwners:
    """The owners of the quotas on one ledger.

    ``key`` is the routing key of this service's own queue. While that is not reachable, the leases of its quotas lapse.
    """

    def __init__(self, ledger: Ledger, key: str, timings: Timings, is_reachable: Callable[[], bool]) -> None:
        self._ledger, self.key, self._lease_ms = ledger, key, int(timings.gap_seconds * 1000)
        self._is_reachable = is_reachable
        self._owners: dict[str, str] = {}
        #: What the owners of the others say of them.
        self.figures: dict[str, str] = {}

    def is_own(self, quota_id: str) -> bool:
        """Whether this service owns the quota, as far as it knows."""
        return self._owners.get(quota_id) == self.key

    def others(self) -> set[str]:
        """The keys of the other services that own quotas."""
        return set(self._owners.values()) - {self.key}

    def key_of(self, quota_id: str) -> str | None:
        """The key of the service that owns the quota; None where that is not known."""
        return self._owners.get(quota_id)

    def disown(self, quota_id: str) -> None:
        """Note that another service owns the quota, and which one is not known yet."""
        self._owners.pop(quota_id, None)

    async def renew(self, quotas: Mapping[str, Collection[str]], known: Mapping[str, Known]) -> OwnershipChange:
        """Renew the leases of this service's quotas, and take those whose leases have lapsed.

        ``quotas`` are the quotas with their targets, ``known`` those that this service owns.
        """
        owned = [quota_id for quota_id, owner in self._owners.items() if owner == self.key]
        if not self._is_reachable():
            quotas = known = {}
        rows, now = await self._ledger.transact(
            partial(renew_quotas, key=self.key, known=known, lease_ms=self._lease_ms)
        )
        lapsed = {
            quota_id: targets
            for quota_id, targets in quotas.items()
            if quota_id not in rows or (rows[quota_id].lease_until <= now and rows[quota_id].owner != self.key)
        }
        change = OwnershipChange()
        if lapsed:
            # In a transaction of its own: after an outage each service first renews what it has.
            change.taken = await self._ledger.transact(
                partial(take_quotas, key=self.key, quotas=lapsed, lease_ms=self._lease_ms)
            )
        self._owners = {quota_id: row.owner for quota_id, row in rows.items() if quota_id not in lapsed}
        self._owners |= dict.fromkeys(change.taken, self.key)
        self.figures = {quota_id: row.figures for quota_id, row in rows.items() if row.figures is not None}
        change.lost = {quota_id for quota_id in owned if not self.is_own(quota_id)}
        return change

    async def release(self, known: Mapping[str, Known]) -> None:
        """Let the others take this service's quotas at once."""
        await self._ledger.transact(partial(renew_quotas, key=self.key, known=known, lease_ms=0))


def renew_quotas(
    moment: Moment, key: str, known: Mapping[str, Known], lease_ms: int
) -> SqlProgram[tuple[dict[str, _Row], int]]:
    """Renew the leases of one service's quotas, and return who owns which quota, and the time."""
    yield ForEach(
        "UPDATE quota_owner SET lease_until = ?, saved_at = ?, state = ?, figures = ? WHERE quota_id = ? AND owner = ?",
        [
            (moment.now + lease_ms, moment.now, each.state, each.figures, quota_id, key)
            for quota_id, each in sorted(known.items())
        ],
    )
    rows = yield from execute("SELECT quota_id, owner, lease_until, figures FROM quota_owner")
    return {row[0]: _Row(*row[1:]) for row in rows}, moment.now


def take_quotas(
    moment: Moment, key: str, quotas: Mapping[str, Collection[str]], lease_ms: int
) -> SqlProgram[dict[str, TakenQuota]]:
    """Take those of these quotas that nobody owns now, each given with its targets."""
    targets = {(target,) for names in quotas.values() for target in names}
    yield AdvisoryLock({"target": sorted(targets)})
    taken = dict[str, TakenQuota]()
    for quota_id in sorted(quotas):
        row = yield from fetch_one(
            "INSERT INTO quota_owner (quota_id, owner, lease_until, saved_at) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (quota_id) DO UPDATE SET owner = excluded.owner, lease_until = excluded.lease_until"
            " WHERE quota_owner.lease_until <= ? RETURNING state, saved_at",
            *(quota_id, key, moment.now + lease_ms, moment.now, moment.now),
        )
        if row is not None:
            running = yield from read_running(quotas[quota_id])
            is_new = row[1] == moment.now
            taken[quota_id] = TakenQuota(None if is_new else row[0] or "{}", (moment.now - row[1]) / 1000, running)
    return taken

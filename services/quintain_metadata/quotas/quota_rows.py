"""Quotas in the ledger: what live workers register of them, what an administrator set, and the calls that use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from quintain.contracts.fleet import QuotaCut, QuotaSettings, QuotaState, SetQuota
from quintain.contracts.quota import IMPLIED_ID_PREFIX, MAX_IN_FLIGHT, QuotaTerms
from quintain.contracts.values import shorten
from quintain.errors import BadRequest
from quintain_metadata.quotas.governor import QuotaFigures, smallest_terms
from quintain_metadata.store.base import ForEach, Lookup, Moment, SqlProgram, execute, fetch_one


@dataclass(slots=True)
class QuotaRegistration:
    """A quota as live workers register it: its name, its terms, its targets with their own limits, and the workers.

    ``is_implied``: nobody names it, so that its calls in flight are bounded by what its targets allow together.
    """

    name: str
    is_implied: bool = False
    registered: list[QuotaTerms] = field(default_factory=list)
    settings: QuotaSettings | None = None
    targets: dict[str, int] = field(default_factory=dict)
    incarnations: set[str] = field(default_factory=set)

    @property
    def differs(self) -> bool:
        """Whether workers register different terms."""
        return any(terms != self.registered[0] for terms in self.registered)

    @property
    def terms(self) -> QuotaTerms:
        """The terms in force: the smallest that are registered, and in their place what an administrator set."""
        terms, settings = smallest_terms(self.registered), self.settings
        if self.is_implied and self.targets:
            most = min(sum(self.targets.values()), MAX_IN_FLIGHT)
            terms = terms.model_copy(update={"max": most, "start": min(terms.start, most)})
        if settings is None:
            return terms
        most = settings.concurrency or terms.max
        start = most if not terms.adaptive and settings.concurrency else min(terms.start, most)
        return terms.model_copy(
            update={
                "requests_per_minute": settings.requests_per_minute or terms.requests_per_minute,
                "tokens_per_minute": settings.tokens_per_minute or terms.tokens_per_minute,
                "max": most,
                "start": start,
                "min": min(terms.min, most),
            }
        )

    def state(self, now: float, targets: list[str], figures: QuotaFigures) -> QuotaState:
        """Return what the quota of these targets does at present."""

        def milliseconds(until: float | None) -> int | None:
            return None if until is None else max(0, int((until - now) * 1000))

        rate, cut = figures.requests_per_minute, figures.last_cut
        is_out = figures.out_since is not None
        return QuotaState(
            id=figures.quota_id,
            name=self.name,
            targets=targets,
            limit=figures.limit,
            in_flight=figures.in_flight,
            waiting=figures.waiting,
            throttled=figures.throttled,
            requests_per_minute=rate,
            tokens_per_minute=figures.tokens_per_minute,
            paused_ms=milliseconds(figures.paused_until),
            last_cut=None if cut is None else QuotaCut(ago_ms=int((now - cut[0]) * 1000), cause=cut[1].value),
            out_ms=int((now - figures.out_since) * 1000) if is_out and figures.out_since is not None else None,
            out_targets={target: milliseconds(at) or 0 for target, at in figures.out_targets.items()} or None,
            refused=figures.is_refused or None,
            failures=dict(figures.failures) or None,
            estimated_seconds=figures.waiting / rate * 60 if rate and figures.waiting else None,
            differs=self.differs or None,
        )


def read_quotas(moment: Moment) -> SqlProgram[tuple[dict[str, QuotaRegistration], set[str]]]:
    """Return the quotas that live workers register, by id, and the targets that they serve without one.

    A target belongs to the quota that was registered for it last.
    """
    rows = yield from execute(
        "SELECT target, quota_id, quota_name, quota_terms, max_concurrency, incarnation FROM served_target"
        " JOIN worker USING (incarnation) JOIN target ON target.name = served_target.target"
        " WHERE lease_until > ? ORDER BY since DESC, incarnation",
        moment.lease_cutoff,
    )
    quotas, without, of_target = dict[str, QuotaRegistration](), set[str](), dict[str, str]()
    for target, quota_id, name, terms, max_concurrency, incarnation in rows:
        if quota_id is None:
            without.add(target)
            continue
        quota = quotas.setdefault(quota_id, QuotaRegistration(name, quota_id.startswith(IMPLIED_ID_PREFIX)))
        quota.registered.append(QuotaTerms.from_wire(terms))
        quota.incarnations.add(incarnation)
        if of_target.setdefault(target, quota_id) == quota_id:
            quota.targets[target] = max_concurrency
    for quota_id, settings in (yield from execute("SELECT id, settings FROM quota")):
        if quota_id in quotas:
            quotas[quota_id].settings = QuotaSettings.from_wire(settings)
    return quotas, without - of_target.keys()


class SavedQuota(NamedTuple):
    """What was learned of a quota, as JSON, and how many seconds ago."""

    state: str
    seconds: float


def save_quotas(moment: Moment, states: Mapping[str, str]) -> SqlProgram[None]:
    """Save what was learned of quotas, for the next metadata service."""
    yield ForEach(
        "INSERT INTO quota_state (quota_id, saved_at, state) VALUES (?, ?, ?)"
        " ON CONFLICT (quota_id) DO UPDATE SET saved_at = excluded.saved_at, state = excluded.state",
        [(quota_id, moment.now, state) for quota_id, state in states.items()],
    )


def read_saved(moment: Moment, quota_ids: Iterable[str]) -> SqlProgram[dict[str, SavedQuota]]:
    """Return what was saved of these quotas."""
    rows = yield Lookup(
        "SELECT quota_id, state, saved_at FROM wanted JOIN quota_state ON quota_id = wanted.key1",
        [(quota_id,) for quota_id in quota_ids],
    )
    return {row[0]: SavedQuota(row[1], (moment.now - row[2]) / 1000) for row in rows}


def set_quota(moment: Moment, request: SetQuota) -> SqlProgram[QuotaSettings]:
    """Store what an administrator sets of a quota. Raises `BadRequest` where there is none, or several of its name."""
    rows = yield from execute(
        "SELECT DISTINCT quota_id, quota_name FROM served_target WHERE quota_id IS NOT NULL ORDER BY quota_name"
    )
    found = [row for row in rows if row[0] == request.quota] or [row for row in rows if row[1] == request.quota]
    if len(found) != 1:
        known = ", ".join(dict.fromkeys(row[1] for row in rows)) or "none: no worker has registered one"
        several = f"{len(found)} quotas are named so: use an id" if found else f"there are {known}"
        raise BadRequest(f"quota: {shorten(request.quota)!r} is not one quota; {several}")
    quota_id, name = found[0]
    row = yield from fetch_one("SELECT settings FROM quota WHERE id = ?", quota_id)
    before = None if row is None or request.reset else QuotaSettings.from_wire(row[0])
    given = request.model_dump(include={"concurrency", "requests_per_minute", "tokens_per_minute"}, exclude_none=True)
    if not given and not request.reset:
        raise BadRequest("There is nothing to set: name concurrency, requestsPerMinute, tokensPerMinute or reset")
    kept = {} if before is None else before.model_dump(exclude_none=True)
    fields = {**kept, **given, "id": quota_id, "name": name, "reason": request.reason, "now": moment.now}
    settings = QuotaSettings.model_validate(fields)
    yield from execute(
        "INSERT INTO quota (id, settings, set_at) VALUES (?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET settings = excluded.settings, set_at = excluded.set_at",
        *(quota_id, settings.to_wire().decode(), moment.now),
    )
    return settings

"""The places of targets: which calls run, and whether one more may start. No I/O, no clock.

A target runs ``max_concurrency`` calls at most, and none while it is paused. Targets that share a quota also share what
its governor finds of their provider; any other target is a group of its own, which learns nothing. Times are seconds of
any clock that rises.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from quintain.contracts.quota import QuotaTerms, TryOutcome, TryReport
from quintain_metadata.ledger.call_rows import CallKey
from quintain_metadata.quotas.fair_queue import FairQueue
from quintain_metadata.quotas.governor import Quota, QuotaFigures
from quintain_metadata.quotas.limits import Grant

#: What is told of a call that was not sent, and of one of which nothing is known.
NOT_SENT, UNKNOWN = TryReport(outcome=TryOutcome.NOT_SENT), TryReport(outcome=TryOutcome.UNKNOWN)


@dataclass(slots=True, eq=False)
class TargetGroup:
    """The targets of a quota, whose id is its name, or one target without a quota: the calls that wait for them."""

    name: str | None = None
    quota: Quota | None = None
    queue: FairQueue = field(default_factory=FairQueue)
    #: When it is looked at by time alone.
    due_at: float = math.inf


@dataclass(slots=True, eq=False)
class TargetPlaces:
    """A target: how many of its calls may run, how many do, and until when none starts."""

    group: TargetGroup
    limit: float = math.inf
    in_flight: int = 0
    paused_until: float = -math.inf


@dataclass(slots=True, eq=False)
class RunningAttempt:
    """An attempt that has a place: its target, its call, and the worker that runs it.

    ``grant`` is that of its target's ``quota``. ``deadline`` is its call's. ``is_lost``: its worker's lease has lapsed,
    so that others may take its place.
    """

    attempt_id: str
    target: str
    call: CallKey
    incarnation: str
    deadline: float = math.inf
    quota: Quota | None = None
    grant: Grant | None = None
    is_lost: bool = False


class Places:
    """The targets, and the calls that run."""

    def __init__(self) -> None:
        #: The groups of quotas, and the targets, by name; the attempts that have a place, and which of a call has it.
        #: Only this class changes them.
        self.groups: dict[str, TargetGroup] = {}
        self.targets: dict[str, TargetPlaces] = {}
        self.running: dict[str, RunningAttempt] = {}
        self.holders: dict[CallKey, str] = {}
        #: How many calls of a target run at a worker.
        self.at_workers = Counter[tuple[str, str]]()
        #: The groups in which calls may be able to start, and the quotas of which something was learned that is not
        #: saved.
        self.changed: dict[TargetGroup, None] = {}
        self.unsaved: set[str] = set()

    def configure_quota(self, now: float, quota_id: str, terms: QuotaTerms) -> None:
        """Take over a quota's terms, which are new or others, or the key of a worker that is new."""
        group = self.groups.get(quota_id)
        if group is None:
            self.groups[quota_id] = TargetGroup(quota_id, Quota(terms, now))
        else:
            self.quota(quota_id).configure(terms)
            self.changed[group] = None

    def configure_target(self, now: float, name: str, limit: float, paused_until: float) -> None:
        """Take over a target's limit and the end of its pause."""
        target = self.target(name)
        paused_until = paused_until if paused_until > now else -math.inf
        if (target.limit, target.paused_until) != (limit, paused_until):
            target.limit, target.paused_until = limit, paused_until
            self.changed[target.group] = None

    def assign(self, name: str, quota_id: str | None) -> None:
        """Put a target, with the calls that wait for it, under a quota that was configured, or under none."""
        target = self.target(name)
        if quota_id is None and target.group.quota is None:
            return
        group = TargetGroup() if quota_id is None else self.groups[quota_id]
        if group is target.group:
            return
        for waiting in target.group.queue.take_all(name):
            group.queue.add(waiting)
        target.group = group
        self.changed[group] = None

    def forget_learned(self, now: float, quota_id: str, terms: QuotaTerms) -> None:
        """Begin anew with a quota."""
        self.groups[quota_id].quota = Quota(terms, now)

    def targets_of_quotas(self) -> dict[str, list[str]]:
        """Return the targets of each quota that has some, sorted by name."""
        found = dict[str, list[str]]()
        for name in sorted(self.targets):
            if (quota_id := self.targets[name].group.name) is not None:
                found.setdefault(quota_id, []).append(name)
        return found

    def describe(self, now: float) -> list[QuotaFigures]:
        """Return what each quota does at present."""
        return [self.quota(name).describe(now, name, group.queue.by_target) for name, group in self.groups.items()]

    def quota(self, quota_id: str) -> Quota:
        """Return a quota that was configured."""
        quota = self.groups[quota_id].quota
        assert quota is not None, "a group with a name is a quota's"
        return quota

    def target(self, name: str) -> TargetPlaces:
        """Return a target; one that is not registered has no limit."""
        found = self.targets.get(name)
        if found is None:
            found = self.targets[name] = TargetPlaces(TargetGroup())
        return found

    def wait_seconds(self, now: float, name: str) -> float:
        """How long until a call of a target may start; infinite where another one must end first."""
        target = self.target(name)
        if target.in_flight >= target.limit:
            return math.inf
        quota = target.group.quota
        seconds = max(0.0, target.paused_until - now)
        return seconds if quota is None else max(seconds, quota.wait_seconds(now, name))

    def ready_targets(self, now: float, group: TargetGroup) -> set[str]:
        """Return the targets of which a waiting call may start now."""
        return {name for name in group.queue.by_target if self.wait_seconds(now, name) <= 0}

    def throttled_seconds(self, now: float, name: str) -> float | None:
        """How long a target is paused, where its provider's limits hold its calls back; else None."""
        target = self.target(name)
        if target.group.quota is not None:
            return target.group.quota.throttled_seconds(now, name)
        return target.paused_until - now if target.paused_until > now else None

    def is_held(self, call: CallKey) -> bool:
        """Whether an attempt at a call has a place whose worker is not gone."""
        holder = self.holders.get(call)
        return holder is not None and not self.running[holder].is_lost

    def pause(self, name: str, until: float) -> None:
        """Let no call of a target start until then; a pause is not shortened."""
        target = self.target(name)
        target.paused_until = max(target.paused_until, until)

    def start(self, now: float, running: RunningAttempt, *, is_resumed: bool = False) -> None:
        """Give an attempt a place; of one ``is_resumed`` the call runs already, and is only counted."""
        target = self.target(running.target)
        running.quota = target.group.quota
        if running.quota is not None:
            begin = running.quota.resume if is_resumed else running.quota.start
            running.grant = begin(now, running.target)
        former = self.holders.get(running.call)
        if former is not None:
            self.end(now, former, UNKNOWN)
        self._count(target, running, 1)
        if target.group.name is not None:
            self.unsaved.add(target.group.name)
        self.running[running.attempt_id] = running
        self.holders[running.call] = running.attempt_id

    def end(self, now: float, attempt_id: str, report: TryReport) -> RunningAttempt | None:
        """End the place of an attempt, if it has one, and learn from how that ended; returns what it was."""
        running = self.running.pop(attempt_id, None)
        if running is None:
            return None
        del self.holders[running.call]
        if not running.is_lost:
            self._release(now, running, report)
        return running

    def _release(self, now: float, running: RunningAttempt, report: TryReport) -> None:
        target = self.targets[running.target]
        self._count(target, running, -1)
        if running.quota is not None and running.grant is not None:
            running.quota.end(now, running.grant, report)
            if target.group.name is not None:
                self.unsaved.add(target.group.name)
        self.changed[target.group] = None

    def _count(self, target: TargetPlaces, running: RunningAttempt, change: int) -> None:
        target.in_flight += change
        key = running.target, running.incarnation
        self.at_workers[key] += change
        if not self.at_workers[key]:
            del self.at_workers[key]

    def set_live(self, now: float, live: Collection[str]) -> list[CallKey]:
        """Free the places of workers that are gone, and take those of workers that are back.

        Returns the calls that were lost.
        """
        lost = list[CallKey]()
        for running in self.running.values():
            if running.is_lost == (running.incarnation not in live):
                continue
            if running.is_lost:
                running.is_lost = False
                self._count(self.targets[running.target], running, 1)
                if running.quota is not None:
                    running.grant = running.quota.resume(now, running.target)
            else:
                self._release(now, running, UNKNOWN)
                running.is_lost = True
                lost.append(running.call)
        return lost

"""The figures of a fleet: of its targets, workers, budgets, quotas and services, and the sums of the last minutes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import Field

from quintain.contracts.fleet import BUCKET_BASE, CallCounts, QuotaState
from quintain.contracts.message import Message
from quintain.contracts.quota import FailureCause
from quintain.contracts.session import CostUsage, SessionState

#: The provider of targets that hosts lease; they are not called through a queue.
LEASED_PROVIDER = "leased"


class TargetCondition(StrEnum):
    """Whether calls of a target run: ``unserved`` is one that no worker serves now."""

    READY = "ready"
    PAUSED = "paused"
    UNSERVED = "unserved"


class WorkerCondition(StrEnum):
    """How a worker is: a ``silent`` one has its lease and does not answer, a ``lost`` one has no lease any more."""

    LIVE = "live"
    SILENT = "silent"
    DRAINING = "draining"
    LOST = "lost"


class Percentiles(Message):
    """The median and the 95th percentile of durations, in milliseconds, at most a tenth too high."""

    p50: float
    p95: float


class TargetFigures(Message):
    """A target, called through its queue or, with the provider `LEASED_PROVIDER`, leased from hosts.

    ``queued`` and ``workers`` (that serve it, or hosts) are None where they are not known. ``running`` and ``limit``
    are those of the ledger, else the sums of the services that answer. ``wait`` and ``service`` are times in the queue
    and in the provider. They, ``faults``, tokens and cost are those of the last `WINDOW_SECONDS` of the model;
    ``calls_per_minute`` are ended attempts of the last minute. ``paused_until`` is in milliseconds since the epoch.
    ``workers_by_fingerprint`` are the workers' ids by the fingerprint of their configuration, and ``different_ms`` is
    for how long there have been several.
    """

    name: str
    provider: str
    model: str | None = None
    condition: TargetCondition
    paused_until: int | None = None
    queued: int | None = None
    running: int
    limit: int
    workers: int | None = None
    slots: int | None = None
    calls_per_minute: float = 0.0
    wait: Percentiles | None = None
    service: Percentiles | None = None
    faults: dict[str, int] = Field(default_factory=dict)
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    workers_by_fingerprint: dict[str, list[str]] | None = None
    different_ms: int | None = None


class WorkerFigures(Message):
    """A worker process. The fields that are None are not known until it has answered a discovery request.

    ``started_at`` is in milliseconds since the epoch. ``longest_call_ms`` is for how long its oldest call has run, once
    that is a minute.
    """

    worker_id: str
    incarnation: str
    condition: WorkerCondition
    running: int
    longest_call_ms: int | None = None
    slots: int | None = None
    version: str | None = None
    started_at: int | None = None
    targets: list[str] | None = None


class BudgetFigures(Message):
    """A session's budget; ``ends_in_ms`` is when it is spent at the rate of the last minute, None if it is not used.

    ``cost`` is None where nothing is known of its money, and nothing limits that.
    """

    session_id: str
    label: str | None = None
    parent_id: str | None = None
    default_target: str
    used: int
    max_calls: int
    state: SessionState
    max_cost_usd: float | None = None
    cost: CostUsage | None = None
    is_spent: bool
    calls_per_minute: float = 0.0
    ends_in_ms: int | None = None


class QuotaCondition(StrEnum):
    """Whether calls of a quota start: a ``refused`` one's key is not accepted, an ``out`` one's provider fails."""

    OPEN = "open"
    PAUSED = "paused"
    OUT = "out"
    REFUSED = "refused"


class QuotaStatus(Message):
    """What one provider key may use, and why calls wait for it. Times are in milliseconds since the epoch, to a second.

    ``last_cut_cause`` is which limit was lowered at ``last_cut_at``: ``in_flight`` or ``rate``. ``out_targets`` are the
    targets that do not answer, each with the time at which it is tried next. ``reason`` is why one has no answer: its
    URL and what its provider or the system said, and ``cause`` what mends that. ``estimated_seconds`` is how long the
    last waiting call waits.
    ``is_different``: workers name different limits, of which the smallest count.
    """

    id: str
    name: str
    targets: list[str]
    condition: QuotaCondition
    limit: int
    in_flight: int
    waiting: int
    throttled: int
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    estimated_seconds: float | None = None
    paused_until: int | None = None
    last_cut_at: int | None = None
    last_cut_cause: str | None = None
    out_since: int | None = None
    out_targets: dict[str, int] = Field(default_factory=dict)
    reason: str | None = None
    cause: FailureCause | None = None
    is_different: bool = False

    @classmethod
    def of(cls, state: QuotaState, now_ms: int) -> QuotaStatus:
        """The figures of a state that the ledger told at this time of its clock."""

        def at(relative_ms: int | None) -> int | None:
            # To the second: figures that tell the same are to be equal.
            return None if relative_ms is None else round((now_ms + relative_ms) / 1000) * 1000

        cut, failure = state.last_cut, state.failure
        condition = QuotaCondition.OPEN if state.paused_ms is None else QuotaCondition.PAUSED
        if state.out_ms is not None:
            condition = QuotaCondition.OUT
        if state.refused:
            condition = QuotaCondition.REFUSED
        told = dict(state) | {
            "targets": sorted(state.targets),
            "out_targets": {name: at(ms) or now_ms for name, ms in (state.out_targets or {}).items()},
        }
        return cls(
            **told,
            condition=condition,
            paused_until=at(state.paused_ms),
            last_cut_at=None if cut is None else at(-cut.ago_ms),
            last_cut_cause=None if cut is None else cut.cause,
            out_since=None if state.out_ms is None else at(-state.out_ms),
            reason=None if failure is None else failure.words,
            cause=None if failure is None else failure.cause,
            is_different=bool(state.differs),
        )


class ServiceFigures(Message):
    """A process of the fleet that is no worker. ``ledger`` is the kind of a metadata service's store."""

    service: str
    id: str
    version: str
    in_flight: int
    started_at: int
    ledger: str | None = None
    is_silent: bool = False


class FleetFigures(Message):
    """One look at the fleet.

    ``problems`` say what is wrong and what to do about it, ``warnings`` what becomes a problem if it lasts, and
    ``notes`` what could not be determined. ``more_sessions`` counts open sessions that are left out.
    ``calls_per_minute``, ``running`` and ``queued`` are the sums over the targets.
    """

    targets: list[TargetFigures]
    workers: list[WorkerFigures]
    budgets: list[BudgetFigures]
    services: list[ServiceFigures]
    quotas: list[QuotaStatus] = Field(default_factory=list)
    more_sessions: int = 0
    calls_per_minute: float = 0.0
    running: int = 0
    queued: int = 0
    problems: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    @property
    def answering(self) -> int:
        """How many services answer."""
        live = {WorkerCondition.LIVE, WorkerCondition.DRAINING}
        workers = sum(worker.condition in live and worker.version is not None for worker in self.workers)
        return workers + sum(not service.is_silent for service in self.services)

    def conditions(self) -> tuple[frozenset[object], ...]:
        """How targets, workers, budgets, services and quotas are: what changes rarely, and is to be seen at once."""
        return (
            frozenset((target.name, target.condition) for target in self.targets),
            frozenset((worker.incarnation, worker.condition) for worker in self.workers),
            frozenset((budget.session_id, budget.state, budget.is_spent) for budget in self.budgets),
            frozenset((service.id, service.is_silent) for service in self.services),
            frozenset((quota.id, quota.condition) for quota in self.quotas),
        )


#: For how long calls are counted, and how long a slice of that time is, in seconds.
WINDOW_SECONDS, SLICE_SECONDS = 300.0, 10.0

#: The time over which rates are measured, in seconds, and the shortest one that gives a rate.
RATE_SECONDS, MIN_RATE_SECONDS = 60.0, 2.0


@dataclass(slots=True)
class CallSums:
    """The counts of one target over some time."""

    ended: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    wait: Counter[int] = field(default_factory=Counter)
    service: Counter[int] = field(default_factory=Counter)
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def add_counts(self, counts: CallCounts) -> None:
        """Add what an event says."""
        self.ended += sum(counts.outcomes.values())
        self.faults.update(counts.faults)
        self.wait.update(counts.wait)
        self.service.update(counts.service)
        self.input_tokens += counts.input_tokens
        self.output_tokens += counts.output_tokens
        self.cost_usd += counts.cost_usd

    def remove(self, other: CallSums) -> None:
        """Take the counts of an earlier time away, which were added before."""
        self.ended -= other.ended
        for name in ("faults", "wait", "service"):
            counter: Counter[str | int] = getattr(self, name)
            counter.subtract(getattr(other, name))
            for key in [key for key, count in counter.items() if not count]:
                del counter[key]
        self.input_tokens -= other.input_tokens
        self.output_tokens -= other.output_tokens
        # Sums of floats do not come back to 0 by themselves.
        self.cost_usd = max(0.0, self.cost_usd - other.cost_usd) if self.ended else 0.0


class CallWindow:
    """The counts of one target's calls in the last `WINDOW_SECONDS`; times are those of the viewer, in seconds."""

    def __init__(self) -> None:
        self._slices: deque[tuple[float, CallSums]] = deque()
        self._sums = CallSums()

    def add(self, counts: CallCounts, at: float) -> None:
        """Add what an event says that arrived at this time."""
        if not self._slices or at - self._slices[-1][0] >= SLICE_SECONDS:
            self._slices.append((at, CallSums()))
        self._slices[-1][1].add_counts(counts)
        self._sums.add_counts(counts)

    def sums(self, at: float) -> CallSums:
        """Return the sums of the window, and forget what is older. They change with the next event."""
        while self._slices and at - self._slices[0][0] > WINDOW_SECONDS:
            self._sums.remove(self._slices.popleft()[1])
        return self._sums

    def per_minute(self, at: float, watched_seconds: float) -> float:
        """Return the ended attempts per minute, of the last minute or of the time since it is watched."""
        seconds = min(RATE_SECONDS, watched_seconds)
        if seconds < MIN_RATE_SECONDS:
            return 0.0
        ended = 0
        for began_at, sums in reversed(self._slices):
            if at - began_at > seconds + SLICE_SECONDS:
                break
            ended += sums.ended
        return round(ended * 60 / seconds, 1)


class UsageRate:
    """How fast a counter rose in the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, value: int, at: float) -> None:
        """Note the counter's value at this time, in the viewer's seconds."""
        self._samples.append((at, value))
        # The last sample before the minute stays: the minute begins with its value.
        while len(self._samples) > 1 and at - self._samples[1][0] >= RATE_SECONDS:
            self._samples.popleft()

    def per_minute(self, at: float) -> float:
        """Return the rise per minute, 0 while it was watched for too short a time."""
        if not self._samples:
            return 0.0
        began_at, first = self._samples[0]
        seconds = at - began_at
        return 0.0 if seconds < MIN_RATE_SECONDS else max(0, self._samples[-1][1] - first) * 60 / seconds


def percentiles(histogram: Mapping[int, int]) -> Percentiles | None:
    """Return the percentiles of a histogram; None of an empty one."""
    total = sum(histogram.values())
    if not total:
        return None
    return Percentiles(p50=_percentile(histogram, total, 0.5), p95=_percentile(histogram, total, 0.95))


def _percentile(histogram: Mapping[int, int], total: int, share: float) -> float:
    rank, seen, bucket = share * total, 0, 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= rank:
            break
    return round(BUCKET_BASE**bucket, 1)

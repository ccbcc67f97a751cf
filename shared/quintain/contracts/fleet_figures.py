"""The figures of a fleet, which the operation ``fleet`` answers: targets, workers, budgets, quotas and services."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field

from quintain.contracts.fleet import QuotaState
from quintain.contracts.message import Message
from quintain.contracts.quota import FailureCause
from quintain.contracts.service_card import BUCKET_BASE
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
    and in the provider. They, ``faults``, tokens and cost are those of the last five minutes;
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
    """A worker process. The fields that are None are not known until its heartbeat was heard.

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

    ``cost`` is None where nothing is known of its money, and nothing limits that. ``warn_at`` is the part of its limit
    in money at which that is to be told.
    """

    session_id: str
    label: str | None = None
    parent_id: str | None = None
    default_target: str
    used: int
    max_calls: int
    state: SessionState
    max_cost_usd: float | None = None
    warn_at: float | None = None
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

    ``problems`` say what is wrong and what to do about it, ``warnings`` what becomes a problem if it lasts.
    ``more_sessions`` counts open sessions that are left out.
    ``calls_per_minute``, ``running`` and ``queued`` are the sums over the targets. ``now`` is the ledger's clock in
    milliseconds since the epoch.
    """

    targets: list[TargetFigures] = Field(default_factory=list)
    workers: list[WorkerFigures] = Field(default_factory=list)
    budgets: list[BudgetFigures] = Field(default_factory=list)
    services: list[ServiceFigures] = Field(default_factory=list)
    quotas: list[QuotaStatus] = Field(default_factory=list)
    more_sessions: int = 0
    calls_per_minute: float = 0.0
    running: int = 0
    queued: int = 0
    problems: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    now: int = 0

    @property
    def answering(self) -> int:
        """How many services answer."""
        live = {WorkerCondition.LIVE, WorkerCondition.DRAINING}
        workers = sum(worker.condition in live and worker.version is not None for worker in self.workers)
        return workers + sum(not service.is_silent for service in self.services)


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

"""The values of one look at the fleet, as the Fleet page and `quintain status` show them."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from quintain.contracts.message import Message
from quintain.contracts.session import SessionState

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

    ``started_at`` is in milliseconds since the epoch.
    """

    worker_id: str
    incarnation: str
    condition: WorkerCondition
    running: int
    slots: int | None = None
    version: str | None = None
    started_at: int | None = None
    targets: list[str] | None = None


class BudgetFigures(Message):
    """A session's budget; ``ends_in_ms`` is when it is spent at the rate of the last minute, None if it is not used."""

    session_id: str
    label: str | None = None
    parent_id: str | None = None
    default_target: str
    used: int
    max_calls: int
    state: SessionState
    is_spent: bool
    calls_per_minute: float = 0.0
    ends_in_ms: int | None = None


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
        """How targets, workers, budgets and services are: what changes rarely, and is to be seen at once."""
        return (
            frozenset((target.name, target.condition) for target in self.targets),
            frozenset((worker.incarnation, worker.condition) for worker in self.workers),
            frozenset((budget.session_id, budget.state, budget.is_spent) for budget in self.budgets),
            frozenset((service.id, service.is_silent) for service in self.services),
        )

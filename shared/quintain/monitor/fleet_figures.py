"""The values of one look at the fleet, as the Fleet page and `quintain top` show them."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from quintain.contracts.message import Message
from quintain.contracts.session import SessionState


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
    """A target. ``queued``, ``workers`` and ``slots`` are None where they are not known.

    ``wait`` and ``service`` are times in the queue and in the provider. They, ``faults``, tokens and cost are those of
    the last `WINDOW_SECONDS` of the model; ``calls_per_minute`` are ended attempts of the last minute.
    ``paused_until`` is in milliseconds since the epoch.
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


class WorkerFigures(Message):
    """A worker process. ``slots``, ``version`` and ``targets`` are None until it has answered a discovery request."""

    worker_id: str
    incarnation: str
    condition: WorkerCondition
    running: int
    slots: int | None = None
    version: str | None = None
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
    """A process of the fleet that is no worker."""

    service: str
    id: str
    version: str
    in_flight: int
    is_silent: bool = False


class FleetFigures(Message):
    """One look at the fleet.

    ``problems`` say in words what is wrong or not known. ``more_sessions`` counts open sessions that are left out.
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

    def conditions(self) -> tuple[frozenset[object], ...]:
        """How targets, workers, budgets and services are: what changes rarely, and is to be seen at once."""
        return (
            frozenset((target.name, target.condition) for target in self.targets),
            frozenset((worker.incarnation, worker.condition) for worker in self.workers),
            frozenset((budget.session_id, budget.state, budget.is_spent) for budget in self.budgets),
            frozenset((service.id, service.is_silent) for service in self.services),
        )

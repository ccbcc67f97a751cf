"""Messages of discovery, the state of the fleet, and the events that say what changed (``docs/protocol/events.md``).

Times are durations relative to now, because the clocks of different machines differ.

Events are transient and may be lost: who shows a state asks for it whole from time to time. They hold names and
numbers, never a text of a call.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated

from pydantic import Field, FiniteFloat

from quintain.contracts.ledger import Milliseconds
from quintain.contracts.message import Message, StrictMessage
from quintain.contracts.quota import MAX_IN_FLIGHT, MAX_PER_MINUTE, FailureCause, TryFailure
from quintain.contracts.session import CostUsage, RegisteredWorker, SessionState
from quintain.contracts.values import Count, Id, TargetName, Text


class Discover(Message):
    """Request the service cards of all running services."""


class ServedTarget(Message):
    """A target as one service serves it: at most ``slots`` concurrent calls, of which ``in_flight`` are running.

    The target is paused for ``paused_ms`` from now, if that is set.
    """

    name: TargetName
    kind: Text
    slots: Count
    in_flight: Count = 0
    paused_ms: Count | None = None


class ServiceCard(Message):
    """One process of the fleet.

    ``instance`` is random per process. ``heartbeat_age_ms`` is the time since its lease was renewed, for services with
    a lease. ``longest_call_ms`` is for how long its oldest call has run, once that is a minute. ``ledger`` is the kind
    of the metadata service's store. ``problem`` is why a worker's registration or its lease is refused.
    """

    service: Id
    id: Id
    instance: Id
    version: Id
    started_at: Count
    in_flight: Count = 0
    slots: Count | None = None
    targets: list[ServedTarget] = Field(default_factory=list)
    heartbeat_age_ms: Count | None = None
    longest_call_ms: Count | None = None
    broker_reconnects: Count = 0
    ledger: Id | None = None
    problem: Text | None = None


class ListTargets(Message):
    """List the registered targets."""


class RegisteredTarget(Message):
    """A target in the ledger: ``running`` is its number of admitted calls, at most ``max_concurrency``.

    ``workers_by_fingerprint`` are the ids of the live workers that report a fingerprint of their configuration.
    ``different_since`` is the time since when there are several fingerprints; None if there are not.
    """

    name: TargetName
    provider: Text
    model: Text | None = None
    max_concurrency: Count
    running: Count = 0
    paused_until: Count | None = None
    workers_by_fingerprint: dict[str, list[str]] | None = None
    different_since: Count | None = None


class TargetList(Message):
    """The registered targets, sorted; ``now`` is the ledger's clock in milliseconds since the epoch."""

    targets: list[RegisteredTarget]
    now: Count


class ListQuotas(Message):
    """Request what every quota does at present."""


class QuotaCut(Message):
    """When a quota's calls in flight were last lowered, and why."""

    ago_ms: Count
    cause: Text


class QuotaState(Message):
    """What a quota does at present: ``in_flight`` of at most ``limit`` calls run, and ``waiting`` ones wait for it.

    ``throttled`` counts the answers that asked to slow down, since its service owns it. Rates are those in force; None
    is no known one. ``out_ms``: for so long its provider has not answered; ``out_targets`` are the targets that are
    out, each with the time to its next try. ``refused``: the provider refuses the key. ``failures`` are why
    targets had no answer when they were tried last. ``estimated_seconds`` is how long the last of the waiting calls
    waits. ``differs``: workers name different limits, of which the smallest count.
    """

    id: Id
    name: Text
    targets: list[TargetName]
    limit: Count
    in_flight: Count = 0
    waiting: Count = 0
    throttled: Count = 0
    requests_per_minute: FiniteFloat | None = None
    tokens_per_minute: FiniteFloat | None = None
    paused_ms: Count | None = None
    last_cut: QuotaCut | None = None
    out_ms: Count | None = None
    out_targets: dict[TargetName, Count] | None = None
    refused: bool | None = None
    failures: dict[TargetName, TryFailure] | None = None
    estimated_seconds: FiniteFloat | None = None
    differs: bool | None = None

    @property
    def failure(self) -> TryFailure | None:
        """Why its calls wait or are not found: of a target that is out, else of any; None where they go on."""
        out, waits = self.out_targets or {}, self.out_targets or self.refused or self.paused_ms
        found = [
            (target not in out, target, failure)
            for target, failure in (self.failures or {}).items()
            if waits or failure.cause is FailureCause.NOT_FOUND
        ]
        return min(found, default=(True, "", None))[2]


class QuotaList(Message):
    """The quotas of the registered targets, sorted by name; ``now`` is the ledger's clock in ms."""

    quotas: list[QuotaState]
    now: Milliseconds


class SetQuota(StrictMessage):
    """Set what a quota may use, in place of what its workers' configuration says; what is not named stays as it is.

    ``quota`` is its id or its name, ``concurrency`` the most calls in flight. With ``reset``, what was set before goes.
    """

    quota: Text
    concurrency: Annotated[int, Field(ge=1, le=MAX_IN_FLIGHT)] | None = None
    requests_per_minute: Annotated[FiniteFloat, Field(gt=0, le=MAX_PER_MINUTE)] | None = None
    tokens_per_minute: Annotated[FiniteFloat, Field(gt=0, le=MAX_PER_MINUTE)] | None = None
    reset: bool = False
    reason: Annotated[Text, Field(min_length=1, max_length=500)]


class QuotaSettings(Message):
    """What is set of a quota by an administrator; None is what its workers' configuration says."""

    id: Id
    name: Text
    concurrency: int | None = None
    requests_per_minute: FiniteFloat | None = None
    tokens_per_minute: FiniteFloat | None = None
    reason: Text
    now: Milliseconds


class SetUser(StrictMessage):
    """Record which targets the workers of a user of the broker may serve; None is any."""

    user: Annotated[Text, Field(min_length=1, max_length=255)]
    targets: list[TargetName] | None = None


class UserRights(Message):
    """Which targets the workers of a user of the broker may serve; None is any."""

    user: Text
    targets: list[TargetName] | None = None
    now: Milliseconds


#: How many open sessions a fleet's state names at most: the newest.
MAX_FLEET_SESSIONS = 200

#: A histogram of durations: ``n`` holds those of at most `BUCKET_BASE` to the power of ``n`` milliseconds.
Histogram = dict[int, Count]

#: The ratio of the bounds of two neighboring buckets: a percentile is at most a tenth too high.
BUCKET_BASE = 1.1


def bucket_of(milliseconds: float) -> int:
    """Return the number of the histogram bucket of a duration; 0 for those of at most a millisecond."""
    return 0 if milliseconds <= 1 else math.ceil(math.log(milliseconds, BUCKET_BASE))


class GetFleet(Message):
    """Request the state of the whole fleet, as an administrator."""


class FleetSession(Message):
    """A session and how much of its budget is charged, and its money: None where it has none and no limit of it."""

    session_id: Id
    label: Text | None = None
    parent_id: Id | None = None
    default_target: Text
    call_count: Count
    max_calls: Count
    state: SessionState
    max_cost_usd: float | None = None
    warn_at: float | None = None
    cost: CostUsage | None = None


class FleetState(Message):
    """Every registered target, every live worker and the newest open sessions; ``now`` is the ledger's clock in ms.

    ``more_sessions`` counts the open sessions that are left out.
    """

    targets: list[RegisteredTarget]
    workers: list[RegisteredWorker]
    sessions: list[FleetSession]
    more_sessions: Count = 0
    now: Milliseconds


class CallCounts(Message):
    """What became of one target's calls in an interval.

    ``outcomes`` counts settled attempts by their outcome, ``faults`` replies that were errors by their code.
    ``wait`` are the times in the queue and ``service`` those in the provider, of calls with a result. ``cost_usd`` is
    what workers that know a price reported.
    """

    started: Count = 0
    outcomes: dict[str, Count] = Field(default_factory=dict)
    faults: dict[str, Count] = Field(default_factory=dict)
    wait: Histogram = Field(default_factory=dict)
    service: Histogram = Field(default_factory=dict)
    input_tokens: Count = 0
    output_tokens: Count = 0
    cost_usd: Annotated[float, Field(ge=0)] = 0.0


class FleetChanged(Message):
    """What one metadata service saw since its last event: sent every half a second, also when nothing changed.

    ``calls`` counts by target what this service decided and settled. ``targets``, ``workers`` and ``sessions`` are
    those whose state in the ledger is another one, whole; ``lost_workers`` are incarnations that live no more, and
    ``ended_sessions`` ids. ``queued`` are the messages that wait in targets' queues, ``consumers`` those who consume
    these and the metadata services' own queues, by the queue's name. ``lost_events`` counts the events of this service
    that no broker took.
    """

    service: Id
    now: Milliseconds
    interval_ms: Count
    calls: dict[TargetName, CallCounts] = Field(default_factory=dict)
    targets: list[RegisteredTarget] = Field(default_factory=list)
    workers: list[RegisteredWorker] = Field(default_factory=list)
    lost_workers: list[Id] = Field(default_factory=list)
    sessions: list[FleetSession] = Field(default_factory=list)
    ended_sessions: list[Id] = Field(default_factory=list)
    queued: dict[TargetName, Count] = Field(default_factory=dict)
    consumers: dict[Text, Count] = Field(default_factory=dict)
    lost_events: Count = 0


class TargetEvent(StrEnum):
    """What happened to a target."""

    REGISTERED = "registered"
    PAUSED = "paused"
    RESUMED = "resumed"


class WorkerEvent(StrEnum):
    """What happened to a worker: ``lost`` is one whose lease ended before it had drained."""

    REGISTERED = "registered"
    DRAINING = "draining"
    DRAINED = "drained"
    LOST = "lost"


class SessionEvent(StrEnum):
    """What happened to a session: ``spent`` is one that has no calls left, ``ended`` one that is closed or expired.

    ``warned``: the part of its limit in money is spent or held at which it was to be told (``warn_at``).
    """

    OPENED = "opened"
    PAUSED = "paused"
    RESUMED = "resumed"
    SPENT = "spent"
    WARNED = "warned"
    ENDED = "ended"


class TargetChanged(Message):
    """An event of one target, with its state after it."""

    event: TargetEvent
    target: RegisteredTarget
    now: Milliseconds


class WorkerChanged(Message):
    """An event of one worker, with its state after it, or the last known one of a lost worker."""

    event: WorkerEvent
    worker: RegisteredWorker
    now: Milliseconds


class SessionChanged(Message):
    """An event of one session, with its state after it, or the last known one of an ended session."""

    event: SessionEvent
    session: FleetSession
    now: Milliseconds

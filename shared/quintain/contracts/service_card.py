"""The card of a service: who a process is and what it does at present. It travels in the service's heartbeats."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from quintain.contracts.message import Message
from quintain.contracts.values import Count, Id, TargetName, Text


class ServedTarget(Message):
    """A target as one service serves it: at most ``slots`` concurrent calls, of which ``in_flight`` are running."""

    name: TargetName
    kind: Text
    slots: Count
    in_flight: Count = 0


#: A histogram of durations: ``n`` holds those of at most `BUCKET_BASE` to the power of ``n`` milliseconds.
Histogram = dict[int, Count]

#: The ratio of the bounds of two neighboring buckets: a percentile is at most a tenth too high.
BUCKET_BASE = 1.1


def bucket_of(milliseconds: float) -> int:
    """Return the number of the histogram bucket of a duration; 0 for those of at most a millisecond."""
    return 0 if milliseconds <= 1 else math.ceil(math.log(milliseconds, BUCKET_BASE))


class CallCounts(Message):
    """What became of one target's calls in the last five minutes, as one metadata service counted it.

    ``per_minute`` are the attempts that ended in the last minute. ``faults`` counts replies that were errors by their
    code. ``wait`` are the times in the queue and ``service`` those in the provider, of calls with a result.
    ``cost_usd`` is what workers that know a price reported.
    """

    per_minute: Annotated[float, Field(ge=0)] = 0.0
    faults: dict[str, Count] = Field(default_factory=dict)
    wait: Histogram = Field(default_factory=dict)
    service: Histogram = Field(default_factory=dict)
    input_tokens: Count = 0
    output_tokens: Count = 0
    cost_usd: Annotated[float, Field(ge=0)] = 0.0


class ServiceCard(Message):
    """One process of the fleet.

    ``instance`` is random per process. ``heartbeat_age_ms`` is the time since its lease was renewed, for services with
    a lease. ``longest_call_ms`` is for how long its oldest call has run, once that is a minute. ``ledger`` is the kind
    of the metadata service's store. ``problem`` is why a worker's registration or its lease is refused. ``calls`` are
    those that a metadata service counted, by target.
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
    calls: dict[TargetName, CallCounts] = Field(default_factory=dict)

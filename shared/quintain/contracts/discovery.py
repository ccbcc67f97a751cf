"""Messages of service discovery over ``quintain.discovery``, and the list of registered targets.

Times are durations relative to now, because the clocks of different machines differ.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quintain.contracts.message import Message
from quintain.contracts.strings import Id, TargetName, Text

Count = Annotated[int, Field(ge=0)]


class Discover(Message):
    """Who is there?"""


class ServedTarget(Message):
    """A target as one service serves it: ``slots`` at once, ``in_flight`` of them taken. Nobody may call it for
    ``paused_ms`` from now."""

    name: TargetName
    kind: Text
    slots: Count
    in_flight: Count = 0
    paused_ms: Count | None = None


class ServiceCard(Message):
    """One process of the fleet. ``instance`` is random per process; ``heartbeat_age_ms`` is how long ago its lease was
    renewed, where it has one; ``ledger`` is the kind of its store."""

    service: Id
    id: Id
    instance: Id
    version: Id
    started_at: Count
    in_flight: Count = 0
    slots: Count | None = None
    targets: list[ServedTarget] = Field(default_factory=list)
    heartbeat_age_ms: Count | None = None
    broker_reconnects: Count = 0
    ledger: Id | None = None


class ListTargets(Message):
    """Which targets are registered?"""


class RegisteredTarget(Message):
    """A target as the ledger knows it: ``running`` of its calls hold a grant now, ``max_concurrency`` at most."""

    name: TargetName
    provider: Text
    model: Text | None = None
    max_concurrency: Count
    running: Count = 0
    paused_until: Count | None = None


class TargetList(Message):
    """Every registered target, sorted; ``now`` is the ledger's clock in milliseconds since the epoch."""

    targets: list[RegisteredTarget]
    now: Count

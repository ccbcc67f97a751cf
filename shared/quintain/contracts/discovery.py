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
    a lease. ``ledger`` is the kind of the metadata service's store.
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
    broker_reconnects: Count = 0
    ledger: Id | None = None


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

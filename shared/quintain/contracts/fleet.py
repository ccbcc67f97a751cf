"""Messages about targets, quotas and users: what the ledger registers, and what administrators set.

Times are durations relative to now, because the clocks of different machines differ.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, FiniteFloat

from quintain.contracts.ledger import Milliseconds
from quintain.contracts.message import Message, StrictMessage
from quintain.contracts.quota import MAX_IN_FLIGHT, MAX_PER_MINUTE, FailureCause, TryFailure
from quintain.contracts.values import Count, Id, TargetName, Text


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


class GetFleet(Message):
    """Ask for the figures of the whole fleet, as an administrator."""

"""What carries a client's calls to a fleet: the interface between `Client` and `Admin` and the two transports.

`quintain.client.amqp_transport` speaks to a broker, `quintain.client.http_transport` to a gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from quintain.clock import Clock
from quintain.contracts.invoke import Chunk, InvokeRequest, Progress, Result
from quintain.errors import Expired, Fault
from quintain.routes import ReplyT, RequestT, Route

#: A call's deadline where the caller names none, in seconds.
DEFAULT_DEADLINE_SECONDS = 600.0

#: A client waits this much longer than the deadline, so that the fleet's own answer arrives first, in seconds.
REPLY_GRACE_SECONDS = 2.0

#: How long the metadata service may take to answer an operation, in seconds.
OPERATION_TIMEOUT_SECONDS = 30.0

#: Called with each piece of an answer as it comes.
OnChunk = Callable[[Chunk], None]

#: Called every 10 s while a worker is at the call.
OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvokeCall:
    """One invocation, as a transport carries it.

    Without a ``request_id`` the transport or the gateway mints one. ``cancel_with_task``: the call is cancelled in the
    fleet when the task that waits for it is cancelled.
    """

    request: InvokeRequest
    request_id: str | None
    deadline_seconds: float
    on_chunk: OnChunk | None = None
    on_progress: OnProgress | None = None
    cancel_with_task: bool = True


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One item of a batch: its result, or the fault that took its place."""

    result: Result | None
    fault: Fault | None


class Transport(Protocol):
    """Carries the calls of one token. Nothing is sent a second time: only the caller knows whether it may be."""

    @property
    def clock(self) -> Clock:
        """The metadata service's clock, as far as it is known."""

    async def invoke(self, call: InvokeCall) -> Result:
        """Invoke a target. Raises a `Fault`, and a `BusError` where the call could not be carried."""

    async def invoke_batch(self, items: Sequence[InvokeRequest | Fault], *, deadline_seconds: float) -> list[BatchItem]:
        """Invoke all at once; a `Fault` among the items keeps its place and its reservation.

        Raises `BudgetExhausted` where the budget does not suffice for all, and what else `invoke` raises.
        """

    async def call_route(self, route: Route[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float) -> ReplyT:
        """Ask the metadata service.

        Raises the `Fault` it answers with, `NoAnswer` or `BudgetUnavailable` where it does not answer in time, and
        `ConfigError` where this transport has no such operation.
        """

    def cancel_later(self, request_ids: Sequence[str]) -> None:
        """Cancel these calls in the background, as far as the transport can."""

    async def close(self) -> None:
        """Finish the cancellations that are under way: a few seconds at most."""


def expired_fault(deadline_seconds: float) -> Expired:
    """The fault of a call that nobody answered within its deadline."""
    return Expired(f"No answer within {deadline_seconds:.0f} s; whether it was charged, `info` says", charged=True)


def is_uncharged(item: BatchItem) -> bool:
    """Whether an item of a batch was not charged, so that its reservation is to be given back."""
    return item.fault is not None and not item.fault.charged

"""The `Transport` protocol: how `Client` and `Admin` reach a fleet, and what a caller gets before the reply.

`quintain.client.amqp_transport` implements it over a broker, `quintain.client.http_transport` over a gateway.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from quintain.bus.base import Delivery
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.headers import ACCEPT_CHUNKS, ACCEPT_GROUPS, ACCEPT_PROGRESS, CHUNK_TYPE, PROGRESS_TYPE
from quintain.contracts.invoke import Chunk, InvokeRequest, Progress, Result
from quintain.errors import BadRequest, Expired, Fault
from quintain.routes import ReplyT, RequestT, Route
from quintain.timings import Clock

#: Default deadline of a call, in seconds.
DEFAULT_DEADLINE_SECONDS = 600.0

#: How much longer than the deadline a client waits, in seconds, so that the fleet's own `Expired` arrives first.
REPLY_GRACE_SECONDS = 2.0

#: Timeout of an operation of the metadata service, in seconds.
OPERATION_TIMEOUT_SECONDS = 30.0

#: Called with each piece of an answer.
OnChunk = Callable[[Chunk], None]

#: Called every 10 s while a worker runs the call.
OnProgress = Callable[[Progress], None]


class InvokeCall(NamedTuple):
    """The arguments of one invocation, as `Client.send` describes them.

    Without a ``request_id`` the transport or the gateway generates one. ``wait_until`` is in milliseconds since the
    epoch.
    """

    request: InvokeRequest | ApiRequest
    request_id: str | None
    deadline_seconds: float
    on_chunk: OnChunk | None = None
    on_progress: OnProgress | None = None
    cancel_with_task: bool = True
    wait_until: int | None = None


@dataclass(frozen=True, slots=True)
class BatchItem:
    """The outcome of one batch item: either ``result`` or ``fault`` is set.

    Example::

        text = item.result.raw_text if item.result is not None else item.fault.message
    """

    result: Result | None
    fault: Fault | None


class Transport(Protocol):
    """Sends the requests of one token. Only a call whose charge is unknown is sent again, with the same request id."""

    @property
    def clock(self) -> Clock:
        """The metadata service's clock, as far as it is synchronised."""

    async def invoke(self, call: InvokeCall) -> Result:
        """Invoke a target. Raises a `Fault`, or a `BusError` if the request could not be sent."""

    async def invoke_batch(self, items: Sequence[InvokeRequest | Fault], *, deadline_seconds: float) -> list[BatchItem]:
        """Invoke several requests; a `Fault` among the items keeps its place and its reservation.

        Raises `BudgetExhausted` if the budget does not suffice for all, and whatever `invoke` raises.
        """

    async def call_route(self, route: Route[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float) -> ReplyT:
        """Send a request to the metadata service and return its reply.

        Raises the service's `Fault`, `NoAnswer` or `BudgetUnavailable` if it does not answer in time, and `ConfigError`
        if the transport does not offer the operation.
        """

    def cancel_later(self, request_ids: Sequence[str]) -> None:
        """Cancel calls in the background, as far as the transport supports it."""

    async def close(self) -> None:
        """Wait a few seconds for cancellations that are being sent."""


def expired_fault(deadline_seconds: float) -> Expired:
    """Return the fault of a call that got no reply within its deadline."""
    return Expired(
        f"No answer within {deadline_seconds:.0f} s; `info` shows whether it was charged", charge_unknown=True
    )


def may_be_uncharged(item: BatchItem) -> bool:
    """Return whether a batch item was not charged, or perhaps not: its reservation, if it is still one, is released."""
    return item.fault is not None and not item.fault.charged


#: The header that requests chunks or progress messages, and allows them and the reply in a group, by which of the two
#: are wanted.
ACCEPTED: Final = {
    (False, False): ACCEPT_GROUPS,
    (True, False): f"{ACCEPT_CHUNKS}, {ACCEPT_GROUPS}",
    (False, True): f"{ACCEPT_PROGRESS}, {ACCEPT_GROUPS}",
    (True, True): f"{ACCEPT_CHUNKS}, {ACCEPT_PROGRESS}, {ACCEPT_GROUPS}",
}


def dispatch_partial(call: InvokeCall, delivery: Delivery) -> None:
    """Pass a partial message to its callback. One that cannot be decoded is dropped: the complete result follows."""
    with contextlib.suppress(BadRequest):
        if delivery.type == CHUNK_TYPE and call.on_chunk is not None:
            call.on_chunk(Chunk.from_wire(delivery.body))
        elif delivery.type == PROGRESS_TYPE and call.on_progress is not None:
            call.on_progress(Progress.from_wire(delivery.body))

"""Helpers for RPC servers: each request gets one final reply, and is acknowledged once that is confirmed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Iterator, Mapping
from typing import TypeVar

from quintain import logs
from quintain.bus.base import Bus, Delivery, Envelope, HeaderValue
from quintain.contracts.invoke import FaultReply
from quintain.contracts.message import Message
from quintain.contracts.token import public_id
from quintain.errors import BusError, Fault, InternalFault, QueueFull, Unroutable
from quintain.routes import REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.telemetry.semconv import SpanStart
from quintain.telemetry.spans import span_in_trace
from quintain.telemetry.trace_context import TRACEPARENT_HEADER
from quintain.topology import REPLY, Topology

log = logging.getLogger(__name__)

Returned = TypeVar("Returned")

#: The headers of a copy are this large at most: a broker ends the connection over headers that fill a frame (128 KiB).
MAX_HEADER_BYTES = 64 * 1024

#: The library writes numbers with a fraction in 32 bits, and takes no larger one.
MAX_FLOAT = 3.4e38

#: A header of an answer repeats so much of what its caller wrote: a request id is no longer.
MAX_ECHO_LENGTH = 128


async def send_reply(
    bus: Bus, request: Delivery, answer: Message | Fault, headers: Mapping[str, HeaderValue] | None = None
) -> None:
    """Send the final answer to where the request wants it. A client that has gone is no error: its reply queue
    was looked for and is not there."""
    if not request.reply_to:
        log.warning("A request to %s named no reply_to; its answer goes nowhere", request.exchange)
        return
    message = FaultReply.from_fault(answer) if isinstance(answer, Fault) else answer
    envelope = Envelope(
        body=message.to_wire(),
        type="fault" if isinstance(message, FaultReply) else "result",
        correlation_id=request.correlation_id,
        headers={name: truncate_echo(value) for name, value in (headers or {}).items()},
    )
    try:
        await bus.publish(REPLY, request.reply_to, envelope)
    except (Unroutable, QueueFull):
        # Gone, or too full to take it: either way it is the client's own queue, and no reason to answer again.
        log.info("Nobody waits for the answer to a request to %s any more", request.exchange)


@contextlib.contextmanager
def delivery_context(delivery: Delivery, span_start: SpanStart) -> Iterator[None]:
    """What is done inside is done for this delivery: a span of its trace, where it has one, and lines of the log with
    its ids."""
    session_id = public_id(delivery.headers.get(TOKEN_HEADER))
    with (
        span_in_trace(span_start, delivery.headers.get(TRACEPARENT_HEADER)),
        logs.log_context(request_id=request_id_of(delivery), session_id=session_id),
    ):
        yield


def request_id_of(delivery: Delivery) -> str:
    """The idempotency key: the header, else the correlation id."""
    request_id = delivery.headers.get(REQUEST_ID_HEADER)
    return request_id if isinstance(request_id, str) and request_id else delivery.correlation_id or ""


async def result_or_fault(work: Awaitable[Returned], action: str) -> Returned | Fault:
    """What the work returns, or the fault to answer with in its place: whatever goes wrong, a request gets its one
    answer. ``action`` names the work in the log of a defect."""
    try:
        return await work
    except Fault as fault:
        return fault
    except Exception as error:
        return log_defect(error, action)


def truncate_echo(value: HeaderValue) -> HeaderValue:
    """What an answer repeats of a header that its caller wrote, however long that was."""
    return value[:MAX_ECHO_LENGTH] if isinstance(value, str) else value


def copyable_headers(headers: Mapping[str, object]) -> dict[str, HeaderValue]:
    """The headers that a copy of a delivery carries: text and numbers, the short ones first as long as there is
    room. Whatever else a stranger put there may not fit the wire again."""
    copied: dict[str, HeaderValue] = {}
    remaining_bytes = MAX_HEADER_BYTES
    plain = {key: value for key, value in headers.items() if isinstance(value, str | int | float)}
    for key, value in sorted(plain.items(), key=lambda item: len(str(item[1]))):
        if isinstance(value, float) and not abs(value) <= MAX_FLOAT:
            continue
        remaining_bytes -= len(f"{key}{value}".encode(errors="replace")) + 8
        if remaining_bytes < 0:
            break
        copied[key] = value
    return copied


async def delete_queues(bus: Bus, topology: Topology) -> None:
    """Delete queues of one's own that are needed no more. A broker that cannot be asked now deletes them itself,
    once they were unused for long enough."""
    try:
        for queue in topology.queues:
            await bus.delete(queue)
    except BusError as error:
        log.info("Queues of ours are left to expire: %s", error.message)


class AckBatcher:
    """Deliveries that are done with, acknowledged some at a time and out of the way of what is urgent.

    For a consumer that takes no harm from getting them again; its prefetch must be larger than ``batch_size``.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._deliveries: list[Delivery] = []

    async def add(self, delivery: Delivery) -> None:
        """One more."""
        self._deliveries.append(delivery)
        if len(self._deliveries) >= self._batch_size:
            await self.flush()

    async def flush(self) -> None:
        """Acknowledge them all."""
        deliveries, self._deliveries = self._deliveries, []
        for delivery in deliveries:
            await delivery.ack()


def log_defect(error: Exception, action: str) -> Fault:
    """What a caller is told of a defect of ours: no detail; the log has them."""
    log.error("A defect while %s", action, exc_info=error)
    return InternalFault()

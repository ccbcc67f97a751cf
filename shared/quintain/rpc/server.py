"""Helpers for RPC servers: what authorizes a request, and its one final reply, alone or in a group with others."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from quintain.bus.base import Bus, Delivery, Envelope, HeaderValue
from quintain.contracts.credentials import CallProof, SessionToken, parse_proof, public_id
from quintain.contracts.group import GROUP_CONTENT_TYPE, REPLY_GROUP_TYPE, GroupItem, count_fitting, encode_item
from quintain.contracts.headers import (
    DEADLINE_HEADER,
    PROOF_HEADER,
    REQUEST_ID_HEADER,
    TOKEN_HEADER,
    TRACEPARENT_HEADER,
)
from quintain.contracts.invoke import FaultReply
from quintain.contracts.message import Message
from quintain.errors import BadRequest, Fault, InternalFault, QueueFull, Unroutable
from quintain.observe import logs
from quintain.observe.semconv import SpanStart
from quintain.observe.spans import span_in_trace
from quintain.runtime.concurrency import BatchSender
from quintain.topology import REPLY, target_of_key

log = logging.getLogger(__name__)

Returned = TypeVar("Returned")

#: Maximum total size of copied headers: a broker closes the connection if they fill a frame (128 KiB).
MAX_HEADER_BYTES = 64 * 1024

#: Largest header float: aiormq encodes floats in 32 bits.
MAX_FLOAT = 3.4e38

#: An integer in a header may be sent as text of at most this many digits.
MAX_DIGITS = 18

#: Maximum length of a header value that a reply repeats from its request; no valid request id is longer.
MAX_ECHO_LENGTH = 128


async def send_reply(
    bus: Bus, request: Delivery, answer: Message | Fault, headers: Mapping[str, HeaderValue] | None = None
) -> bool:
    """Publish the final reply to a request; return whether the client's queue has it.

    A client that is gone is no error: its reply queue does not exist any more, or is full.
    """
    if not request.reply_to:
        log.warning("A request to %s has no reply_to; its reply is dropped", request.exchange)
        return False
    message = FaultReply.from_fault(answer) if isinstance(answer, Fault) else answer
    envelope = Envelope(
        body=message.to_wire(),
        type="fault" if isinstance(message, FaultReply) else "result",
        correlation_id=request.correlation_id,
        headers={} if headers is None else {name: truncate_echo(value) for name, value in headers.items()},
    )
    try:
        await bus.publish(REPLY, request.reply_to, envelope)
    except (Unroutable, QueueFull):
        # The client's own queue is gone or full; sending the reply again would not help.
        log.info("The reply to a request to %s was dropped: the client's reply queue is gone or full", request.exchange)
        return False
    return True


@dataclass(slots=True, eq=False)
class _GroupedReply:
    """A reply that waits for its message; ``on_sent`` is called once it is published, or with why it could not be."""

    reply: GroupItem
    on_sent: Callable[[Exception | None], object]
    _item: bytes = b""

    @property
    def item(self) -> bytes:
        """The reply as an item of a group."""
        self._item = self._item or encode_item(self.reply)
        return self._item


#: How many replies to a caller that reads no groups are published at a time: until its confirm, each takes several kB.
MAX_ALONE = 64


class ReplyGroups:
    """Sends replies to the same caller together.

    A reply goes out at once while none to its caller is under way, otherwise together with what has gathered when the
    broker has confirmed the message before.

    With ``expiration_ms`` they are of no use later, and do not survive a restart of the broker.
    """

    def __init__(self, bus: Bus, expiration_ms: int | None = None) -> None:
        self._bus, self._expiration_ms = bus, expiration_ms
        self._together = BatchSender[str, _GroupedReply](
            self._send, full_at_once=True, count=lambda replies: count_fitting(len(reply.item) for reply in replies)
        )
        self._alone = BatchSender[str, _GroupedReply](self._send, max_concurrent=MAX_ALONE)

    def add(
        self, reply_to: str, reply: GroupItem, on_sent: Callable[[Exception | None], object], *, alone: bool = False
    ) -> None:
        """Publish a reply to this routing key; ``alone``: its caller reads no groups.

        ``on_sent`` is called with None once it is published, or with why it could not be; it raises nothing.
        """
        grouped = _GroupedReply(reply, on_sent)
        if alone:
            self._alone.add(reply_to, grouped, max_batch=1)
        else:
            self._together.add(reply_to, grouped)

    async def _send(self, reply_to: str, replies: list[_GroupedReply]) -> None:
        if len(replies) == 1:
            reply = replies[0].reply
            envelope = Envelope(
                body=reply.body, type=reply.type, correlation_id=reply.correlation_id, headers=reply.headers
            )
        else:
            envelope = Envelope(
                body=b"".join([each.item for each in replies]), type=REPLY_GROUP_TYPE, content_type=GROUP_CONTENT_TYPE
            )
        if self._expiration_ms is not None:
            envelope = dataclasses.replace(envelope, expiration_ms=self._expiration_ms, persistent=False)
        error: Exception | None = None
        try:
            await self._bus.publish(REPLY, reply_to, envelope)
        except Exception as failure:
            error = failure
        for each in replies:
            each.on_sent(error)


@contextlib.contextmanager
def delivery_context(delivery: Delivery, span_start: SpanStart) -> Iterator[None]:
    """Context manager for processing a delivery: a span in its trace, if it has one, and its ids in the log."""
    session_id = public_id(delivery.headers.get(TOKEN_HEADER))
    with (
        span_in_trace(span_start, delivery.headers.get(TRACEPARENT_HEADER)),
        logs.log_context(request_id=request_id_of(delivery), session_id=session_id),
    ):
        yield


def request_id_of(delivery: Delivery) -> str:
    """Return the idempotency key of a request: the header, else the correlation id."""
    request_id = delivery.headers.get(REQUEST_ID_HEADER)
    return request_id if isinstance(request_id, str) and request_id else delivery.correlation_id or ""


async def result_or_fault(work: Awaitable[Returned], action: str) -> Returned | Fault:
    """Await the work and return its result, or the fault to reply with if it fails.

    ``action`` names the work in the log if it raises an unexpected exception.
    """
    try:
        return await work
    except Fault as fault:
        return fault
    except Exception as error:
        return log_defect(error, action)


def integer_header(headers: Mapping[str, object], name: str) -> int | None:
    """Return an integer header, which may be sent as decimal digits; None if it is absent. Raises `BadRequest`."""
    value = headers.get(name)
    if value is None:
        return None
    if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_DIGITS:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise BadRequest(f"{name}: it must be a whole number")


def truncate_echo(value: HeaderValue) -> HeaderValue:
    """Return a header value of a request shortened to `MAX_ECHO_LENGTH`, to be repeated in its reply."""
    return value[:MAX_ECHO_LENGTH] if isinstance(value, str) else value


def copyable_headers(headers: Mapping[str, object]) -> dict[str, HeaderValue]:
    """Return the headers that a copy of a delivery can carry: strings and numbers, up to `MAX_HEADER_BYTES`.

    The shortest are kept first. Values of other types may not be encodable again.
    """
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


def log_defect(error: Exception, action: str) -> Fault:
    """Log an unexpected exception, and return the fault to reply with, which has no details; its charge is unknown."""
    log.error("A defect while %s", action, exc_info=error)
    return InternalFault(charge_unknown=True)


#: A session's token, or a proof of one call.
Credential: TypeAlias = SessionToken | CallProof


def call_credential(
    headers: Mapping[str, object], request_id: str, target: str, body_sha256: str, deadline: int | None
) -> Credential:
    """Return what authorizes this call of a target. Raises `Unauthorized` where its format is wrong, without I/O."""
    authorization, mac = headers.get(TOKEN_HEADER), headers.get(PROOF_HEADER)
    if mac is None:
        return SessionToken.parse(authorization if isinstance(authorization, str) else None)
    return parse_proof(
        authorization, mac, request_id=request_id, target=target, body_sha256=body_sha256, deadline=deadline
    )


def delivery_credential(delivery: Delivery) -> Credential:
    """Return what authorizes a delivered call of the target that its routing key names, as `call_credential` does."""
    try:
        deadline = integer_header(delivery.headers, DEADLINE_HEADER)
    except BadRequest:
        deadline = None
    body_sha256 = hashlib.sha256(delivery.body).hexdigest()
    target = target_of_key(delivery.routing_key)
    return call_credential(delivery.headers, request_id_of(delivery), target, body_sha256, deadline)

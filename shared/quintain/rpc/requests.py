"""Requests over the bus and their replies: one reply queue, many requests in flight, matched by random correlation ids.

Used by the SDK, the workers and the gateway. A reply with an unknown correlation id is acknowledged, counted and
dropped: after a crash a reply may arrive twice. If the reply queue is lost, pending requests are published again with
their remaining time and the address of a new queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from quintain import errors
from quintain.bus.base import Bus, Delivery, Envelope, HeaderValue
from quintain.bus.failure_log import FailureLog
from quintain.contracts.group import GROUP_CONTENT_TYPE, INVOKE_GROUP_TYPE, REPLY_GROUP_TYPE, GroupItem, encode_item
from quintain.contracts.headers import CALL_HEADERS, PROTOCOL_HEADER, PROTOCOL_VERSION, TRACEPARENT_HEADER
from quintain.contracts.invoke import FaultReply
from quintain.observe.spans import current_traceparent
from quintain.routes import ReplyT, RequestT, Route
from quintain.rpc.groups import split_replies
from quintain.rpc.own_queues import ReplyQueue
from quintain.runtime.concurrency import RandomIds, TimeLimit, TimeLimits, cancel_and_wait, start_task
from quintain.topology import Exchange

log = logging.getLogger(__name__)

#: Pause before a request that was unroutable is sent again, in seconds.
UNROUTABLE_RETRY_SECONDS = 0.2

#: Pause before a request that a full queue refused is sent again, in seconds.
FULL_QUEUE_RETRY_SECONDS = 0.5


class RpcClient:
    """Sends requests and matches their replies, over one reply queue; see `ReplyQueue` for ``exclusive``."""

    def __init__(self, bus: Bus, *, exclusive: bool = False) -> None:
        self._bus = bus
        self._reply_queue = ReplyQueue(bus, self._on_reply, self._on_queue_replaced, exclusive=exclusive)
        self._pending: dict[str, PendingCall] = {}
        self._resend_tasks: set[asyncio.Task[None]] = set()
        self._limits = TimeLimits()
        self._not_sent_again = FailureLog(log, "Requests could not be sent again yet", "Requests are sent again", bus)
        #: For request ids and correlation ids.
        self.random_ids = RandomIds()
        self.unmatched_replies = 0

    @property
    def reply_key(self) -> str:
        """The routing key of the reply queue; it changes if the queue is lost, so read it for each request."""
        return self._reply_queue.key

    async def start(self) -> None:
        """Declare and consume the reply queue, if that is not done yet."""
        await self._reply_queue.open()

    async def close(self) -> None:
        """Stop consuming, and delete the reply queue."""
        await cancel_and_wait(*self._resend_tasks)
        await self._reply_queue.close()

    async def __aenter__(self) -> Self:
        """Start, and return this client."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    @property
    def in_flight(self) -> int:
        """The number of requests that wait for their reply."""
        return len(self._pending)

    def subscribe(
        self, correlation_id: str, on_reply: Callable[[Delivery], None], on_replaced: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Call ``on_reply`` for every reply with this correlation id; returns a function that unsubscribes.

        ``on_replaced`` is called when a new reply queue has replaced a lost one.
        """
        self._pending[correlation_id] = PendingCall(on_reply, on_replaced=on_replaced)

        def unsubscribe() -> None:
            self._pending.pop(correlation_id, None)

        return unsubscribe

    async def publish(self, request: RpcRequest, correlation_id: str) -> None:
        """Publish a request whose replies go to the subscriber of the correlation id.

        If the reply queue is lost while there is a subscriber and time left, the last request with this correlation id
        is published again. Raises what `Bus.publish` raises.
        """
        if (pending := self._pending.get(correlation_id)) is not None:
            pending.request, pending.sent_at, pending.group = request, asyncio.get_running_loop().time(), None
        envelope = Envelope(
            body=request.body,
            type=request.type,
            correlation_id=correlation_id,
            reply_to=self._reply_queue.key,
            headers=request.headers,
            expiration_ms=request.expiration_ms,
            names_user=request.names_user,
        )
        await self._bus.publish(request.exchange, request.key, envelope, timeout_seconds=request.deadline_seconds)

    async def publish_together(self, gathered: Sequence[GroupedRequest], on_refused: Callable[[], object]) -> None:
        """Publish requests of one session to one target, several in one message; each has its own correlation id.

        One whose caller waits no more is left out. If a group is answered as a whole, nobody has looked at its
        requests: ``on_refused`` is called, and each is published again alone. Raises what `Bus.publish` raises.
        """
        requests, group = list[GroupedRequest](), SentGroup(self.random_ids.next(), on_refused)
        now = asyncio.get_running_loop().time()
        for each in gathered:
            pending = self._pending.get(each.correlation_id)
            if pending is not None and not each.reply.done():
                pending.request, pending.sent_at, pending.group = each.request, now, group
                requests.append(each)
        if len(requests) < 2:
            for each in requests:
                await self.publish(each.request, each.correlation_id)
            return
        first = requests[0].request
        envelope = Envelope(
            body=b"".join([each.item for each in requests]),
            type=INVOKE_GROUP_TYPE,
            content_type=GROUP_CONTENT_TYPE,
            correlation_id=group.correlation_id,
            reply_to=self._reply_queue.key,
            headers={
                **{name: value for name, value in first.headers.items() if name not in CALL_HEADERS},
                PROTOCOL_HEADER: PROTOCOL_VERSION,
            },
            expiration_ms=max(each.request.expiration_ms for each in requests),
        )
        timeout_seconds = max(each.request.deadline_seconds for each in requests)
        await self._bus.publish(first.exchange, first.key, envelope, timeout_seconds=timeout_seconds)

    async def call(
        self,
        request: RpcRequest,
        on_partial: Callable[[Delivery], None] | None = None,
        publish_later: PublishLater | None = None,
    ) -> Delivery:
        """Publish a request and wait for its final reply; ``on_partial`` is called for replies before it.

        ``publish_later`` may send it together with others. Raises `NoAnswer` when the deadline passes, and what
        `Bus.publish` raises.
        """
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Delivery] = loop.create_future()
        if (traceparent := current_traceparent()) is not None:
            request = request._replace(headers={**request.headers, TRACEPARENT_HEADER: traceparent})
        correlation_id = self.random_ids.next()
        self._pending[correlation_id] = PendingCall(on_partial, reply)
        try:
            with TimeLimit(self._limits, loop.time() + request.deadline_seconds):
                if publish_later is None:
                    await self.publish(request, correlation_id)
                else:
                    publish_later(request, correlation_id, reply)
                return await reply
        except TimeoutError:
            raise errors.NoAnswer(
                f"No answer to {request.type} within {request.deadline_seconds:.1f} s: does the service that "
                f"consumes {request.exchange.name} run? (`quintain serve metadata`)"
            ) from None
        finally:
            del self._pending[correlation_id]

    async def call_route(
        self,
        route: Route[RequestT, ReplyT],
        message: RequestT,
        headers: Mapping[str, HeaderValue],
        *,
        timeout_seconds: float = 30.0,
        expires_seconds: float | None = None,
    ) -> ReplyT:
        """Send a request to a service, waiting until one starts if nothing is bound yet, and for room in a full queue.

        The broker keeps it for ``expires_seconds``, by default ``timeout_seconds``. Raises the `Fault` that the service
        replies with, `Overloaded` if its queue is full for ``timeout_seconds``, or `NoAnswer` after them.
        """
        request = RpcRequest(
            exchange=route.exchange,
            key=route.key,
            type=route.key,
            body=message.to_wire(),
            headers=headers,
            deadline_seconds=timeout_seconds,
            expires_seconds=expires_seconds,
            names_user=route.names_user,
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while True:
            try:
                remaining = request._replace(deadline_seconds=deadline - loop.time())
                return parse_reply(await self.call(remaining), route.reply_type)
            except errors.Unroutable:
                if loop.time() + UNROUTABLE_RETRY_SECONDS >= deadline:
                    raise errors.NoAnswer(
                        f"No service answers {route.name} (nothing consumes {route.exchange.name}, waited "
                        f"{timeout_seconds:.0f} s): start one with `quintain serve metadata`"
                    ) from None
                await asyncio.sleep(UNROUTABLE_RETRY_SECONDS)
            except errors.QueueFull:
                if loop.time() + FULL_QUEUE_RETRY_SECONDS >= deadline:
                    raise errors.Overloaded(
                        f"{route.name} was not sent: for {timeout_seconds:.0f} s the broker nacked it. The queue of "
                        f"{route.exchange.name} cannot be reached now; or it is full, because its service does not "
                        "read (`quintain status`) or others fill it"
                    ) from None
                await asyncio.sleep(FULL_QUEUE_RETRY_SECONDS)

    async def _on_reply(self, delivery: Delivery) -> None:
        if delivery.type == REPLY_GROUP_TYPE:
            try:
                replies: Sequence[Delivery] = split_replies(delivery)
            except errors.Fault as unreadable:
                log.error("An unreadable group of replies was dropped: %s", unreadable.message)
                replies = ()
        else:
            replies = (delivery,)
        for reply in replies:
            pending = self._pending.get(reply.correlation_id or "")
            if pending is not None:
                if pending.reply is not None and reply.type in {"result", "fault"}:
                    if not pending.reply.done():
                        pending.reply.set_result(reply)
                elif pending.on_reply is not None:
                    pending.on_reply(reply)
            elif reply.type != "fault" or not self._resend_group(reply):
                self.unmatched_replies += 1
        await delivery.ack()

    def _resend_group(self, fault: Delivery) -> bool:
        """Send the requests of a group that was answered as a whole again; returns whether there are any."""
        refused = {
            correlation_id: pending
            for correlation_id, pending in self._pending.items()
            if pending.group is not None and pending.group.correlation_id == fault.correlation_id
        }
        for correlation_id, pending in refused.items():
            assert pending.group is not None
            pending.group.on_refused()
            self._start_resend(correlation_id, pending)
        return bool(refused)

    def _on_queue_replaced(self) -> None:
        for correlation_id, pending in list(self._pending.items()):
            if pending.on_replaced is not None:
                pending.on_replaced()
            elif pending.request is not None:
                self._start_resend(correlation_id, pending)

    def _start_resend(self, correlation_id: str, pending: PendingCall) -> None:
        start_task(self._resend_tasks, self._resend(correlation_id, pending))

    async def _resend(self, correlation_id: str, pending: PendingCall) -> None:
        """Publish a pending request again while its subscriber waits: its reply may have gone to the lost queue.

        A transient error here is not reported to the subscriber, because the first copy of the request may still be
        answered.
        """
        while self._pending.get(correlation_id) is pending:
            request = pending.remaining_request(asyncio.get_running_loop().time())
            if request is None:
                return
            try:
                await self.publish(request, correlation_id)
            except errors.BrokerRefused as refusal:
                log.error("A %s request cannot be sent again: %s", request.type, refusal.message)
                return
            except errors.BusError as error:
                self._not_sent_again.failed(error)
                await asyncio.sleep(UNROUTABLE_RETRY_SECONDS)
            else:
                self._not_sent_again.worked()
                return


def parse_reply(reply: Delivery, reply_type: type[ReplyT]) -> ReplyT:
    """Decode a reply. Raises the `Fault` it carries.

    A reply that cannot be decoded is an `InternalFault` whose charge is unknown.
    """
    try:
        if reply.type != "fault":
            return reply_type.from_wire(reply.body)
        fault = FaultReply.from_wire(reply.body)
    except errors.BadRequest as error:
        raise errors.InternalFault(f"The answer cannot be read ({error.message})", charge_unknown=True) from None
    raise fault.to_fault()


class RpcRequest(NamedTuple):
    """A request to publish; ``deadline_seconds`` is how long its reply is awaited, from now."""

    exchange: Exchange
    key: str
    type: str
    body: bytes
    headers: Mapping[str, HeaderValue]
    deadline_seconds: float
    #: After how many seconds the broker may drop the request; by default ``deadline_seconds``.
    expires_seconds: float | None = None
    names_user: bool = False

    @property
    def expiration_ms(self) -> int:
        """After how many milliseconds the broker may drop the request."""
        return max(1, int((self.deadline_seconds if self.expires_seconds is None else self.expires_seconds) * 1000))


#: Publishes a request under a correlation id in a message with others; where that fails, the future gets the error.
PublishLater = Callable[[RpcRequest, str, asyncio.Future[Delivery]], None]


@dataclass(frozen=True, slots=True)
class SentGroup:
    """A group that was sent; ``on_refused`` is called if it is answered as a whole."""

    correlation_id: str
    on_refused: Callable[[], object]


@dataclass(slots=True, eq=False)
class PendingCall:
    """The callback for replies with one correlation id, and the request that was last sent with it, if any.

    ``reply`` is to have the final reply, which the callback does not get then. ``group`` is the group in which the
    request was sent; None if it was sent alone.
    """

    on_reply: Callable[[Delivery], None] | None
    reply: asyncio.Future[Delivery] | None = None
    request: RpcRequest | None = None
    sent_at: float = 0.0
    group: SentGroup | None = None
    on_replaced: Callable[[], None] | None = None

    def remaining_request(self, now: float) -> RpcRequest | None:
        """Return the request with its remaining time; None if there is no request or no time left."""
        if self.request is None:
            return None
        waited, expires_seconds = now - self.sent_at, self.request.expires_seconds
        deadline_seconds = self.request.deadline_seconds - waited
        expires_seconds = deadline_seconds if expires_seconds is None else expires_seconds - waited
        if min(deadline_seconds, expires_seconds) <= 0:
            return None
        return self.request._replace(deadline_seconds=deadline_seconds, expires_seconds=expires_seconds)


@dataclass(slots=True, eq=False)
class GroupedRequest:
    """A request that waits for its message, and its reply."""

    request: RpcRequest
    correlation_id: str
    reply: asyncio.Future[Delivery]
    _item: bytes = b""

    @property
    def item(self) -> bytes:
        """The request as an item of a group."""
        if not self._item:
            headers = {name: value for name, value in self.request.headers.items() if name in _ITEM_HEADERS}
            self._item = encode_item(GroupItem(self.correlation_id, self.request.body, headers))
        return self._item


#: The version is the message's.
_ITEM_HEADERS = CALL_HEADERS - {PROTOCOL_HEADER}

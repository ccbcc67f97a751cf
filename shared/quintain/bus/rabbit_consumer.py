"""A RabbitMQ consumer: one supervised task that consumes again after any loss of channel, connection or queue.

Deliveries are acknowledged together, with one frame for all that came one after another. What pamqp's decoders refuse
is read by tolerant ones: a property that cannot be decoded (invalid UTF-8, a timestamp out of range) would end the
connection, and the broker would redeliver the same message on the next one.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import logging
import threading
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import aiormq
from aio_pika.abc import AbstractChannel
from aiormq.abc import DeliveredMessage
from pamqp import common, decode
from pamqp.commands import Basic

from quintain.bus.base import HandlerTasks, Subscription
from quintain.bus.failure_log import FailureLog
from quintain.bus.rabbit_connection import CONNECTION_ERRORS, RETRY_SECONDS, RabbitConnection, translate_errors
from quintain.errors import BrokerRefused, BrokerUnavailable, BusError
from quintain.topology import DELIVERY_LIMIT, Queue

log = logging.getLogger(__name__)

#: So many failures to attach in a row over an open connection count as the loss of the queue.
MAX_ATTACH_FAILURES = 5

#: Pause between further attempts, in seconds: the queue's node may be down for long. After refusals, each of which the
#: broker logs, it doubles up to the longest one.
FAILED_RETRY_SECONDS, MAX_RETRY_SECONDS = 2.0, 16.0


def retry_seconds(failures: int, *, is_refused: bool) -> float:
    """Return the pause after so many failures to attach in a row."""
    further = failures - MAX_ATTACH_FAILURES
    if further < 0:
        return RETRY_SECONDS
    return min(FAILED_RETRY_SECONDS * 2 ** min(further, 10), MAX_RETRY_SECONDS) if is_refused else FAILED_RETRY_SECONDS


class RabbitConsumer:
    """A `Consumer` over RabbitMQ that attaches again after any loss.

    ``redeclare`` declares the bus's topology again; ``on_drained`` is called with the consumer when it has ended;
    ``failures`` is shared by the consumers of a bus.
    """

    def __init__(
        self,
        connection: RabbitConnection,
        redeclare: Callable[[], Awaitable[None]],
        subscription: Subscription,
        on_drained: Callable[[RabbitConsumer], None],
        failures: FailureLog,
    ) -> None:
        self._connection, self._redeclare, self._subscription, self._on_drained = (
            connection,
            redeclare,
            subscription,
            on_drained,
        )
        self._failures = failures
        self._queue = subscription.queue
        self._tasks = HandlerTasks(self._queue.delivery_limit or DELIVERY_LIMIT)
        self._cancelled = False
        self._loss_reported = False
        self._attach_failures = 0
        self._has_tried = False
        self._channel: AbstractChannel | None = None
        self._acks: ChannelAcks | None = None
        self._consumer_tag: str | None = None
        self._consume_ended = asyncio.Event()
        self._first_attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(), name=f"consume-{self._queue.name}")

    @property
    def active(self) -> bool:
        """Whether the broker currently delivers to this consumer."""
        return self._consumer_tag is not None and not self._consume_ended.is_set()

    @property
    def watched_queue(self) -> Queue | None:
        """The queue, if its loss would be reported and was not reported yet."""
        is_watched = (
            self._subscription.on_queue_lost is not None
            and self._first_attached.done()
            and not (self._cancelled or self._loss_reported)
        )
        return self._queue if is_watched else None

    def report_lost_queue(self) -> None:
        """Call ``on_queue_lost``, at most once until the consumer is attached again."""
        if self.watched_queue is not None and self._subscription.on_queue_lost is not None:
            self._loss_reported = True
            self._subscription.on_queue_lost()

    async def wait_attached(self) -> None:
        """Wait until the consumer is attached for the first time. Raises `BrokerRefused`."""
        await asyncio.shield(self._first_attached)

    async def cancel(self) -> None:
        """Implements `Consumer.cancel`."""
        self._cancelled = True
        if self.active and self._channel is not None and self._consumer_tag is not None:
            try:
                underlay = await self._channel.get_underlay_channel()
                await underlay.basic_cancel(self._consumer_tag)
            except CONNECTION_ERRORS:
                log.debug("The channel of %s was gone before its consumer was cancelled", self._queue.name)
        self._consumer_tag = None
        self._consume_ended.set()

    async def drain(self, timeout_seconds: float) -> bool:
        """Implements `Consumer.drain`."""
        await self.cancel()
        finished = await self._tasks.finish(timeout_seconds)
        self._supervisor.cancel()
        if not self._first_attached.done():
            self._first_attached.set_exception(BrokerUnavailable(f"consuming {self._queue.name}: given up"))
            self._first_attached.exception()  # retrieved: asyncio logs no warning if no task waits for it
        await asyncio.gather(self._supervisor, return_exceptions=True)
        await self._close_channel()
        self._failures.forget(self)
        self._on_drained(self)
        return finished

    async def _supervise(self) -> None:
        while not self._cancelled:
            reconnects = self._connection.reconnects
            try:
                await self._consume_once()
                error = BusError(f"the consumer of {self._queue.name} ended, and is started again")
            except BrokerRefused as refusal:
                if not self._first_attached.done():
                    self._first_attached.set_exception(refusal)
                    return
                error = refusal
                self._count_failure()
            except BusError as failure:
                error = failure
                self._count_failure()
            if not self._cancelled:
                self._consumer_tag = None
                await asyncio.sleep(retry_seconds(self._attach_failures, is_refused=isinstance(error, BrokerRefused)))
                # The loss of the connection, which ends every consumer, is logged once for all of them.
                if self._connection.reconnects == reconnects:
                    self._failures.failed(error, self)

    def _count_failure(self) -> None:
        self._attach_failures = self._attach_failures + 1 if self._connection.is_open else 0
        if self._attach_failures >= MAX_ATTACH_FAILURES:
            self.report_lost_queue()

    async def _consume_once(self) -> None:
        """Attach once, and return when the channel or the consumer has ended."""
        await self._close_channel()
        # The first time the queue has just been declared; later it may have been lost.
        if self._has_tried:
            await self._redeclare()
        self._has_tried = True
        self._channel = channel = await self._connection.open_channel()
        consume_ended = self._consume_ended = asyncio.Event()
        with translate_errors(f"consuming {self._queue.name}"):
            underlay = await channel.get_underlay_channel()
            channel.close_callbacks.add(lambda *_: consume_ended.set())
            underlay.on_consumer_cancel_callbacks.add(lambda _: self._on_broker_cancel(consume_ended))
            await underlay.basic_qos(prefetch_count=self._subscription.prefetch)

            acks = self._acks = ChannelAcks(underlay)

            # The callback only starts a task: aio-pika would cancel its own task together with the channel.
            async def on_message(message: DeliveredMessage) -> None:
                properties = message.header.properties
                expiration = properties.expiration
                delivery = RabbitDelivery(
                    body=message.body,
                    type=properties.message_type or "",
                    correlation_id=properties.correlation_id,
                    reply_to=properties.reply_to,
                    user_id=properties.user_id,
                    headers=properties.headers or {},
                    expiration_ms=int(expiration) if expiration and expiration.isdecimal() else None,
                    exchange=message.exchange or "",
                    routing_key=message.routing_key or "",
                    redelivered=bool(message.redelivered),
                    acks=acks,
                    tag=message.delivery_tag or 0,
                )
                self._tasks.start(self._subscription.handler, delivery)

            consume_ok = await underlay.basic_consume(self._queue.name, on_message)
        self._consumer_tag, self._loss_reported, self._attach_failures = consume_ok.consumer_tag, False, 0
        self._failures.worked(self)
        if not self._first_attached.done():
            self._first_attached.set_result(None)
        if self._cancelled:
            # It was cancelled while it attached, when there was no consumer tag to cancel yet.
            await self.cancel()
        await consume_ended.wait()

    def _on_broker_cancel(self, consume_ended: asyncio.Event) -> None:
        """Handle the broker's cancel: the queue was deleted, or its node is down."""
        consume_ended.set()
        self.report_lost_queue()

    async def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and not channel.is_closed:
            if self._acks is not None:
                await self._acks.wait_sent()
            try:
                await self._connection.close_channel(channel)
            except CONNECTION_ERRORS:
                log.debug("The channel of %s was gone before it was closed", self._queue.name)


@dataclass(slots=True, eq=False)
class RabbitDelivery:
    """A `Delivery` over RabbitMQ, settled on the channel it arrived on or not at all."""

    body: bytes
    type: str
    correlation_id: str | None
    reply_to: str | None
    user_id: str | None
    headers: Mapping[str, object]
    expiration_ms: int | None
    exchange: str
    routing_key: str
    redelivered: bool
    acks: ChannelAcks
    tag: int

    async def ack(self) -> None:
        """Implements `Delivery.ack`."""
        self.acks.ack(self.tag)

    async def requeue(self) -> None:
        """Implements `Delivery.requeue`."""
        await self.acks.nack(self.tag, requeue=True)

    async def dead_letter(self) -> None:
        """Implements `Delivery.dead_letter`."""
        await self.acks.nack(self.tag, requeue=False)


class ChannelAcks:
    """The acknowledgements of one channel: those of one iteration of the event loop are sent together.

    RabbitMQ numbers the deliveries of a channel from 1. ``multiple`` acknowledges a delivery and all before it, so it
    is used only where all before it are settled, or are acknowledged with it.
    """

    def __init__(self, channel: aiormq.abc.AbstractChannel) -> None:
        self._channel = channel
        self._unsent: list[int] = []
        self._sending: asyncio.Task[None] | None = None
        #: All deliveries up to this one are settled, and some after it.
        self._settled_until = 0
        self._settled: set[int] = set()

    def ack(self, tag: int) -> None:
        """Acknowledge a delivery, with the others of this iteration of the event loop."""
        self._unsent.append(tag)
        if self._sending is None:
            # An empty context: the frame is not part of the call whose delivery is the first.
            self._sending = contextvars.Context().run(asyncio.get_running_loop().create_task, self._send())

    async def nack(self, tag: int, *, requeue: bool) -> None:
        """Return a delivery to its queue, or reject it."""
        try:
            await self._channel.basic_nack(tag, requeue=requeue, wait=False)
        except CONNECTION_ERRORS:
            log.debug("A delivery of a lost connection was not settled: it will be redelivered")
        self._note_settled([tag])

    async def wait_sent(self) -> None:
        """Wait until all acknowledgements so far are sent."""
        if self._sending is not None:
            await asyncio.wait([self._sending])

    async def _send(self) -> None:
        try:
            await asyncio.sleep(0)
            # One batch at a time: an acknowledgement that was overtaken by a later one for several is an error.
            while self._unsent:
                tags, self._unsent = self._unsent, []
                if len(tags) == 1 and tags[0] == self._settled_until + 1 and not self._settled:
                    self._settled_until += 1
                else:
                    self._note_settled(tags)
                tags.sort()
                together = bisect_right(tags, self._settled_until)
                if together:
                    await self._channel.basic_ack(tags[together - 1], multiple=together > 1, wait=False)
                for tag in tags[together:]:
                    await self._channel.basic_ack(tag, wait=False)
        except CONNECTION_ERRORS:
            log.debug("Deliveries of a lost connection were not acknowledged: they will be redelivered")
        finally:
            self._sending = None

    def _note_settled(self, tags: list[int]) -> None:
        self._settled.update(tags)
        while self._settled_until + 1 in self._settled:
            self._settled_until += 1
            self._settled.discard(self._settled_until)


#: The value of a timestamp that cannot be represented as a date.
EPOCH: Final = dt.datetime.fromtimestamp(0, tz=dt.UTC)

#: Exceptions of pamqp's decoders: invalid UTF-8 is a ValueError, too deep nesting a RecursionError.
_DECODE_ERRORS = (ValueError, OverflowError, OSError, RecursionError)


#: pamqp's decoders by the kinds of a message's values, and of a table's; the tolerant ones take their places only while
#: a message is read that the others cannot read.
_METHODS, _TABLE_MAPPING = dict(decode.METHODS), dict(decode.TABLE_MAPPING)

#: Connections of several threads may meet such a message at the same time.
_TOLERANT = threading.RLock()


def install_tolerant_decoders() -> None:
    """Let pamqp read messages whose strings, timestamps or tables are invalid.

    This affects the whole process; calling it again has no effect.
    """
    for kind in (Basic.Properties, Basic.Deliver, Basic.Return):
        if getattr(kind.unmarshal, "__module__", "") != __name__:
            kind.unmarshal = _tolerant(kind.unmarshal)  # type: ignore[method-assign]


def _tolerant(unmarshal: Callable[..., None]) -> Callable[..., None]:
    def unmarshal_tolerantly(values: object, *data: object) -> None:
        try:
            unmarshal(values, *data)
        except _DECODE_ERRORS:
            with _TOLERANT:
                decode.METHODS.update(shortstr=_decode_short_string, timestamp=_decode_timestamp, table=_decode_table)
                decode.TABLE_MAPPING[b"T"] = _decode_timestamp
                try:
                    unmarshal(values, *data)
                finally:
                    decode.METHODS.update(_METHODS)
                    decode.TABLE_MAPPING.update(_TABLE_MAPPING)

    return unmarshal_tolerantly


def _decode_short_string(value: bytes) -> tuple[int, str]:
    length = value[0]
    text = value[1 : length + 1]
    try:
        return length + 1, text.decode()
    except UnicodeDecodeError:
        # One byte for each invalid one, so that the string can be sent again: it has at most 255.
        return length + 1, text.decode(errors="replace").replace("\ufffd", "?")


def _decode_timestamp(value: bytes) -> tuple[int, dt.datetime]:
    try:
        return decode.timestamp(value)
    except _DECODE_ERRORS:
        return 8, EPOCH


def _decode_table(value: bytes) -> tuple[int, common.FieldTable]:
    try:
        return decode.field_table(value)
    except _DECODE_ERRORS:
        return 4 + int.from_bytes(value[:4]), {}

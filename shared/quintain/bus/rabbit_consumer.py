"""A RabbitMQ consumer: one supervised task that consumes again after any loss of channel, connection or queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aio_pika.abc import AbstractChannel
from aiormq.abc import DeliveredMessage

from quintain.bus.base import Subscription
from quintain.bus.handler_tasks import HandlerTasks
from quintain.bus.rabbit_connection import CONNECTION_ERRORS, RETRY_SECONDS, RabbitConnection, translate_errors
from quintain.bus.rabbit_message import RabbitDelivery
from quintain.errors import BrokerRefused, BrokerUnavailable, BusError
from quintain.topology import Queue

log = logging.getLogger(__name__)

#: A queue that cannot be attached to so many times in a row, over a connection that stands, counts as lost.
MAX_ATTACH_FAILURES = 5

#: The pause between tries from then on, in seconds: its node may be down for long.
FAILED_RETRY_SECONDS = 2.0


class RabbitConsumer:
    """A queue being consumed over RabbitMQ, whatever happens to the connection."""

    def __init__(
        self,
        connection: RabbitConnection,
        redeclare: Callable[[], Awaitable[None]],
        subscription: Subscription,
        on_drained: Callable[[RabbitConsumer], None],
    ) -> None:
        self._connection, self._redeclare, self._subscription, self._on_drained = (
            connection,
            redeclare,
            subscription,
            on_drained,
        )
        self._queue = subscription.queue
        self._tasks = HandlerTasks()
        self._cancelled = False
        self._loss_reported = False
        self._attach_failures = 0
        self._channel: AbstractChannel | None = None
        self._consumer_tag: str | None = None
        self._consume_ended = asyncio.Event()
        self._first_attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(), name=f"consume-{self._queue.name}")

    @property
    def active(self) -> bool:
        return self._consumer_tag is not None and not self._consume_ended.is_set()

    @property
    def watched_queue(self) -> Queue | None:
        """The queue, where somebody wants to hear of its loss and nothing has been said of it yet."""
        is_watched = (
            self._subscription.on_queue_lost is not None
            and self._first_attached.done()
            and not (self._cancelled or self._loss_reported)
        )
        return self._queue if is_watched else None

    def report_lost_queue(self) -> None:
        """Say that messages may have been lost with the queue: once until it is attached to again."""
        if self.watched_queue is not None and self._subscription.on_queue_lost is not None:
            self._loss_reported = True
            self._subscription.on_queue_lost()

    async def wait_attached(self) -> None:
        """Wait until the broker delivers for the first time. Raises `BrokerRefused`."""
        await asyncio.shield(self._first_attached)

    async def cancel(self) -> None:
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
        await self.cancel()
        finished = await self._tasks.finish(timeout_seconds)
        self._supervisor.cancel()
        if not self._first_attached.done():
            self._first_attached.set_exception(BrokerUnavailable(f"consuming {self._queue.name}: given up"))
            self._first_attached.exception()  # whoever waits hears it; where nobody does, it is no loss
        await asyncio.gather(self._supervisor, return_exceptions=True)
        await self._close_channel()
        self._on_drained(self)
        return finished

    async def _supervise(self) -> None:
        while not self._cancelled:
            try:
                await self._consume_once()
            except BrokerRefused as refusal:
                if not self._first_attached.done():
                    self._first_attached.set_exception(refusal)
                    return
                log.error("Consuming %s: %s", self._queue.name, refusal.message)
                self._count_failure()
            except BusError as error:
                log.warning("Consuming %s: %s; trying again", self._queue.name, error.message)
                self._count_failure()
            if not self._cancelled:
                self._consumer_tag = None
                await asyncio.sleep(
                    RETRY_SECONDS if self._attach_failures < MAX_ATTACH_FAILURES else FAILED_RETRY_SECONDS
                )

    def _count_failure(self) -> None:
        self._attach_failures = self._attach_failures + 1 if self._connection.is_open else 0
        if self._attach_failures >= MAX_ATTACH_FAILURES:
            self.report_lost_queue()

    async def _consume_once(self) -> None:
        """One generation of this consumer, from its channel's opening to its end."""
        await self._close_channel()
        await self._redeclare()
        self._channel = channel = await self._connection.open_channel()
        consume_ended = self._consume_ended = asyncio.Event()
        with translate_errors(f"consuming {self._queue.name}"):
            underlay = await channel.get_underlay_channel()
            channel.close_callbacks.add(lambda *_: consume_ended.set())
            underlay.on_consumer_cancel_callbacks.add(lambda _: self._on_broker_cancel(consume_ended))
            await underlay.basic_qos(prefetch_count=self._subscription.prefetch)

            # It starts a task and does no work: the library would cancel its own task with the channel.
            async def on_message(message: DeliveredMessage) -> None:
                self._tasks.start(self._subscription.handler, RabbitDelivery(message, underlay))

            consume_ok = await underlay.basic_consume(self._queue.name, on_message)
        self._consumer_tag, self._loss_reported, self._attach_failures = consume_ok.consumer_tag, False, 0
        if not self._first_attached.done():
            self._first_attached.set_result(None)
        if self._cancelled:
            # It was cancelled while it began, and had nothing to cancel then.
            await self.cancel()
        await consume_ended.wait()
        if not self._cancelled:
            log.warning("The consumer of %s ended; it begins again", self._queue.name)

    def _on_broker_cancel(self, consume_ended: asyncio.Event) -> None:
        """The broker ended the consumer: its queue was deleted, or the queue's node is down."""
        consume_ended.set()
        self.report_lost_queue()

    async def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and not channel.is_closed:
            try:
                await self._connection.close_channel(channel)
            except CONNECTION_ERRORS:
                log.debug("The channel of %s was gone before it was closed", self._queue.name)

"""A queue consumed over RabbitMQ: one supervised task that begins again whatever happens to the connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aio_pika.abc import AbstractChannel
from aiormq.abc import DeliveredMessage

from quintain.bus.base import Subscription
from quintain.bus.rabbit_link import LOST, PAUSE_SECONDS, RabbitLink, in_our_words
from quintain.bus.rabbit_message import RabbitDelivery
from quintain.bus.tasks import HandlerTasks
from quintain.errors import BrokerRefused, BrokerUnavailable, BusError
from quintain.topology import Queue

log = logging.getLogger(__name__)

#: A queue that cannot be attached to so many times in a row, over a connection that stands, counts as lost.
MOST_FAILURES = 5

#: The pause between tries from then on, in seconds: its node may be down for long.
LONG_PAUSE_SECONDS = 2.0


class RabbitConsumer:
    """A queue being consumed over RabbitMQ, whatever happens to the connection."""

    def __init__(
        self,
        link: RabbitLink,
        redeclare: Callable[[], Awaitable[None]],
        subscription: Subscription,
        drained: Callable[[RabbitConsumer], None],
    ) -> None:
        self._link, self._redeclare, self._subscription, self._drained = link, redeclare, subscription, drained
        self._queue = subscription.queue
        self._tasks = HandlerTasks()
        self._cancelled = False
        self._told = False
        self._failures = 0
        self._channel: AbstractChannel | None = None
        self._tag: str | None = None
        self._ended = asyncio.Event()
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(), name=f"consume-{self._queue.name}")

    @property
    def live(self) -> bool:
        return self._tag is not None and not self._ended.is_set()

    @property
    def watched(self) -> Queue | None:
        """The queue, where somebody wants to hear of its loss and nothing has been said of it yet."""
        wanted = self._subscription.lost is not None and self._first.done() and not (self._cancelled or self._told)
        return self._queue if wanted else None

    def lose(self) -> None:
        """Say that messages may have been lost with the queue: once until it is attached to again."""
        if self.watched is not None and self._subscription.lost is not None:
            self._told = True
            self._subscription.lost()

    async def started(self) -> None:
        """Wait until the broker delivers for the first time. Raises `BrokerRefused`."""
        await asyncio.shield(self._first)

    async def cancel(self) -> None:
        self._cancelled = True
        if self.live and self._channel is not None and self._tag is not None:
            try:
                underlay = await self._channel.get_underlay_channel()
                await underlay.basic_cancel(self._tag)
            except LOST:
                log.debug("The channel of %s was gone before its consumer was cancelled", self._queue.name)
        self._tag = None
        self._ended.set()

    async def drain(self, timeout: float) -> bool:
        await self.cancel()
        done = await self._tasks.finish(timeout)
        self._supervisor.cancel()
        if not self._first.done():
            self._first.set_exception(BrokerUnavailable(f"consuming {self._queue.name}: given up"))
            self._first.exception()  # whoever waits hears it; where nobody does, it is no loss
        await asyncio.gather(self._supervisor, return_exceptions=True)
        await self._let_go()
        self._drained(self)
        return done

    async def _supervise(self) -> None:
        while not self._cancelled:
            try:
                await self._consume_once()
            except BrokerRefused as refusal:
                if not self._first.done():
                    self._first.set_exception(refusal)
                    return
                log.error("Consuming %s: %s", self._queue.name, refusal.message)
                self._failed()
            except BusError as error:
                log.warning("Consuming %s: %s; trying again", self._queue.name, error.message)
                self._failed()
            if not self._cancelled:
                self._tag = None
                await asyncio.sleep(PAUSE_SECONDS if self._failures < MOST_FAILURES else LONG_PAUSE_SECONDS)

    def _failed(self) -> None:
        self._failures = self._failures + 1 if self._link.up else 0
        if self._failures >= MOST_FAILURES:
            self.lose()

    async def _consume_once(self) -> None:
        """One generation of this consumer, from its channel's opening to its end."""
        await self._let_go()
        await self._redeclare()
        self._channel = channel = await self._link.channel()
        ended = self._ended = asyncio.Event()
        with in_our_words(f"consuming {self._queue.name}"):
            underlay = await channel.get_underlay_channel()
            channel.close_callbacks.add(lambda *_: ended.set())
            underlay.on_consumer_cancel_callbacks.add(lambda _: self._taken_away(ended))
            await underlay.basic_qos(prefetch_count=self._subscription.prefetch)

            # It starts a task and does no work: the library would cancel its own task with the channel.
            async def take(message: DeliveredMessage) -> None:
                self._tasks.start(self._subscription.handler, RabbitDelivery(message, underlay))

            consuming = await underlay.basic_consume(self._queue.name, take)
        self._tag, self._told, self._failures = consuming.consumer_tag, False, 0
        if not self._first.done():
            self._first.set_result(None)
        if self._cancelled:
            # It was cancelled while it began, and had nothing to cancel then.
            await self.cancel()
        await ended.wait()
        if not self._cancelled:
            log.warning("The consumer of %s ended; it begins again", self._queue.name)

    def _taken_away(self, ended: asyncio.Event) -> None:
        """The broker ended the consumer: its queue was deleted, or the queue's node is down."""
        ended.set()
        self.lose()

    async def _let_go(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and not channel.is_closed:
            try:
                await self._link.let_go(channel)
            except LOST:
                log.debug("The channel of %s was gone before it was closed", self._queue.name)

"""A queue consumed over RabbitMQ: one supervised task that begins again whatever happens to the connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aio_pika.abc import AbstractChannel
from aiormq.abc import DeliveredMessage

from quintain.bus.base import Handler
from quintain.bus.rabbit_link import LOST, PAUSE_SECONDS, RabbitLink, in_our_words
from quintain.bus.rabbit_message import RabbitDelivery
from quintain.bus.tasks import HandlerTasks
from quintain.errors import BrokerRefused, BusError
from quintain.topology import Queue

log = logging.getLogger(__name__)


class RabbitConsumer:
    """A queue being consumed over RabbitMQ, whatever happens to the connection."""

    def __init__(
        self, link: RabbitLink, redeclare: Callable[[], Awaitable[None]], queue: Queue, handler: Handler, prefetch: int
    ) -> None:
        self._link, self._redeclare, self._queue = link, redeclare, queue
        self._handler, self._prefetch = handler, prefetch
        self._tasks = HandlerTasks()
        self._cancelled = False
        self._channel: AbstractChannel | None = None
        self._tag: str | None = None
        self._ended = asyncio.Event()
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(), name=f"consume-{queue.name}")

    @property
    def live(self) -> bool:
        return self._tag is not None and not self._ended.is_set()

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
        await asyncio.gather(self._supervisor, return_exceptions=True)
        await self._let_go()
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
            except BusError as error:
                log.warning("Consuming %s: %s; trying again", self._queue.name, error.message)
            if not self._cancelled:
                self._tag = None
                await asyncio.sleep(PAUSE_SECONDS)

    async def _consume_once(self) -> None:
        """One generation of this consumer, from its channel's opening to its end."""
        await self._let_go()
        await self._redeclare()
        self._channel = channel = await self._link.channel()
        ended = self._ended = asyncio.Event()
        with in_our_words(f"consuming {self._queue.name}"):
            underlay = await channel.get_underlay_channel()
            channel.close_callbacks.add(lambda *_: ended.set())
            underlay.on_consumer_cancel_callbacks.add(lambda _: ended.set())
            await underlay.basic_qos(prefetch_count=self._prefetch)

            # It starts a task and does no work: the library would cancel its own task with the channel.
            async def take(message: DeliveredMessage) -> None:
                self._tasks.start(self._handler, RabbitDelivery(message, underlay))

            consuming = await underlay.basic_consume(self._queue.name, take)
        self._tag = consuming.consumer_tag
        if not self._first.done():
            self._first.set_result(None)
        await ended.wait()
        if not self._cancelled:
            log.warning("The consumer of %s ended; it begins again", self._queue.name)

    async def _let_go(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and not channel.is_closed:
            try:
                await channel.close()
            except LOST:
                log.debug("The channel of %s was gone before it was closed", self._queue.name)

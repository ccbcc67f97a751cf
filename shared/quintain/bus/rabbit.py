"""The RabbitMQ transport: the bus's promise kept over AMQP 0-9-1, with aio-pika for the wire only.

Two connections, one for publishing and one for consuming, so that back-pressure on the one never stops the
other. Each consumer is a supervised task of its own: it declares, consumes, and begins again when its channel,
its connection or its queue is gone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import aiormq
from aio_pika.abc import AbstractChannel
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from quintain.bus.base import PUBLISH_TIMEOUT_SECONDS, Consumer, Envelope, Handler
from quintain.bus.rabbit_link import LOST, RabbitLink, in_our_words
from quintain.bus.tasks import HandlerTasks
from quintain.errors import BrokerRefused, BrokerUnavailable, BusError
from quintain.topology import Exchange, Queue, Topology

log = logging.getLogger(__name__)

#: The pause before a lost consumer begins again, or a publish is repeated, in seconds.
PAUSE_SECONDS = 0.2


@dataclass(slots=True, eq=False)
class RabbitDelivery:
    """A message that arrived over RabbitMQ; it is settled on the channel it came by, or not at all."""

    _message: DeliveredMessage
    _channel: aiormq.abc.AbstractChannel

    @property
    def body(self) -> bytes:
        return self._message.body

    @property
    def type(self) -> str:
        return self._properties.message_type or ""

    @property
    def correlation_id(self) -> str | None:
        return self._properties.correlation_id

    @property
    def reply_to(self) -> str | None:
        return self._properties.reply_to

    @property
    def headers(self) -> Mapping[str, object]:
        return self._properties.headers or {}

    @property
    def expiration_ms(self) -> int | None:
        text = self._properties.expiration
        return int(text) if text and text.isdecimal() else None

    @property
    def exchange(self) -> str:
        return self._message.exchange or ""

    @property
    def routing_key(self) -> str:
        return self._message.routing_key or ""

    @property
    def redelivered(self) -> bool:
        return bool(self._message.redelivered)

    async def ack(self) -> None:
        await self._settle(self._channel.basic_ack(self._tag, wait=False))

    async def requeue(self) -> None:
        await self._settle(self._channel.basic_nack(self._tag, requeue=True, wait=False))

    async def dead_letter(self) -> None:
        await self._settle(self._channel.basic_nack(self._tag, requeue=False, wait=False))

    @property
    def _properties(self) -> Basic.Properties:
        return self._message.header.properties

    @property
    def _tag(self) -> int:
        return self._message.delivery_tag or 0

    async def _settle(self, settling: object) -> None:
        try:
            await settling  # type: ignore[misc]
        except LOST:
            log.debug("A delivery of a lost connection was not settled: it will come again")


class RabbitConsumer:
    """A queue being consumed over RabbitMQ, whatever happens to the connection."""

    def __init__(self, link: RabbitLink, bus: RabbitBus, queue: Queue, handler: Handler, prefetch: int) -> None:
        self._link, self._bus, self._queue = link, bus, queue
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
        await self._bus.redeclare()
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


class RabbitBus:
    """The bus over one RabbitMQ, kept connected."""

    def __init__(self, url: str, name: str = "client") -> None:
        self._publishing = RabbitLink(url, f"{name} publishing")
        self._consuming = RabbitLink(url, f"{name} consuming")
        self._channel: aiormq.Channel | None = None
        self._opening = asyncio.Lock()
        self._declared = Topology()
        self._consumers: list[RabbitConsumer] = []

    async def start(self, timeout: float = PUBLISH_TIMEOUT_SECONDS) -> None:
        """Connect; raises `BrokerUnavailable` after the timeout (seconds), `BrokerRefused`."""
        self._publishing.start()
        self._consuming.start()
        await self._publishing.connection(timeout)
        await self._consuming.connection(timeout)

    async def declare(self, topology: Topology) -> None:
        self._declared += topology
        await self._declare(topology)

    async def redeclare(self) -> None:
        """Declare again all that was ever declared here: the broker may have lost it."""
        await self._declare(self._declared)

    async def publish(
        self, exchange: Exchange, key: str, envelope: Envelope, *, timeout: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        try:
            async with asyncio.timeout(timeout):
                try:
                    await self._publish_once(exchange, key, envelope, timeout)
                except BrokerUnavailable:
                    await self._publish_again(exchange, key, envelope, timeout)
        except TimeoutError:
            raise BrokerUnavailable(
                f"publishing to {exchange.name} for {key!r}: not confirmed within {timeout:.1f} s"
            ) from None

    async def consume(self, queue: Queue, handler: Handler, *, prefetch: int) -> Consumer:
        consumer = RabbitConsumer(self._consuming, self, queue, handler, prefetch)
        self._consumers.append(consumer)
        await consumer.started()
        return consumer

    async def close(self) -> None:
        for consumer in self._consumers:
            await consumer.drain(0)
        await self._publishing.close()
        await self._consuming.close()

    async def _publish_again(self, exchange: Exchange, key: str, envelope: Envelope, timeout: float) -> None:
        """Whether a publish without its confirm arrived is not known: it goes out again, and may arrive twice."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(BrokerUnavailable), wait=wait_fixed(PAUSE_SECONDS)
        ):
            with attempt:
                await self._publish_once(exchange, key, envelope, timeout)

    async def _publish_once(self, exchange: Exchange, key: str, envelope: Envelope, timeout: float) -> None:
        channel = self._channel
        if channel is None or channel.is_closed:
            channel = await self._open_channel(timeout)
        with in_our_words(f"publishing to {exchange.name} for {key!r}"):
            await channel.basic_publish(
                envelope.body,
                exchange=exchange.name,
                routing_key=key,
                properties=properties_of(envelope),
                mandatory=True,
                wait=False,
            )

    async def _open_channel(self, timeout: float) -> aiormq.Channel:
        async with self._opening:
            if self._channel is None or self._channel.is_closed:
                opened = await self._publishing.channel(timeout)
                underlay = await opened.get_underlay_channel()
                assert isinstance(underlay, aiormq.Channel)
                self._channel = underlay
            return self._channel

    async def _declare(self, topology: Topology) -> None:
        # A channel of its own, thrown away: a refused or cancelled declaration closes only this one.
        channel = await self._consuming.channel()
        with in_our_words("declaring queues"):
            underlay = await channel.get_underlay_channel()
            for exchange in topology.exchanges:
                await underlay.exchange_declare(
                    exchange.name,
                    exchange_type=exchange.kind,
                    durable=True,
                    arguments=dict(exchange.arguments),
                )
            for queue in topology.queues:
                await underlay.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
            for bound in topology.bindings:
                await underlay.queue_bind(bound.queue.name, bound.exchange.name, bound.key)
            await channel.close()


def properties_of(envelope: Envelope) -> Basic.Properties:
    """The AMQP properties of an envelope. ``message_id`` is new at each publish: the library matches returned
    messages by it, and a repeated one would confirm the wrong publish."""
    return Basic.Properties(
        content_type="application/json",
        delivery_mode=2 if envelope.persistent else 1,
        message_id=secrets.token_hex(16),
        message_type=envelope.type,
        correlation_id=envelope.correlation_id,
        reply_to=envelope.reply_to,
        headers=dict(envelope.headers),
        expiration=None if envelope.expiration_ms is None else str(envelope.expiration_ms),
    )

"""The RabbitMQ transport: the bus's promise kept over AMQP 0-9-1, with aio-pika for the wire only.

Two connections, one for publishing and one for consuming, so that back-pressure on the one never stops the
other. Each consumer is a supervised task of its own: it declares, consumes, and begins again when its channel,
its connection or its queue is gone.
"""

from __future__ import annotations

import asyncio
import logging

import aiormq
from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from quintain.bus.base import (
    DELETE_TIMEOUT_SECONDS,
    PUBLISH_TIMEOUT_SECONDS,
    Consumer,
    Envelope,
    Handler,
    Lost,
    Subscription,
)
from quintain.bus.broker_url import user_of
from quintain.bus.rabbit_consumer import RabbitConsumer
from quintain.bus.rabbit_declarations import Declarations
from quintain.bus.rabbit_link import PAUSE_SECONDS, RabbitLink, in_our_words
from quintain.bus.rabbit_message import properties_of
from quintain.errors import BrokerUnavailable, BusError, Unroutable
from quintain.topology import Exchange, Queue, Topology

log = logging.getLogger(__name__)


class RabbitBus:
    """The bus over one RabbitMQ, kept connected."""

    def __init__(self, url: str, name: str = "client") -> None:
        self.user = user_of(url)
        self._publishing = RabbitLink(url, f"{name} publishing")
        self._consuming = RabbitLink(url, f"{name} consuming")
        self._channel: aiormq.Channel | None = None
        self._opening = asyncio.Lock()
        self._consumers: set[RabbitConsumer] = set()
        self._declarations = Declarations(self._consuming, self._consumers)

    @property
    def connected(self) -> bool:
        return self._publishing.up and self._consuming.up

    @property
    def reconnects(self) -> int:
        return self._publishing.reconnects + self._consuming.reconnects

    async def start(self, timeout: float = PUBLISH_TIMEOUT_SECONDS) -> None:
        """Connect; raises `BrokerUnavailable` after the timeout (seconds), `BrokerRefused`."""
        self._publishing.start()
        self._consuming.start()
        try:
            await self._publishing.connection(timeout)
            await self._consuming.connection(timeout)
        except BusError:
            await self.close()
            raise

    async def declare(self, topology: Topology, *, kept: bool = True) -> None:
        await self._declarations.declare(topology, kept=kept)

    async def delete(self, queue: Queue, *, timeout: float = DELETE_TIMEOUT_SECONDS) -> None:
        await self._declarations.delete(queue, timeout)

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

    async def consume(self, queue: Queue, handler: Handler, *, prefetch: int, lost: Lost | None = None) -> Consumer:
        consumer = RabbitConsumer(
            self._consuming,
            self._declarations.declare_again,
            Subscription(queue, handler, prefetch, lost),
            self._consumers.discard,
        )
        self._consumers.add(consumer)
        try:
            await consumer.started()
        except BaseException:
            await consumer.drain(0)
            raise
        return consumer

    async def close(self) -> None:
        for consumer in list(self._consumers):
            await consumer.drain(0)
        await self._publishing.close()
        await self._consuming.close()

    async def _publish_again(self, exchange: Exchange, key: str, envelope: Envelope, timeout: float) -> None:
        """Whether a publish without its confirm arrived is not known: it goes out again, and may arrive twice."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(BrokerUnavailable), wait=wait_fixed(PAUSE_SECONDS)
        ):
            with attempt:
                try:
                    await self._publish_once(exchange, key, envelope, timeout)
                except Unroutable as returned:
                    returned.arrived_before = True
                    raise

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

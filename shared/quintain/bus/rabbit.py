"""The RabbitMQ transport: `Bus` over AMQP 0-9-1, on aio-pika.

It uses two connections, one to publish and one to consume, so that flow control on one does not block the other. Each
consumer is a supervised task that declares, consumes, and restarts when its channel, connection or queue is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import aiormq
from aio_pika.abc import AbstractChannel
from aiormq.abc import ChannelFrame
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from quintain.bus.base import (
    DELETE_TIMEOUT_SECONDS,
    HEARTBEAT_SECONDS,
    PUBLISH_TIMEOUT_SECONDS,
    Consumer,
    Envelope,
    Handler,
    OnQueueLost,
    QueueCount,
    Subscription,
)
from quintain.bus.failure_log import FailureLog
from quintain.bus.rabbit_connection import (
    CONNECTION_ERRORS,
    RETRY_SECONDS,
    TRANSLATED_ERRORS,
    RabbitConnection,
    outage_log,
    to_bus_error,
    translated,
)
from quintain.bus.rabbit_consumer import RabbitConsumer, install_tolerant_decoders
from quintain.bus.rabbit_declarations import Declarations
from quintain.errors import BrokerUnavailable, BusError, QueueFull, Unroutable
from quintain.settings import url_user
from quintain.topology import Exchange, Queue, Topology

log = logging.getLogger(__name__)

#: After so many nacks a channel is replaced by a fresh one: RabbitMQ nacks a channel whose first message to a quorum
#: queue met a dead leader until that node is back, although the queue has another leader.
MAX_NACKS = 3

#: Pause before a declaration is tried again, in seconds.
DECLARE_RETRY_SECONDS = 0.5

#: A channel is used for so long at least, in seconds: where the queue is full, a fresh one is nacked too.
MIN_CHANNEL_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class _PublishChannel:
    """A channel for publishes, the nacks that it got, and how many publishes wait for their confirms."""

    pika_channel: AbstractChannel
    underlay: aiormq.Channel
    opened_at: float
    nacks: int = 0
    unconfirmed: int = 0

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and was not nacked too often."""
        is_nacked = self.nacks >= MAX_NACKS and asyncio.get_running_loop().time() - self.opened_at > MIN_CHANNEL_SECONDS
        return not (self.underlay.is_closed or is_nacked)


class RabbitBus:
    """A `Bus` over RabbitMQ that reconnects by itself.

    ``url`` may name several nodes of a cluster; ``name`` is shown in the broker's list of connections. A declaration
    whose connection is lost is repeated for ``declare_seconds``, or, where it is None, until it is done.
    ``heartbeat_seconds`` is the interval of AMQP's heartbeats where the URL names none.
    """

    def __init__(
        self,
        url: str,
        name: str = "client",
        *,
        declare_seconds: float | None = PUBLISH_TIMEOUT_SECONDS,
        heartbeat_seconds: int = HEARTBEAT_SECONDS,
    ) -> None:
        self._declare_seconds = declare_seconds
        self.user = url_user(url)
        outages = outage_log(url, name)
        self._publish_connection = RabbitConnection(url, f"{name} publishing", outages, heartbeat_seconds)
        self._consume_connection = RabbitConnection(url, f"{name} consuming", outages, heartbeat_seconds)
        self._channel: _PublishChannel | None = None
        self._channel_lock = asyncio.Lock()
        self._may_publish: Callable[[], bool] | None = None
        self._consumers: set[RabbitConsumer] = set()
        self._declarations = Declarations(self._consume_connection, self._consumers)
        self._not_declared = FailureLog(log, f"{name}: not declared", f"{name}: declared", self)
        self._not_consumed = FailureLog(log, f"{name}: not consumed", f"{name}: consumed again", self)

    @property
    def connected(self) -> bool:
        """Whether both connections are open."""
        return self._publish_connection.is_open and self._consume_connection.is_open

    @property
    def reconnects(self) -> int:
        """How many times either connection was lost and opened again."""
        return self._publish_connection.reconnects + self._consume_connection.reconnects

    async def start(self, timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS) -> None:
        """Connect. Raises `BrokerUnavailable` after the timeout (seconds), and `BrokerRefused`."""
        install_tolerant_decoders()
        self._publish_connection.start()
        self._consume_connection.start()
        try:
            await self._publish_connection.wait_connection(timeout_seconds)
            await self._consume_connection.wait_connection(timeout_seconds)
        except BaseException:
            await self.close()
            raise

    async def declare(self, topology: Topology, *, redeclare: bool = True) -> None:
        """Implements `Bus.declare`."""
        problem, attempts = "", object()
        try:
            async with asyncio.timeout(self._declare_seconds):
                while True:
                    try:
                        await self._declarations.declare(topology, redeclare=redeclare)
                    except BrokerUnavailable as error:  # the connection was lost meanwhile, or an exchange is missing
                        self._not_declared.failed(error, attempts)
                        problem = error.message
                        await asyncio.sleep(DECLARE_RETRY_SECONDS)
                    else:
                        return self._not_declared.worked(attempts)
        except TimeoutError:
            names = ", ".join([*(one.name for one in topology.exchanges), *(one.name for one in topology.queues)])
            raise BrokerUnavailable(f"declaring {names}: not in {self._declare_seconds:.1f} s ({problem})") from None
        finally:
            self._not_declared.forget(attempts)

    async def delete(self, queue: Queue, *, timeout_seconds: float = DELETE_TIMEOUT_SECONDS) -> None:
        """Implements `Bus.delete`."""
        await self._declarations.delete(queue, timeout_seconds)

    async def count(self, queues: Sequence[Queue]) -> dict[str, QueueCount]:
        """Implements `Bus.count`."""
        return await self._declarations.count(queues)

    def publish_only_while(self, may_publish: Callable[[], bool]) -> None:
        """Implements `Bus.publish_only_while`."""
        self._may_publish = may_publish

    async def publish(
        self, exchange: Exchange, key: str, envelope: Envelope, *, timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        """Implements `Bus.publish`: a publish whose confirm is lost with the connection is repeated."""
        is_repeated = False
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    try:
                        return await self._publish_once(exchange, key, envelope, timeout_seconds)
                    except BrokerUnavailable:
                        await asyncio.sleep(RETRY_SECONDS if is_repeated else 0)
                        is_repeated = True
                    except Unroutable as unroutable:
                        # The first publish may have arrived, so the message may be delivered twice.
                        unroutable.maybe_delivered_before = is_repeated
                        raise
        except TimeoutError:
            raise BrokerUnavailable(
                f"publishing to {exchange.name} for {key!r}: not confirmed within {timeout_seconds:.1f} s"
            ) from None

    async def publish_all(
        self,
        exchange: Exchange,
        key: str,
        envelopes: Sequence[Envelope],
        *,
        timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> list[BusError | None]:
        """Implements `Bus.publish_all`."""
        action = f"publishing to {exchange.name} for {key!r}"
        try:
            async with asyncio.timeout(timeout_seconds):
                channel = await self._usable_channel(timeout_seconds)
                self._require_may_publish()
                channel.unconfirmed += len(envelopes)
                try:
                    confirms = await _send_together(channel.underlay, exchange, key, envelopes, self.user)
                    results = await asyncio.gather(*confirms, return_exceptions=True)
                finally:
                    channel.unconfirmed -= len(envelopes)
                    if channel is not self._channel:
                        await self._close_if_unused(channel)
        except TimeoutError:
            unconfirmed = BrokerUnavailable(f"{action}: not confirmed within {timeout_seconds:.1f} s")
            return [unconfirmed] * len(envelopes)
        except (BusError, *TRANSLATED_ERRORS) as error:
            failure = error if isinstance(error, BusError) else translated(error, action, exchange)
            if not isinstance(failure, BusError):
                raise failure from None
            return [failure] * len(envelopes)
        outcomes = [to_bus_error(one, action, exchange) if isinstance(one, BaseException) else None for one in results]
        channel.nacks += sum(isinstance(outcome, QueueFull) for outcome in outcomes)
        return outcomes

    async def consume(
        self, queue: Queue, handler: Handler, *, prefetch: int, on_queue_lost: OnQueueLost | None = None
    ) -> Consumer:
        """Implements `Bus.consume`."""
        consumer = RabbitConsumer(
            self._consume_connection,
            self._declarations.redeclare_all,
            Subscription(queue, handler, prefetch, on_queue_lost),
            self._consumers.discard,
            self._not_consumed,
        )
        self._consumers.add(consumer)
        try:
            await consumer.wait_attached()
        except BaseException:
            await consumer.drain(0)
            raise
        return consumer

    async def close(self) -> None:
        """Implements `Bus.close`."""
        for consumer in list(self._consumers):
            await consumer.drain(0)
        await self._publish_connection.close()
        await self._consume_connection.close()

    async def _publish_once(self, exchange: Exchange, key: str, envelope: Envelope, timeout_seconds: float) -> None:
        channel = self._channel
        if channel is None or channel.nacks >= MAX_NACKS or channel.underlay.is_closed:
            channel = await self._usable_channel(timeout_seconds)
        self._require_may_publish()
        channel.unconfirmed += 1
        try:
            await channel.underlay.basic_publish(
                envelope.body,
                exchange=exchange.name,
                routing_key=key,
                properties=_properties(envelope, self.user),
                mandatory=True,
                wait=False,
            )
        except TRANSLATED_ERRORS as error:
            failure = translated(error, f"publishing to {exchange.name} for {key!r}", exchange)
            channel.nacks += isinstance(failure, QueueFull)
            try:
                raise failure from None
            finally:
                # A frame that holds its own exception would keep the frames of all callers, and the bodies in them.
                del failure
        finally:
            channel.unconfirmed -= 1
            if channel is not self._channel:
                await self._close_if_unused(channel)

    def _require_may_publish(self) -> None:
        if self._may_publish is not None and not self._may_publish():
            raise BrokerUnavailable("This process may not publish now")

    async def _usable_channel(self, timeout_seconds: float) -> _PublishChannel:
        """Return the channel for publishes, a new one where it is closed or was nacked too often."""
        async with self._channel_lock:
            replaced = self._channel
            if replaced is not None and replaced.is_usable:
                return replaced
            pika_channel = await self._publish_connection.open_channel(timeout_seconds)
            underlay = await pika_channel.get_underlay_channel()
            assert isinstance(underlay, aiormq.Channel)
            channel = self._channel = _PublishChannel(pika_channel, underlay, asyncio.get_running_loop().time())
        if replaced is not None:
            await self._close_if_unused(replaced)
        return channel

    async def _close_if_unused(self, channel: _PublishChannel) -> None:
        """Close a channel that another one has replaced, once none of its publishes waits for a confirm."""
        if channel.unconfirmed or channel.underlay.is_closed:
            return
        with contextlib.suppress(*CONNECTION_ERRORS):
            await self._publish_connection.close_channel(channel.pika_channel)


async def _send_together(
    channel: aiormq.Channel, exchange: Exchange, key: str, envelopes: Sequence[Envelope], user: str
) -> list[asyncio.Future[object]]:
    """Send messages with one write, and return the futures of their confirms.

    aiormq writes each message by itself, which takes longer than everything else that a message costs.
    """
    frames, message_ids = list[Basic.Publish | ContentHeader | ContentBody](), list[str]()
    for envelope in envelopes:
        properties, body, size = _properties(envelope, user), envelope.body, channel.max_content_size
        message_ids.append(str(properties.message_id))
        frames.append(Basic.Publish(exchange=exchange.name, routing_key=key, mandatory=True))
        frames.append(ContentHeader(properties=properties, body_size=len(body)))
        frames += [ContentBody(body[start : start + size]) for start in range(0, len(body), size)]
    confirms = list[asyncio.Future[object]]()
    async with channel.lock:
        await channel.write_queue.put(ChannelFrame.marshall(frames=frames, channel_number=channel.number))
        # Nothing else runs before these are known, so that no confirm comes earlier.
        for message_id in message_ids:
            channel.delivery_tag += 1
            confirm = channel.confirmations[channel.delivery_tag] = channel.create_future()
            channel.message_id_delivery_tag[message_id] = channel.delivery_tag
            confirm.add_done_callback(partial(_forget, channel.message_id_delivery_tag, message_id))
            confirms.append(confirm)
    return confirms


def _forget(tags: dict[str, int], message_id: str, _: object) -> None:
    tags.pop(message_id, None)


def _properties(envelope: Envelope, user: str) -> Basic.Properties:
    return Basic.Properties(
        content_type=envelope.content_type,
        delivery_mode=2 if envelope.persistent else 1,
        # New for each publish: aiormq matches returned messages by it, so that a repeated id would confirm the wrong
        # one.
        message_id=secrets.token_hex(16),
        message_type=envelope.type,
        correlation_id=envelope.correlation_id,
        reply_to=envelope.reply_to,
        headers=dict(envelope.headers),
        user_id=user if envelope.names_user else None,
        expiration=None if envelope.expiration_ms is None else str(envelope.expiration_ms),
    )

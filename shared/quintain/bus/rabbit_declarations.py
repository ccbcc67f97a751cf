"""Declares a bus's topology at RabbitMQ, and declares it again after a reconnect.

Before declaring again it checks passively which watched queues are missing, because a declaration would recreate them
and hide the loss. `quintain doctor` checks a broker's topology without changing it.

A passive declaration needs a permission on what it asks for since RabbitMQ 4.2.6 (configure in 4.2.6 and 4.3.0, any
later): a user looks for its own queues alone. That an exchange is missing is seen by binding a queue to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import uuid4

from aiormq import exceptions as amqp

from quintain.bus.base import QueueCount
from quintain.bus.rabbit_connection import QUEUE_GONE_ERRORS, RabbitConnection, is_missing
from quintain.bus.rabbit_consumer import RabbitConsumer
from quintain.contracts.credentials import mask_tokens
from quintain.errors import BrokerRefused, BrokerUnavailable
from quintain.topology import Exchange, Queue, Topology

log = logging.getLogger(__name__)


class Declarations:
    """The topology that one bus declares, and declares again after a reconnect."""

    def __init__(self, connection: RabbitConnection, consumers: Collection[RabbitConsumer]) -> None:
        self._connection, self._consumers = connection, consumers
        self._topology = Topology()
        self._refused = set[str]()
        self._lock = asyncio.Lock()
        self._requested = self._completed = 0

    async def declare(self, topology: Topology, *, redeclare: bool) -> None:
        """Declare a topology now, and with ``redeclare`` also after every reconnect."""
        await self._declare(topology)
        if redeclare:
            self._topology += topology

    async def redeclare_all(self) -> None:
        """Declare again everything declared with ``redeclare``, because the broker may have lost it.

        One pass runs at a time, and requests that wait meanwhile share the next one: a bus has many consumers, and they
        all lose their connection at once. Watched queues are checked before anything is declared, because a declaration
        would recreate a lost queue and hide the loss.
        """
        self._requested += 1
        request_number = self._requested
        async with self._lock:
            if self._completed >= request_number:
                return
            covers_requests = self._requested
            for consumer in list(self._consumers):
                if consumer.watched_queue is not None and not await self._queue_exists(consumer.watched_queue):
                    consumer.report_lost_queue()
            await self._declare(self._topology)
            self._completed = covers_requests

    async def delete(self, queue: Queue, timeout_seconds: float) -> None:
        """Delete a queue and stop redeclaring it. Raises `BrokerUnavailable` after the timeout (seconds)."""
        self._topology = self._topology.without(queue)
        try:
            # Under the lock: a concurrent declaration would recreate the queue.
            async with (
                asyncio.timeout(timeout_seconds),
                self._lock,
                self._connection.channel_for(f"deleting {queue.name}", timeout_seconds) as channel,
            ):
                await channel.queue_delete(queue.name)
        except TimeoutError:
            raise BrokerUnavailable(f"deleting {queue.name}: not done within {timeout_seconds:.1f} s") from None

    async def count(self, queues: Sequence[Queue]) -> dict[str, QueueCount]:
        """Return the waiting messages and the consumers of each queue, up to the first that does not exist."""
        counts: dict[str, QueueCount] = {}
        if not queues:
            return counts
        async with self._connection.channel_for("counting messages and consumers") as channel:
            for queue in queues:
                try:
                    declared = await channel.queue_declare(queue.name, passive=True)
                except QUEUE_GONE_ERRORS:
                    return counts
                counts[queue.name] = QueueCount(declared.message_count or 0, declared.consumer_count or 0)
        return counts

    async def _queue_exists(self, queue: Queue) -> bool:
        async with self._connection.channel_for(f"looking for {queue.name}") as channel:
            try:
                await channel.queue_declare(queue.name, passive=True)
            except QUEUE_GONE_ERRORS:
                return False
        return True

    async def _declare(self, topology: Topology) -> None:
        # A classic queue whose cluster node is down can be neither declared nor deleted, nor can an exclusive one of
        # an earlier connection whose loss the broker has not noticed. Its consumer waits for it; the other queues must
        # not wait with it.
        while (unavailable := await self._declare_available(topology)) is not None:
            if isinstance(unavailable, Exchange):
                await self._declare_missing(unavailable)
            else:
                log.debug("The queue %s is on a node that is down, or locked: it is skipped", unavailable.name)
                topology = topology.without(unavailable)

    async def _declare_missing(self, exchange: Exchange) -> None:
        """Declare an exchange that does not exist. Raises `BrokerUnavailable` where only another user may."""
        if exchange.name not in self._refused:
            try:
                await self._declare_available(Topology((exchange,)))
            except BrokerRefused:
                self._refused.add(exchange.name)  # not tried again: the broker logs each refusal
            else:
                return
        raise BrokerUnavailable(
            f"{exchange.name} does not exist, and this user may not declare it: start `quintain serve metadata`"
        )

    async def _declare_available(self, topology: Topology) -> Queue | Exchange | None:
        """Declare all, and bind the queues; returns at what it stopped: an unavailable classic queue, or an exchange
        that is to be bound and does not exist."""
        # A separate channel: a refused or cancelled declaration closes only this one.
        async with self._connection.channel_for("declaring") as channel:
            for exchange in topology.exchanges:
                await _declare(channel, exchange)
            for queue in topology.queues:
                try:
                    await _declare(channel, queue)
                except QUEUE_GONE_ERRORS:
                    if queue.kind != "classic":
                        raise
                    return queue
            for binding in topology.bindings:
                try:
                    await channel.queue_bind(binding.queue.name, binding.exchange.name, binding.key)
                except QUEUE_GONE_ERRORS as error:
                    if not is_missing(binding.exchange, error):
                        raise
                    return binding.exchange
        return None


class DeclarationStatus(StrEnum):
    """Whether an exchange or queue at the broker matches its declaration."""

    SAME = "same"
    MISSING = "missing"
    DIFFERENT = "different"
    #: It exists, but this user may not declare it, so that its arguments cannot be compared.
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class DeclarationCheck:
    """The result for one exchange or queue; ``broker_message`` is the broker's error on a difference or a refusal."""

    name: str
    status: DeclarationStatus
    broker_message: str = ""


class BrokerInspector:
    """Read-only checks over one connection to a broker."""

    def __init__(self, connection: RabbitConnection) -> None:
        self._connection = connection

    async def version(self) -> str:
        """Return the broker's version as reported in its server properties."""
        connection = await self._connection.wait_connection()
        assert connection.transport is not None
        return _version(connection.transport.connection)

    async def refuses_message_of(self, body_bytes: int) -> bool:
        """Return whether the broker refuses a message of this many bytes. It is sent, to no queue.

        Under an alarm of its memory or disk the broker takes no message and reads nothing more from the connection: the
        caller sets a timeout, and uses the connection for no other check after it.
        """
        async with self._connection.channel_for("sending a message") as channel:
            try:
                await channel.basic_publish(bytes(body_bytes), exchange="", routing_key=f"quintain.no-queue.{uuid4()}")
            except amqp.ChannelPreconditionFailed:
                return True
            except amqp.ChannelAccessRefused:  # rights are looked at after the size
                return False
        return False

    async def check(self, declared: Exchange | Queue) -> DeclarationCheck:
        """Compare an exchange or queue at the broker with its declaration, without creating it."""
        async with self._connection.channel_for(f"looking for {declared.name}") as channel:
            try:
                # A passive declaration only checks existence. If it exists, an active one compares the arguments.
                await _declare(channel, declared, passive=True)
                await _declare(channel, declared)
            except QUEUE_GONE_ERRORS:
                return DeclarationCheck(declared.name, DeclarationStatus.MISSING)
            except amqp.ChannelPreconditionFailed as difference:
                return DeclarationCheck(declared.name, DeclarationStatus.DIFFERENT, mask_tokens(str(difference)))
            except amqp.ChannelAccessRefused as refusal:
                return DeclarationCheck(declared.name, DeclarationStatus.HIDDEN, mask_tokens(str(refusal)))
        return DeclarationCheck(declared.name, DeclarationStatus.SAME)


async def _declare(underlay: Any, declared: Exchange | Queue, *, passive: bool = False) -> None:
    arguments = None if passive else dict(declared.arguments)
    if isinstance(declared, Queue):
        if arguments and declared.kind == "classic" and not is_older(_version(underlay.connection), (4, 3)):
            # Only quorum queues have a consumer timeout there, and the argument is refused.
            arguments.pop("x-consumer-timeout", None)
        lasts = {"durable": not declared.exclusive, "exclusive": declared.exclusive}
        await underlay.queue_declare(declared.name, **lasts, passive=passive, arguments=arguments)
    else:
        await underlay.exchange_declare(
            declared.name, exchange_type=declared.kind, durable=True, passive=passive, arguments=arguments
        )


def _version(connection: Any) -> str:
    version = connection.server_properties.get("version", b"?")
    return version.decode(errors="replace") if isinstance(version, bytes) else str(version)


def is_older(version: str, than: tuple[int, int]) -> bool:
    """Return whether a version of RabbitMQ is older than this one; one that cannot be read is not."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < than


@contextlib.asynccontextmanager
async def inspect_broker(url: str, *, timeout_seconds: float) -> AsyncIterator[BrokerInspector]:
    """Open a connection to the broker at this URL for checks. Raises `BrokerUnavailable`, `BrokerRefused`."""
    connection = RabbitConnection(url, "doctor")
    connection.start()
    try:
        await connection.wait_connection(timeout_seconds)
        yield BrokerInspector(connection)
    finally:
        # A broker that reads no more does not answer this either.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await connection.close()

"""The in-memory transport: a bus within one process, for local runs, demos and tests. Public.

`MemoryBroker` is the broker and `MemoryBus` one connection to it. It is not meant for production and has no feature
that RabbitMQ lacks; tests/conformance checks that it behaves as the RabbitMQ transport does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from quintain.bus.base import (
    DELETE_TIMEOUT_SECONDS,
    PUBLISH_TIMEOUT_SECONDS,
    Consumer,
    Envelope,
    Handler,
    HandlerTasks,
    OnQueueLost,
    QueueCount,
    Subscription,
)
from quintain.bus.memory_queue import MemoryQueue, QueuedMessage
from quintain.errors import BrokerUnavailable, BusError, QueueFull, Unroutable
from quintain.topology import DELIVERY_LIMIT, Exchange, Queue, Topology

#: How often a connection that may not publish now asks again, in seconds.
MAY_PUBLISH_SECONDS = 0.05


class MemoryBroker:
    """An in-memory broker: exchanges, queues and bindings in this process.

    Example::

        broker = MemoryBroker()
        bus = broker.connect()
        await bus.declare(topology)
    """

    def __init__(self) -> None:
        self._exchanges: dict[str, Exchange] = {}
        self._bindings: dict[str, list[tuple[str, str]]] = {}
        self._queues: dict[str, MemoryQueue] = {}

    def connect(self, user: str = "guest") -> MemoryBus:
        """Return a new connection of this user; closing it returns its unsettled messages to their queues."""
        return MemoryBus(self, user)

    def declare(self, topology: Topology) -> None:
        """Declare exchanges, queues and bindings, and what the queues are bound to; existing ones stay as they are."""
        for exchange in topology.exchanges:
            self._exchanges.setdefault(exchange.name, exchange)
            self._bindings.setdefault(exchange.name, [])
        for queue in topology.queues:
            if queue.name not in self._queues:
                self._queues[queue.name] = MemoryQueue(queue, self._dead_letter, self._remove)
                self._queues[queue.name].start_expiry_timer()
        for binding in topology.bindings:
            if binding.exchange.name not in self._exchanges:
                self.declare(Topology((binding.exchange,)))
            binding_key = (binding.queue.name, binding.key)
            if binding_key not in self._bindings[binding.exchange.name]:
                self._bindings[binding.exchange.name].append(binding_key)

    def publish(self, exchange: str, key: str, envelope: Envelope, user: str = "guest") -> None:
        """Route a message of this user to every bound queue. Raises `Unroutable`, `QueueFull`."""
        queues, exchange_name = self._route(exchange, key)
        if not queues:
            raise Unroutable(f"Nothing is bound to {exchange} for {key!r}")
        if any(queue.is_full for queue in queues):
            raise QueueFull(f"A queue of {exchange} for {key!r} is full")
        for queue in queues:
            queue.put(envelope, exchange_name, key, dict(envelope.headers), user if envelope.names_user else None)

    def queue(self, name: str) -> MemoryQueue:
        """Return the queue of this name. Raises `BusError` if it does not exist."""
        if name not in self._queues:
            raise BusError(f"There is no queue {name}")
        return self._queues[name]

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages, and notify its consumers."""
        queue = self.queue(name)
        consumers, queue.consumers = queue.consumers, deque()
        for consumer in consumers:
            consumer.on_connection_lost(queue_deleted=True)
        self._remove(queue)

    def has_queue(self, name: str) -> bool:
        """Return whether a queue of this name exists."""
        return name in self._queues

    def close(self) -> None:
        """Stop the timers of all queues."""
        for queue in self._queues.values():
            queue.close()

    def _route(self, name: str, key: str) -> tuple[list[MemoryQueue], str]:
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise Unroutable(f"There is no exchange {name}: `quintain serve metadata` declares those of the protocol")
        matches = {
            queue: self._queues[queue]
            for queue, bound_key in self._bindings[name]
            if queue in self._queues and (exchange.kind == "fanout" or bound_key == key)
        }
        if not matches and exchange.alternate is not None:
            return self._route(exchange.alternate, key)
        return list(matches.values()), name

    def _dead_letter(self, queue: MemoryQueue, message: QueuedMessage, reason: str) -> None:
        if queue.spec.dead_letter_exchange is None:
            return
        headers = dict(message.headers)
        headers.setdefault("x-first-death-reason", reason)
        headers.setdefault("x-first-death-queue", queue.spec.name)
        headers.setdefault("x-first-death-exchange", message.exchange)
        key = queue.spec.dead_letter_key or message.key
        for dead_letter_queue in self._route(queue.spec.dead_letter_exchange, key)[0]:
            dead_letter = Envelope(
                body=message.envelope.body,
                type=message.envelope.type,
                correlation_id=message.envelope.correlation_id,
                reply_to=message.envelope.reply_to,
            )
            dead_letter_queue.put(dead_letter, queue.spec.dead_letter_exchange, key, headers, message.user_id)

    def _remove(self, queue: MemoryQueue) -> None:
        queue.close()
        self._queues.pop(queue.spec.name, None)
        for bindings in self._bindings.values():
            bindings[:] = [binding for binding in bindings if binding[0] != queue.spec.name]


class MemoryBus:
    """One connection to a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, user: str = "guest") -> None:
        self._broker, self.user = broker, user
        self._redeclared_topology = Topology()
        self._consumers: set[MemoryConsumer] = set()
        self._closed = False
        self._may_publish: Callable[[], bool] = lambda: True
        self.reconnects = 0

    @property
    def connected(self) -> bool:
        """Whether the connection is open."""
        return not self._closed

    async def declare(self, topology: Topology, *, redeclare: bool = True) -> None:
        """Implements `Bus.declare`."""
        if redeclare:
            self._redeclared_topology += topology
        self._broker.declare(topology)

    def publish_only_while(self, may_publish: Callable[[], bool]) -> None:
        """Implements `Bus.publish_only_while`."""
        self._may_publish = may_publish

    async def publish(
        self, exchange: Exchange, key: str, envelope: Envelope, *, timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        """Implements `Bus.publish`."""
        give_up_at = asyncio.get_running_loop().time() + timeout_seconds
        while not self._may_publish():
            if asyncio.get_running_loop().time() >= give_up_at:
                raise BrokerUnavailable("This process may not publish now")
            await asyncio.sleep(MAY_PUBLISH_SECONDS)
        if self._closed:
            raise BrokerUnavailable("This connection is closed")
        # One iteration of the event loop, as a publisher confirm over a socket needs at least.
        await asyncio.sleep(0)
        self._broker.publish(exchange.name, key, envelope, self.user)

    async def publish_all(
        self,
        exchange: Exchange,
        key: str,
        envelopes: Sequence[Envelope],
        *,
        timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> list[BusError | None]:
        """Implements `Bus.publish_all`."""
        outcomes = list[BusError | None]()
        for envelope in envelopes:
            try:
                await self.publish(exchange, key, envelope, timeout_seconds=timeout_seconds)
            except BusError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    async def consume(
        self, queue: Queue, handler: Handler, *, prefetch: int, on_queue_lost: OnQueueLost | None = None
    ) -> Consumer:
        """Implements `Bus.consume`."""
        if self._closed:
            raise BrokerUnavailable("This connection is closed")
        consumer = MemoryConsumer(
            self._broker,
            Subscription(queue, handler, prefetch, on_queue_lost),
            self._redeclare,
            self._consumers.discard,
        )
        self._consumers.add(consumer)
        consumer.attach()
        return consumer

    async def delete(self, queue: Queue, *, timeout_seconds: float = DELETE_TIMEOUT_SECONDS) -> None:
        """Implements `Bus.delete`."""
        self._redeclared_topology = self._redeclared_topology.without(queue)
        if self._closed:
            raise BrokerUnavailable("This connection is closed")
        await asyncio.sleep(0)
        if self._broker.has_queue(queue.name):
            self._broker.delete_queue(queue.name)

    async def count(self, queues: Sequence[Queue]) -> dict[str, QueueCount]:
        """Implements `Bus.count`."""
        found = {queue.name: self._broker.queue(queue.name) for queue in queues if self._broker.has_queue(queue.name)}
        return {name: QueueCount(len(queue.ready), len(queue.consumers)) for name, queue in found.items()}

    def drop_connection(self) -> None:
        """Simulate the loss of the connection, for tests."""
        self.reconnects += 1
        for consumer in list(self._consumers):
            consumer.on_connection_lost()

    async def close(self) -> None:
        """Implements `Bus.close`."""
        self._closed = True
        for consumer in list(self._consumers):
            await consumer.drain(0)
        for queue in self._redeclared_topology.queues:
            if queue.exclusive and self._broker.has_queue(queue.name):
                self._broker.delete_queue(queue.name)

    def _redeclare(self) -> None:
        # Report lost queues first: declaring them again would hide the loss.
        for consumer in list(self._consumers):
            consumer.report_lost_queue()
        self._broker.declare(self._redeclared_topology)


class MemoryDelivery:
    """A `Delivery` of the memory transport; the protocol documents its members."""

    def __init__(
        self, message: QueuedMessage, queue: MemoryQueue, consumer: MemoryConsumer, connection_number: int
    ) -> None:
        self._message, self._queue, self._consumer = message, queue, consumer
        self._connection_number = connection_number
        envelope = message.envelope
        self.body, self.type, self.expiration_ms = envelope.body, envelope.type, envelope.expiration_ms
        self.correlation_id, self.reply_to = envelope.correlation_id, envelope.reply_to
        self.exchange, self.routing_key, self.user_id = message.exchange, message.key, message.user_id
        self.redelivered = message.return_count > 0
        self.headers: Mapping[str, object] = message.headers
        if self.redelivered and queue.spec.kind == "quorum":
            # As a quorum queue of RabbitMQ says it.
            self.headers = {**message.headers, "x-delivery-count": message.return_count}

    async def ack(self) -> None:
        if self._consumer.settle(self._message, self._connection_number):
            self._queue.deliver_ready()

    async def requeue(self) -> None:
        if self._consumer.settle(self._message, self._connection_number):
            self._queue.requeue(self._message)

    async def dead_letter(self) -> None:
        if self._consumer.settle(self._message, self._connection_number):
            self._queue.dead_letter(self._queue, self._message, "rejected")
            self._queue.deliver_ready()


@dataclass(slots=True, eq=False)
class MemoryConsumer:
    """A `Consumer` of the memory transport, and the `QueueConsumer` of its queue; they document its members."""

    _broker: MemoryBroker
    _subscription: Subscription
    #: Redeclares the topology of the consumer's bus.
    _redeclare: Callable[[], None]
    _on_drained: Callable[[MemoryConsumer], None]
    _tasks: HandlerTasks = field(init=False)
    _unsettled: dict[QueuedMessage, MemoryQueue] = field(default_factory=dict)
    _queue: MemoryQueue | None = None
    _connection_number: int = 0
    _cancelled: bool = False
    #: Whether the consumer was attached and the loss of its queue was not reported since.
    _loss_reportable: bool = False
    _queue_lost: bool = False

    def __post_init__(self) -> None:
        self._tasks = HandlerTasks(self._subscription.queue.delivery_limit or DELIVERY_LIMIT)

    @property
    def has_capacity(self) -> bool:
        return len(self._unsettled) < self._subscription.prefetch

    @property
    def active(self) -> bool:
        return self._queue is not None

    def attach(self) -> None:
        """Attach to the queue, for the first time or again."""
        queue = self._subscription.queue
        self._redeclare()
        self._broker.declare(Topology(queues=(queue,)))
        self._queue, self._loss_reportable, self._queue_lost = self._broker.queue(queue.name), True, False
        self._queue.attach(self)

    def deliver(self, queue: MemoryQueue, message: QueuedMessage) -> None:
        self._unsettled[message] = queue
        self._tasks.start(self._subscription.handler, MemoryDelivery(message, queue, self, self._connection_number))

    def settle(self, message: QueuedMessage, connection_number: int) -> bool:
        """Mark a message settled; returns False if it was delivered on a connection that was lost since."""
        return connection_number == self._connection_number and self._unsettled.pop(message, None) is not None

    def on_connection_lost(self, *, queue_deleted: bool = False) -> None:
        """Requeue all unsettled messages and attach again; running handlers continue."""
        self._detach()
        self._queue_lost = self._queue_lost or queue_deleted
        self._connection_number += 1
        unsettled, self._unsettled = self._unsettled, {}
        for message, queue in reversed(unsettled.items()):
            queue.requeue(message)
        if not self._cancelled:
            asyncio.get_running_loop().call_soon(self._reattach)

    async def cancel(self) -> None:
        self._cancelled = True
        self._detach()

    async def drain(self, timeout_seconds: float) -> bool:
        await self.cancel()
        finished = await self._tasks.finish(timeout_seconds)
        self.on_connection_lost()
        self._on_drained(self)
        return finished

    def report_lost_queue(self) -> None:
        """Call ``on_queue_lost`` if the queue is gone, at most once until the consumer is attached again."""
        queue_missing = self._queue_lost or not self._broker.has_queue(self._subscription.queue.name)
        if (
            queue_missing
            and self._loss_reportable
            and not self._cancelled
            and self._subscription.on_queue_lost is not None
        ):
            self._loss_reportable = False
            self._subscription.on_queue_lost()

    def _reattach(self) -> None:
        if not self._cancelled and not self.active:
            self.attach()

    def _detach(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.detach(self)

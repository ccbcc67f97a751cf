"""Queues, deliveries and consumers of the in-memory transport, with RabbitMQ's semantics.

Messages expire at the head of the queue only. Redelivery, ``reject-publish``, dead lettering (with RabbitMQ's headers)
and queue expiry are implemented. The queue itself is synchronous and runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quintain.bus.base import Envelope, HandlerTasks, Subscription
from quintain.topology import DELIVERY_LIMIT, Queue, Topology


@dataclass(slots=True, eq=False)
class QueuedMessage:
    """A message in a queue; ``expires_at`` is in seconds of the event loop's clock, None for never."""

    envelope: Envelope
    exchange: str
    key: str
    expires_at: float | None
    headers: Mapping[str, object]
    user_id: str | None = None
    return_count: int = 0


class QueueConsumer(Protocol):
    """The consumer side of a queue."""

    @property
    def has_capacity(self) -> bool:
        """Whether another message may be delivered, given the prefetch."""

    def deliver(self, queue: MemoryQueue, message: QueuedMessage) -> None:
        """Deliver a message to the consumer, which must settle it."""

    def on_connection_lost(self, *, queue_deleted: bool = False) -> None:
        """Handle the loss of the connection, or with ``queue_deleted`` the deletion of the queue."""


@dataclass(slots=True, eq=False)
class MemoryQueue:
    """A queue: ready messages in order, and its consumers in round-robin order."""

    spec: Queue
    #: Called with (queue, message, reason) for a message that is dead-lettered; reasons as RabbitMQ names them.
    dead_letter: Callable[[MemoryQueue, QueuedMessage, str], None]
    #: Called when the queue had no consumer for ``expires_ms``.
    on_expired: Callable[[MemoryQueue], None]
    ready: deque[QueuedMessage] = field(default_factory=deque)
    consumers: deque[QueueConsumer] = field(default_factory=deque)
    _head_expiry_timer: asyncio.TimerHandle | None = None
    _queue_expiry_timer: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        """Whether the queue is at its maximum length, so that a publish is rejected."""
        return self.spec.max_length is not None and len(self.ready) >= self.spec.max_length

    def put(
        self, envelope: Envelope, exchange: str, key: str, headers: Mapping[str, object], user_id: str | None
    ) -> None:
        """Append a message and deliver it if a consumer has capacity."""
        ttls_ms = [ms for ms in (envelope.expiration_ms, self.spec.message_ttl_ms) if ms is not None]
        expires_at = asyncio.get_running_loop().time() + min(ttls_ms) / 1000 if ttls_ms else None
        self.ready.append(QueuedMessage(envelope, exchange, key, expires_at, headers, user_id))
        self.deliver_ready()

    def requeue(self, message: QueuedMessage) -> None:
        """Return a message to the head of the queue; the consumer gives up one that was delivered too often."""
        message.return_count += 1
        self.ready.appendleft(message)
        self.deliver_ready()

    def attach(self, consumer: QueueConsumer) -> None:
        """Add a consumer."""
        self.consumers.append(consumer)
        if self._queue_expiry_timer is not None:
            self._queue_expiry_timer.cancel()
            self._queue_expiry_timer = None
        self.deliver_ready()

    def detach(self, consumer: QueueConsumer) -> None:
        """Remove a consumer."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        if not self.consumers:
            self.start_expiry_timer()

    def start_expiry_timer(self) -> None:
        """Start the timer after which the unused queue is deleted."""
        if self.spec.expires_ms is not None and self._queue_expiry_timer is None:
            loop = asyncio.get_running_loop()
            self._queue_expiry_timer = loop.call_later(self.spec.expires_ms / 1000, self.on_expired, self)

    def deliver_ready(self) -> None:
        """Deliver ready messages round-robin while consumers have capacity; dead-letter expired ones at the head."""
        while self.ready:
            if self._head_expired():
                self.dead_letter(self, self.ready.popleft(), "expired")
                continue
            consumer = self._next_consumer()
            if consumer is None:
                self._start_head_expiry_timer()
                break
            consumer.deliver(self, self.ready.popleft())

    def close(self) -> None:
        """Stop the timers."""
        for timer in (self._head_expiry_timer, self._queue_expiry_timer):
            if timer is not None:
                timer.cancel()

    def _next_consumer(self) -> QueueConsumer | None:
        for _ in range(len(self.consumers)):
            self.consumers.rotate(-1)
            if self.consumers[-1].has_capacity:
                return self.consumers[-1]
        return None

    def _head_expired(self) -> bool:
        expires_at = self.ready[0].expires_at
        return expires_at is not None and expires_at <= asyncio.get_running_loop().time()

    def _start_head_expiry_timer(self) -> None:
        """Schedule a pass for when the head message expires; an earlier timer is kept, as it reschedules itself."""
        expires_at = self.ready[0].expires_at
        if expires_at is None or (self._head_expiry_timer is not None and self._head_expiry_timer.when() <= expires_at):
            return
        if self._head_expiry_timer is not None:
            self._head_expiry_timer.cancel()
        self._head_expiry_timer = asyncio.get_running_loop().call_at(expires_at, self._on_head_expired)

    def _on_head_expired(self) -> None:
        self._head_expiry_timer = None
        self.deliver_ready()


class QueueRegistry(Protocol):
    """The part of the broker that a consumer uses."""

    def declare(self, topology: Topology) -> None:
        """Declare exchanges, queues and bindings."""

    def queue(self, name: str) -> MemoryQueue:
        """Return the queue of this name."""

    def has_queue(self, name: str) -> bool:
        """Return whether a queue of this name exists."""


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

    _broker: QueueRegistry
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

"""Queues of the in-memory transport, with RabbitMQ's semantics.

Messages expire at the head of the queue only. Redelivery, ``reject-publish``, dead lettering (with RabbitMQ's headers)
and queue expiry are implemented. The queue itself is synchronous and runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quintain.bus.base import Envelope
from quintain.topology import Queue


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

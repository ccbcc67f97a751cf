"""Messages and consumers of the memory transport: what arrives, and who takes it until the connection goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quintain.bus.base import Subscription
from quintain.bus.memory_queue import MemoryQueue, Stored
from quintain.bus.tasks import HandlerTasks
from quintain.topology import Topology


class Queues(Protocol):
    """The broker, as far as a consumer goes."""

    def declare(self, topology: Topology) -> None:
        """Make these exist."""

    def queue(self, name: str) -> MemoryQueue:
        """The queue of this name."""

    def has_queue(self, name: str) -> bool:
        """Whether there is one."""


@dataclass(slots=True, eq=False)
class MemoryDelivery:
    """A message that arrived over the memory transport."""

    _stored: Stored
    _queue: MemoryQueue
    _consumer: MemoryConsumer
    _generation: int

    @property
    def body(self) -> bytes:
        return self._stored.envelope.body

    @property
    def type(self) -> str:
        return self._stored.envelope.type

    @property
    def correlation_id(self) -> str | None:
        return self._stored.envelope.correlation_id

    @property
    def reply_to(self) -> str | None:
        return self._stored.envelope.reply_to

    @property
    def headers(self) -> Mapping[str, object]:
        return self._stored.headers

    @property
    def expiration_ms(self) -> int | None:
        return self._stored.envelope.expiration_ms

    @property
    def exchange(self) -> str:
        return self._stored.exchange

    @property
    def routing_key(self) -> str:
        return self._stored.key

    @property
    def redelivered(self) -> bool:
        return self._stored.returns > 0

    async def ack(self) -> None:
        if self._consumer.settle(self._stored, self._generation):
            self._queue.pump()

    async def requeue(self) -> None:
        if self._consumer.settle(self._stored, self._generation):
            self._queue.give_back(self._stored)

    async def dead_letter(self) -> None:
        if self._consumer.settle(self._stored, self._generation):
            self._queue.bury(self._queue, self._stored, "rejected")
            self._queue.pump()


@dataclass(slots=True, eq=False)
class MemoryConsumer:
    """A queue being consumed over the memory transport."""

    _broker: Queues
    _subscription: Subscription
    #: Makes exist again what its bus declared.
    _declare_again: Callable[[], None]
    _drained: Callable[[MemoryConsumer], None]
    _tasks: HandlerTasks = field(default_factory=HandlerTasks)
    _unsettled: dict[Stored, MemoryQueue] = field(default_factory=dict)
    _queue: MemoryQueue | None = None
    _generation: int = 0
    _cancelled: bool = False
    #: Whether it was attached, and nothing has been said of its queue's loss since.
    _watching: bool = False
    _queue_lost: bool = False

    @property
    def free(self) -> bool:
        return len(self._unsettled) < self._subscription.prefetch

    @property
    def live(self) -> bool:
        return self._queue is not None

    def attach(self) -> None:
        """Begin, or begin again."""
        queue = self._subscription.queue
        self._declare_again()
        self._broker.declare(Topology(queues=(queue,)))
        self._queue, self._watching, self._queue_lost = self._broker.queue(queue.name), True, False
        self._queue.attach(self)

    def take(self, queue: MemoryQueue, stored: Stored) -> None:
        self._unsettled[stored] = queue
        self._tasks.start(self._subscription.handler, MemoryDelivery(stored, queue, self, self._generation))

    def settle(self, stored: Stored, generation: int) -> bool:
        """Whether this settles it: not when the connection it came by is gone."""
        return generation == self._generation and self._unsettled.pop(stored, None) is not None

    def lost(self, *, with_queue: bool = False) -> None:
        """The connection or the queue went away: what was not settled comes again, the handlers run on."""
        self._detach()
        self._queue_lost = self._queue_lost or with_queue
        self._generation += 1
        unsettled, self._unsettled = self._unsettled, {}
        for stored, queue in reversed(unsettled.items()):
            queue.give_back(stored)
        if not self._cancelled:
            asyncio.get_running_loop().call_soon(self._restore)

    async def cancel(self) -> None:
        self._cancelled = True
        self._detach()

    async def drain(self, timeout: float) -> bool:
        await self.cancel()
        done = await self._tasks.finish(timeout)
        self.lost()
        self._drained(self)
        return done

    def look(self) -> None:
        """Say so where the queue is gone: once until it is attached to again."""
        gone = self._queue_lost or not self._broker.has_queue(self._subscription.queue.name)
        if gone and self._watching and not self._cancelled and self._subscription.lost is not None:
            self._watching = False
            self._subscription.lost()

    def _restore(self) -> None:
        if not self._cancelled and not self.live:
            self.attach()

    def _detach(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.detach(self)

"""The memory transport: the bus's promise kept in one process, for a laptop, a demo, a test. Public.

`MemoryBroker` is the broker, `MemoryBus` one connection to it. It is not a broker for production and grows no
features that RabbitMQ lacks; ``tests/conformance`` holds both transports to the same behaviour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from quintain.bus.base import PUBLISH_TIMEOUT_SECONDS, Consumer, Envelope, Handler
from quintain.bus.memory_queue import MemoryQueue, Stored
from quintain.bus.tasks import HandlerTasks
from quintain.errors import BrokerUnavailable, BusError, QueueFull, Unroutable
from quintain.topology import Exchange, Queue, Topology


class MemoryBroker:
    """Exchanges, queues and bindings, in this process."""

    def __init__(self) -> None:
        self._exchanges: dict[str, Exchange] = {}
        self._bindings: dict[str, list[tuple[str, str]]] = {}
        self._queues: dict[str, MemoryQueue] = {}

    def connect(self) -> MemoryBus:
        """A connection of one's own: what it had taken and not settled comes back when it goes."""
        return MemoryBus(self)

    def declare(self, topology: Topology) -> None:
        """Make these exist."""
        for exchange in topology.exchanges:
            self._exchanges.setdefault(exchange.name, exchange)
            self._bindings.setdefault(exchange.name, [])
        for queue in topology.queues:
            if queue.name not in self._queues:
                self._queues[queue.name] = MemoryQueue(queue, self._bury, self._remove)
                self._queues[queue.name].watch_use()
        for binding in topology.bindings:
            bound = (binding.queue.name, binding.key)
            if bound not in self._bindings[binding.exchange.name]:
                self._bindings[binding.exchange.name].append(bound)

    def publish(self, exchange: str, key: str, envelope: Envelope) -> None:
        """Route to every bound queue, or to none. Raises `Unroutable`, `QueueFull`."""
        queues, through = self._route(exchange, key)
        if not queues:
            raise Unroutable(f"Nothing is bound to {exchange} for {key!r}")
        if any(queue.full for queue in queues):
            raise QueueFull(f"A queue of {exchange} for {key!r} is full")
        for queue in queues:
            queue.put(envelope, through, key, dict(envelope.headers))

    def queue(self, name: str) -> MemoryQueue:
        """The queue of this name. Raises `BusError` where none is."""
        if name not in self._queues:
            raise BusError(f"There is no queue {name}")
        return self._queues[name]

    def delete_queue(self, name: str) -> None:
        """Delete a queue with what it holds; its consumers are told."""
        queue = self.queue(name)
        self._remove(queue)
        for taker in list(queue.takers):
            queue.takers.remove(taker)
            if isinstance(taker, MemoryConsumer):
                taker.lost()

    def close(self) -> None:
        """Stop the clocks of all queues."""
        for queue in self._queues.values():
            queue.close()

    def _route(self, name: str, key: str) -> tuple[list[MemoryQueue], str]:
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise BusError(f"There is no exchange {name}")
        hits = {
            queue: self._queues[queue]
            for queue, bound_key in self._bindings[name]
            if queue in self._queues and (exchange.kind == "fanout" or bound_key == key)
        }
        if not hits and exchange.alternate is not None:
            return self._route(exchange.alternate, key)
        return list(hits.values()), name

    def _bury(self, queue: MemoryQueue, stored: Stored, reason: str) -> None:
        if queue.spec.dead_letter_exchange is None:
            return
        headers = dict(stored.headers)
        headers.setdefault("x-first-death-reason", reason)
        headers.setdefault("x-first-death-queue", queue.spec.name)
        headers.setdefault("x-first-death-exchange", stored.exchange)
        for grave in self._route(queue.spec.dead_letter_exchange, stored.key)[0]:
            bare = Envelope(
                body=stored.envelope.body,
                type=stored.envelope.type,
                correlation_id=stored.envelope.correlation_id,
                reply_to=stored.envelope.reply_to,
            )
            grave.put(bare, queue.spec.dead_letter_exchange, stored.key, headers)

    def _remove(self, queue: MemoryQueue) -> None:
        queue.close()
        self._queues.pop(queue.spec.name, None)


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

    _broker: MemoryBroker
    _spec: Queue
    _handler: Handler
    _prefetch: int
    _tasks: HandlerTasks = field(default_factory=HandlerTasks)
    _unsettled: dict[Stored, MemoryQueue] = field(default_factory=dict)
    _generation: int = 0
    _attached: bool = False
    _cancelled: bool = False

    @property
    def free(self) -> bool:
        return len(self._unsettled) < self._prefetch

    @property
    def live(self) -> bool:
        return self._attached

    def attach(self) -> None:
        """Begin, or begin again."""
        self._broker.declare(Topology(queues=(self._spec,)))
        self._attached = True
        self._broker.queue(self._spec.name).attach(self)

    def take(self, queue: MemoryQueue, stored: Stored) -> None:
        self._unsettled[stored] = queue
        self._tasks.start(self._handler, MemoryDelivery(stored, queue, self, self._generation))

    def settle(self, stored: Stored, generation: int) -> bool:
        """Whether this settles it: not when the connection it came by is gone."""
        return generation == self._generation and self._unsettled.pop(stored, None) is not None

    def lost(self) -> None:
        """The connection or the queue went away: what was not settled comes again, the handlers run on."""
        self._attached = False
        self._generation += 1
        unsettled, self._unsettled = self._unsettled, {}
        for queue in set(unsettled.values()):
            queue.detach(self)
        for stored, queue in reversed(unsettled.items()):
            queue.give_back(stored)
        if not self._cancelled:
            asyncio.get_running_loop().call_soon(self._restore)

    async def cancel(self) -> None:
        self._cancelled, self._attached = True, False
        for queue in self._broker._queues.values():  # noqa: SLF001 -- one transport, one module
            if self in queue.takers:
                queue.detach(self)

    async def drain(self, timeout: float) -> bool:
        await self.cancel()
        done = await self._tasks.finish(timeout)
        self.lost()
        return done

    def _restore(self) -> None:
        if not self._cancelled and not self._attached:
            self.attach()


class MemoryBus:
    """One connection to a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._consumers: list[MemoryConsumer] = []
        self._closed = False

    async def declare(self, topology: Topology) -> None:
        self._broker.declare(topology)

    async def publish(
        self, exchange: Exchange, key: str, envelope: Envelope, *, timeout: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        if self._closed:
            raise BrokerUnavailable("This connection is closed")
        # A confirm takes a turn of the loop, as over a socket; nothing here can take longer than the timeout.
        await asyncio.sleep(0)
        self._broker.publish(exchange.name, key, envelope)

    async def consume(self, queue: Queue, handler: Handler, *, prefetch: int) -> Consumer:
        consumer = MemoryConsumer(self._broker, queue, handler, prefetch)
        self._consumers.append(consumer)
        consumer.attach()
        return consumer

    def cut(self) -> None:
        """Lose the connection, as a broken network does: for tests."""
        for consumer in self._consumers:
            for queue in list(self._broker._queues.values()):  # noqa: SLF001 -- one transport, one module
                queue.detach(consumer)
            consumer.lost()

    async def close(self) -> None:
        self._closed = True
        for consumer in self._consumers:
            await consumer.cancel()
            await consumer.drain(0)
            consumer.lost()

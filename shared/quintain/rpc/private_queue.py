"""A queue of one receiver that can be declared in advance: nobody knows its routing key before it is told."""

from __future__ import annotations

import asyncio

from quintain.bus.base import Bus, Consumer, Delivery, Handler
from quintain.rpc.server import delete_queues
from quintain.topology import Topology


class PrivateQueue:
    """The one queue of a topology, declared and consumed by `prepare` in the background.

    Its messages go to the handler of the last `open`; those that come without one are dropped.
    """

    def __init__(self, bus: Bus, topology: Topology, prefetch: int) -> None:
        self._bus, self._topology, self._prefetch = bus, topology, prefetch
        self.key = topology.bindings[0].key
        self.handler: Handler | None = None
        self._consumer: Consumer | None = None
        self._preparation: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Begin to declare and to consume the queue, unless that has begun or succeeded."""
        if self._preparation is None or (self._preparation.done() and self._consumer is None):
            self._preparation = asyncio.get_running_loop().create_task(self._declare())

    async def open(self, handler: Handler) -> None:
        """Pass messages to this handler from now on, once the queue is consumed. Raises `BusError`."""
        self.handler = handler
        self.prepare()
        if self._preparation is not None:
            await asyncio.shield(self._preparation)

    async def close(self, handler_seconds: float = 0) -> None:
        """Stop consuming, waiting so long for running handlers, and delete the queue."""
        if self._preparation is not None:
            await asyncio.gather(self._preparation, return_exceptions=True)
        if self._consumer is not None:
            await self._consumer.drain(handler_seconds)
            await delete_queues(self._bus, self._topology)

    async def _declare(self) -> None:
        await self._bus.declare(self._topology)
        self._consumer = await self._bus.consume(self._topology.queues[0], self._on_message, prefetch=self._prefetch)

    async def _on_message(self, delivery: Delivery) -> None:
        if self.handler is None:
            await delivery.ack()
        else:
            await self.handler(delivery)

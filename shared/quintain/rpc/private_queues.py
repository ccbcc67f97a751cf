"""Queues that only their receiver consumes: a client's reply queue, and one that is declared in advance."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from quintain.bus.base import Bus, Consumer, Delivery, Handler
from quintain.bus.failure_log import FailureLog
from quintain.errors import BusError
from quintain.rpc.server import delete_queues
from quintain.runtime.concurrency import cancel_and_wait
from quintain.topology import Queue, Topology, exclusive_reply_topology, reply_topology

log = logging.getLogger(__name__)

#: Maximum number of replies delivered to one client at a time.
PREFETCH = 256

#: Pause before the next attempt to consume a new queue, in seconds.
RETRY_SECONDS = 0.5

#: Timeout for the last handlers, and then for the deletion of the queue, in seconds.
CLOSE_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _ReplyAddress:
    """The routing key for replies, and the queue bound with it."""

    key: str
    topology: Topology

    @classmethod
    def generate(cls, user: str, *, exclusive: bool) -> Self:
        # The key ends in 192 random bits: replies cannot be forged without guessing it.
        key = f"{user}.{secrets.token_urlsafe(24)}"
        return cls(key, (exclusive_reply_topology if exclusive else reply_topology)(f"quintain.reply.{key}", key))

    @property
    def queue(self) -> Queue:
        return self.topology.queues[0]


class ReplyQueue:
    """The reply queue of one client; ``on_replaced`` is called when a new queue has replaced a lost one.

    An ``exclusive`` queue ends with the client's connection, so that replies to a dead client are returned at once.
    """

    def __init__(
        self, bus: Bus, on_reply: Handler, on_replaced: Callable[[], None], *, exclusive: bool = False
    ) -> None:
        self._bus, self._on_reply, self._on_replaced, self._exclusive = bus, on_reply, on_replaced, exclusive
        self._address = _ReplyAddress.generate(bus.user, exclusive=exclusive)
        #: The routing key for replies, which changes when the queue is replaced.
        self.key = self._address.key
        self._consumed_address: _ReplyAddress | None = None
        self._consumer: Consumer | None = None
        self._replace_task: asyncio.Task[None] | None = None
        self._closed = False
        self._opening = asyncio.Lock()
        self._not_replaced = FailureLog(log, "There is no new reply queue yet", "There is a new reply queue", bus)

    async def open(self) -> None:
        """Declare and consume the queue, if it is not. Raises what `Bus.declare` and `Bus.consume` raise."""
        async with self._opening:
            if self._consumed_address is None:
                await self._attach()

    async def close(self) -> None:
        """Stop consuming, and delete the queue."""
        self._closed = True
        if self._replace_task is not None:
            await cancel_and_wait(self._replace_task)
            if self._address is not self._consumed_address:
                await self._delete(self._address)
        await self._stop_consuming()

    def _on_queue_lost(self, address: _ReplyAddress) -> None:
        # Before the queue was attached there are no requests, and a queue that was replaced already may be lost.
        if self._closed or self._consumed_address is None or address is not self._address:
            return
        log.warning("The reply queue was lost; a new one replaces it, and pending requests are sent again")
        self._address = _ReplyAddress.generate(self._bus.user, exclusive=self._exclusive)
        self.key = self._address.key
        if self._replace_task is None or self._replace_task.done():
            self._replace_task = asyncio.get_running_loop().create_task(self._replace(), name="replace-reply-queue")

    async def _replace(self) -> None:
        """Consume the new queue, retrying until the broker is available."""
        while self._consumed_address is not self._address:
            # Release the old queue first: while it is declared, its unavailable node would fail every declaration.
            await self._stop_consuming()
            try:
                await self._attach()
            except BusError as error:
                self._not_replaced.failed(error)
                await asyncio.sleep(RETRY_SECONDS)
        self._not_replaced.worked()
        self._on_replaced()

    async def _attach(self) -> None:
        address = self._address
        await self._bus.declare(address.topology)
        self._consumer = await self._bus.consume(
            address.queue, self._on_reply, prefetch=PREFETCH, on_queue_lost=lambda: self._on_queue_lost(address)
        )
        self._consumed_address = address

    async def _stop_consuming(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None and self._consumed_address is not None:
            await consumer.drain(CLOSE_TIMEOUT_SECONDS)
            await self._delete(self._consumed_address)

    async def _delete(self, address: _ReplyAddress) -> None:
        # If the broker is unreachable, the queue expires.
        with contextlib.suppress(BusError):
            await self._bus.delete(address.queue, timeout_seconds=CLOSE_TIMEOUT_SECONDS)


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

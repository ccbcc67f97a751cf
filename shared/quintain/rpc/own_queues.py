"""Queues that one process alone consumes, and the reply queue of a client, which is replaced when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable

from quintain.bus.base import Bus, Consumer, Delivery, Handler, OnQueueLost
from quintain.bus.failure_log import FailureLog
from quintain.errors import BusError
from quintain.runtime.concurrency import cancel_and_wait
from quintain.topology import Topology, exclusive_reply_topology, reply_topology

log = logging.getLogger(__name__)

#: Maximum number of replies delivered to one client at a time.
PREFETCH = 256

#: Pause before the next attempt to consume a new queue, in seconds.
RETRY_SECONDS = 0.5

#: Timeout for the last handlers of replies, and for the deletion of a queue, in seconds.
CLOSE_TIMEOUT_SECONDS = 2.0


class OwnQueue:
    """The one queue of a topology, declared by the first `prepare` or `open`, and again by `open` where that failed.

    Its messages go to ``handler``, which may be set later; those that come without one are dropped. ``on_lost`` is the
    bus's ``on_queue_lost``. With ``redeclare`` the queue is declared again after a reconnect.
    """

    def __init__(
        self,
        bus: Bus,
        topology: Topology,
        prefetch: int,
        handler: Handler | None = None,
        *,
        on_lost: OnQueueLost | None = None,
        redeclare: bool = True,
    ) -> None:
        self._bus, self._topology, self._queue, self._prefetch = bus, topology, topology.queues[0], prefetch
        self.handler, self._on_lost, self._redeclare = handler, on_lost, redeclare
        #: The routing key of what is sent to it.
        self.key = topology.bindings[0].key
        self._consumer: Consumer | None = None
        self._preparation: asyncio.Task[None] | None = None
        self._is_closed = False
        # Not its whole name: a reader of a reply queue's key can forge replies.
        kind = self._queue.name.rpartition(".")[0]
        begun, ended = f"An own queue {kind}.* cannot be consumed yet", f"An own queue {kind}.* is consumed"
        self._not_opened = FailureLog(log, begun, ended, bus)

    @property
    def is_consumed(self) -> bool:
        """Whether the broker delivers what is sent to it now."""
        return self._consumer is not None and self._consumer.active

    def prepare(self) -> None:
        """Begin to declare and to consume the queue, unless that has begun or succeeded, or the queue is closed."""
        is_running = self._preparation is not None and not self._preparation.done()
        if self._is_closed or is_running or self._consumer is not None:
            return
        self._preparation = asyncio.get_running_loop().create_task(self._declare())
        # What it raises is for `open`, which may not come.
        self._preparation.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def open(self) -> bool:
        """Declare and consume the queue, unless that is done; returns False where it is closed. Raises `BusError`."""
        self.prepare()
        if (preparation := self._preparation) is not None:
            await asyncio.wait([preparation])
            if not preparation.cancelled():
                preparation.result()
        return self._consumer is not None

    async def open_or_log(self) -> bool:
        """Open the queue; returns False where the broker does not let it, which is logged once."""
        try:
            is_open = await self.open()
        except BusError as error:
            self._not_opened.failed(error)
            return False
        self._not_opened.worked()
        return is_open

    async def cancel(self) -> None:
        """Take no more messages; the queue stays, and expires."""
        self._is_closed = True
        if self._consumer is None:
            await cancel_and_wait(self._preparation)
        else:
            await self._consumer.cancel()

    async def drain(self, timeout_seconds: float) -> bool:
        """Wait up to ``timeout_seconds`` for the handlers that run. Returns False where some were cancelled."""
        return self._consumer is None or await self._consumer.drain(timeout_seconds)

    async def close(self, handler_seconds: float = 0.0) -> None:
        """Delete the queue, and wait so long for running handlers; if the broker is out of reach, the queue expires."""
        await self.cancel()
        if self._preparation is not None:
            self._preparation = None
            with contextlib.suppress(BusError):
                await self._bus.delete(self._queue, timeout_seconds=CLOSE_TIMEOUT_SECONDS)
            await self.drain(handler_seconds)

    async def _declare(self) -> None:
        await self._bus.declare(self._topology, redeclare=self._redeclare)
        self._consumer = await self._bus.consume(
            self._queue, self._on_message, prefetch=self._prefetch, on_queue_lost=self._on_lost
        )

    async def _on_message(self, delivery: Delivery) -> None:
        await (delivery.ack() if self.handler is None else self.handler(delivery))


class ReplyQueue:
    """The reply queue of one client; ``on_replaced`` is called when a new queue has replaced a lost one.

    An ``exclusive`` queue ends with the client's connection, so that replies to a dead client are returned at once.
    """

    def __init__(
        self, bus: Bus, on_reply: Handler, on_replaced: Callable[[], None], *, exclusive: bool = False
    ) -> None:
        self._bus, self._on_reply, self._on_replaced, self._exclusive = bus, on_reply, on_replaced, exclusive
        self._queue = self._new_queue()
        #: The routing key for replies, which changes when the queue is replaced.
        self.key = self._queue.key
        self._consumed: OwnQueue | None = None
        self._replace_task: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Declare and consume the queue, if it is not. Raises what `Bus.declare` and `Bus.consume` raise."""
        if self._consumed is None:
            queue = self._queue
            await queue.open()
            self._consumed = queue

    async def close(self) -> None:
        """Stop consuming, and delete the queue."""
        self._closed = True
        await cancel_and_wait(self._replace_task)
        for queue in dict.fromkeys((self._consumed or self._queue, self._queue)):
            await queue.close(CLOSE_TIMEOUT_SECONDS)

    def _new_queue(self) -> OwnQueue:
        # The key ends in 192 random bits: replies cannot be forged without guessing it.
        key = f"{self._bus.user}.{secrets.token_urlsafe(24)}"
        topology = (exclusive_reply_topology if self._exclusive else reply_topology)(f"quintain.reply.{key}", key)
        queue = OwnQueue(self._bus, topology, PREFETCH, self._on_reply, on_lost=lambda: self._on_queue_lost(queue))
        return queue

    def _on_queue_lost(self, queue: OwnQueue) -> None:
        # Before the queue was consumed there are no requests, and a queue that was replaced already may be lost.
        if self._closed or self._consumed is None or queue is not self._queue:
            return
        log.warning("The reply queue was lost; a new one replaces it, and pending requests are sent again")
        self._queue = self._new_queue()
        self.key = self._queue.key
        if self._replace_task is None or self._replace_task.done():
            self._replace_task = asyncio.get_running_loop().create_task(self._replace(), name="replace-reply-queue")

    async def _replace(self) -> None:
        """Consume the new queue, retrying until the broker is available."""
        while self._consumed is not (queue := self._queue):
            # Release the old queue first: while it is declared, its unavailable node would fail every declaration.
            if self._consumed is not None:
                await self._consumed.close(CLOSE_TIMEOUT_SECONDS)
            if await queue.open_or_log():
                self._consumed = queue
            else:
                await asyncio.sleep(RETRY_SECONDS)
        self._on_replaced()

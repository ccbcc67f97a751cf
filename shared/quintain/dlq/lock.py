"""A lock over AMQP: only one process at a time browses ``quintain.poison``.

The lock is one message in a queue with a maximum length of one. It expires after a minute, so a killed process does
not block others for longer. No message loss depends on the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from quintain.bus.base import Bus, Consumer, Delivery, Envelope
from quintain.errors import BusError, QueueFull
from quintain.topology import POISON_LOCK, POISON_LOCK_QUEUE, POISON_LOCK_TOPOLOGY, Queue

#: Interval of the attempts to take the lock, in seconds.
_POLL_SECONDS = 0.1

#: Timeout of taking the lock's message back from its queue, in seconds.
_RELEASE_TIMEOUT_SECONDS = 5.0


class QueueReader:
    """Reads a queue: at most ``prefetch`` messages arrive before one of them is acknowledged."""

    def __init__(self) -> None:
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self._consumer: Consumer | None = None

    async def start(self, bus: Bus, queue: Queue, prefetch: int) -> None:
        """Start consuming."""
        self._consumer = await bus.consume(queue, self._deliveries.put, prefetch=prefetch)

    async def next(self) -> Delivery:
        """Wait for the next message."""
        return await self._deliveries.get()

    async def cancel(self) -> None:
        """Stop consuming.

        Call it before acknowledging the last message: then no further message is delivered and returned, which the
        broker would count as a delivery.
        """
        if self._consumer is not None:
            await self._consumer.cancel()

    async def close(self) -> None:
        """Stop consuming; messages not acknowledged return to the queue."""
        if self._consumer is not None:
            await self._consumer.drain(0)


@contextlib.asynccontextmanager
async def read_queue(bus: Bus, queue: Queue, *, prefetch: int = 1) -> AsyncIterator[QueueReader]:
    """Read the messages of a queue while the context is open."""
    reader = QueueReader()
    await reader.start(bus, queue, prefetch)
    try:
        yield reader
    finally:
        await reader.close()


@contextlib.asynccontextmanager
async def exclusive_lock(bus: Bus, *, wait_seconds: float) -> AsyncIterator[None]:
    """Hold the lock while the context is open. Raises `BusError` if another process holds it for ``wait_seconds``."""
    await bus.declare(POISON_LOCK_TOPOLOGY)
    lock_message = Envelope(body=b"", type="turn", correlation_id=secrets.token_hex(16))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    while True:
        try:
            await bus.publish(POISON_LOCK, "", lock_message)
            break
        except QueueFull:
            if loop.time() >= deadline:
                raise BusError(
                    f"Another command has been browsing quintain.poison for {wait_seconds:.0f} s: try again in "
                    "a minute, when its lock has expired at the latest"
                ) from None
            await asyncio.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        await _release_lock(bus, lock_message)


async def _release_lock(bus: Bus, lock_message: Envelope) -> None:
    """Release the lock; if it has expired or the broker is unreachable, it ends by itself."""
    with contextlib.suppress(TimeoutError, BusError):
        async with asyncio.timeout(_RELEASE_TIMEOUT_SECONDS), read_queue(bus, POISON_LOCK_QUEUE) as reader:
            delivery = await reader.next()
            await reader.cancel()
            await (delivery.ack() if delivery.correlation_id == lock_message.correlation_id else delivery.requeue())

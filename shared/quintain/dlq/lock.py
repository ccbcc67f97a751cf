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

#: How often it is looked whether the turn is free, in seconds.
_POLL_SECONDS = 0.1

#: How long the broker may take to hand back the message of a turn, in seconds.
_RELEASE_TIMEOUT_SECONDS = 5.0


class QueueReader:
    """The messages of a queue, one at a time: the next one comes when the one before is acknowledged."""

    def __init__(self) -> None:
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self._consumer: Consumer | None = None

    async def start(self, bus: Bus, queue: Queue) -> None:
        """Begin to take."""
        self._consumer = await bus.consume(queue, self._deliveries.put, prefetch=1)

    async def next(self) -> Delivery:
        """The next message, however long it takes to come."""
        return await self._deliveries.get()

    async def cancel(self) -> None:
        """Take no more. Called before the last message is acknowledged, it leaves no other one delivered and
        given back, which the broker would count."""
        if self._consumer is not None:
            await self._consumer.cancel()

    async def close(self) -> None:
        """Stop; what was taken and not acknowledged goes back."""
        if self._consumer is not None:
            await self._consumer.drain(0)


@contextlib.asynccontextmanager
async def read_queue(bus: Bus, queue: Queue) -> AsyncIterator[QueueReader]:
    """Take the messages of a queue while inside."""
    reader = QueueReader()
    await reader.start(bus, queue)
    try:
        yield reader
    finally:
        await reader.close()


@contextlib.asynccontextmanager
async def exclusive_lock(bus: Bus, *, wait_seconds: float) -> AsyncIterator[None]:
    """Have the turn while inside. Raises `BusError` where somebody else has it for longer than the wait."""
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
                    f"Another command has been going through quintain.poison for {wait_seconds:.0f} s: try again in "
                    "a minute, when its turn has lapsed at the latest"
                ) from None
            await asyncio.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        await _release_lock(bus, lock_message)


async def _release_lock(bus: Bus, lock_message: Envelope) -> None:
    """End the turn, unless it has lapsed or the broker is out of reach: then it ends by itself."""
    with contextlib.suppress(TimeoutError, BusError):
        async with asyncio.timeout(_RELEASE_TIMEOUT_SECONDS), read_queue(bus, POISON_LOCK_QUEUE) as reader:
            delivery = await reader.next()
            await reader.cancel()
            await (delivery.ack() if delivery.correlation_id == lock_message.correlation_id else delivery.requeue())

"""Going through ``quintain.poison`` one at a time: who is inside has the turn, and others wait for it.

The turn is one message in a queue that takes no second one. It lapses after a minute, so that a process that was
killed inside keeps nobody out for longer. Whoever has it sees the whole queue; that nothing is lost does not hang
on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from quintain.bus.base import Bus, Consumer, Delivery, Envelope
from quintain.errors import BusError, QueueFull
from quintain.topology import POISON_TURN, POISON_TURN_QUEUE, POISON_TURN_TOPOLOGY, Queue

#: How often it is looked whether the turn is free, in seconds.
_LOOK_SECONDS = 0.1

#: How long the broker may take to hand back the message of a turn, in seconds.
_GIVE_BACK_SECONDS = 5.0


class Taken:
    """The messages of a queue, one at a time: the next one comes when the one before is acknowledged."""

    def __init__(self) -> None:
        self._inbox: asyncio.Queue[Delivery] = asyncio.Queue()
        self._consumer: Consumer | None = None

    async def start(self, bus: Bus, queue: Queue) -> None:
        """Begin to take."""
        self._consumer = await bus.consume(queue, self._inbox.put, prefetch=1)

    async def next(self) -> Delivery:
        """The next message, however long it takes to come."""
        return await self._inbox.get()

    async def stop(self) -> None:
        """Take no more. Called before the last message is acknowledged, it leaves no other one delivered and
        given back, which the broker would count."""
        if self._consumer is not None:
            await self._consumer.cancel()

    async def end(self) -> None:
        """Stop; what was taken and not acknowledged goes back."""
        if self._consumer is not None:
            await self._consumer.drain(0)


@contextlib.asynccontextmanager
async def taking(bus: Bus, queue: Queue) -> AsyncIterator[Taken]:
    """Take the messages of a queue while inside."""
    taken = Taken()
    await taken.start(bus, queue)
    try:
        yield taken
    finally:
        await taken.end()


@contextlib.asynccontextmanager
async def turn(bus: Bus, *, wait_seconds: float) -> AsyncIterator[None]:
    """Have the turn while inside. Raises `BusError` where somebody else has it for longer than the wait."""
    await bus.declare(POISON_TURN_TOPOLOGY)
    mine = Envelope(body=b"", type="turn", correlation_id=secrets.token_hex(16))
    loop = asyncio.get_running_loop()
    ends = loop.time() + wait_seconds
    while True:
        try:
            await bus.publish(POISON_TURN, "", mine)
            break
        except QueueFull:
            if loop.time() >= ends:
                raise BusError(
                    f"Another command has been going through quintain.poison for {wait_seconds:.0f} s: try again in "
                    "a minute, when its turn has lapsed at the latest"
                ) from None
            await asyncio.sleep(_LOOK_SECONDS)
    try:
        yield
    finally:
        await _give_back(bus, mine)


async def _give_back(bus: Bus, mine: Envelope) -> None:
    """End the turn, unless it has lapsed or the broker is out of reach: then it ends by itself."""
    with contextlib.suppress(TimeoutError, BusError):
        async with asyncio.timeout(_GIVE_BACK_SECONDS), taking(bus, POISON_TURN_QUEUE) as taken:
            found = await taken.next()
            await taken.stop()
            await (found.ack() if found.correlation_id == mine.correlation_id else found.requeue())

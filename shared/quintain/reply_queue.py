"""A client's reply queue: one at a time, under a key that nobody guesses; where it is lost, a fresh one.

The queue outlives a lost connection and is attached to again. Where it did not, what was in it is gone: then the
client takes a fresh name, and whoever waits for replies must ask again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from quintain.bus.base import Bus, Consumer, Handler
from quintain.errors import BusError
from quintain.topology import EVALUATOR_TOPOLOGY, Queue, Topology, reply_topology

log = logging.getLogger(__name__)

#: How many replies one client takes from its queue at a time.
PREFETCH = 256

#: The pause before another try to attach to a fresh queue, in seconds.
PAUSE_SECONDS = 0.5

#: How long the last handlers may take, and then the deletion of a queue that is not needed any more, in seconds.
LETTING_GO_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Place:
    """Where replies go: the routing key, and the queue bound with it."""

    key: str
    topology: Topology

    @classmethod
    def fresh(cls, user: str) -> Self:
        # The key ends in 192 random bits: who cannot guess it cannot forge a reply.
        key = f"{user}.{secrets.token_urlsafe(24)}"
        return cls(key, reply_topology(f"quintain.reply.{key}", key))

    @property
    def queue(self) -> Queue:
        return self.topology.queues[0]


class ReplyQueue:
    """One client's replies. ``moved`` is called when a fresh queue stands in for one that was lost."""

    def __init__(self, bus: Bus, hear: Handler, moved: Callable[[], None]) -> None:
        self._bus, self._hear, self._moved = bus, hear, moved
        self._place = _Place.fresh(bus.user)
        self._consumed: _Place | None = None
        self._consumer: Consumer | None = None
        self._moving: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def key(self) -> str:
        """Where replies are to be sent: another one after a loss."""
        return self._place.key

    async def open(self) -> None:
        """Declare and consume it. Raises what `Bus.declare` and `Bus.consume` raise."""
        await self._attach()

    async def close(self) -> None:
        """Stop taking replies, and delete the queue: nobody comes back for it."""
        self._closed = True
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.gather(self._moving, return_exceptions=True)
            if self._place is not self._consumed:
                await self._delete(self._place)
        await self._let_go()

    def _lost(self, place: _Place) -> None:
        # Before it was attached nobody had asked anything; a place that was left is missed by nobody.
        if self._closed or self._consumed is None or place is not self._place:
            return
        log.warning("The reply queue was lost; a fresh one takes its place, and what is unanswered is asked again")
        self._place = _Place.fresh(self._bus.user)
        if self._moving is None or self._moving.done():
            self._moving = asyncio.get_running_loop().create_task(self._move(), name="move-reply-queue")

    async def _move(self) -> None:
        """Attach to the fresh queue, however long the broker is away."""
        while self._consumed is not self._place:
            # The old one first: as long as it is declared, a queue whose node is down fails every declaration.
            await self._let_go()
            try:
                await self._attach()
            except BusError as error:
                log.warning("No fresh reply queue yet: %s", error.message)
                await asyncio.sleep(PAUSE_SECONDS)
        self._moved()

    async def _attach(self) -> None:
        place = self._place
        await self._bus.declare(EVALUATOR_TOPOLOGY + place.topology)
        self._consumer = await self._bus.consume(
            place.queue, self._hear, prefetch=PREFETCH, lost=lambda: self._lost(place)
        )
        self._consumed = place

    async def _let_go(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None and self._consumed is not None:
            await consumer.drain(LETTING_GO_SECONDS)
            await self._delete(self._consumed)

    async def _delete(self, place: _Place) -> None:
        # Where the broker is away the queue expires by itself.
        with contextlib.suppress(BusError):
            await self._bus.delete(place.queue, timeout=LETTING_GO_SECONDS)

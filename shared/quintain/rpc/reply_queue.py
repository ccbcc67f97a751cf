"""A client's reply queue, with an unguessable routing key.

The queue survives a lost connection and is consumed again. If the queue itself was lost, a new one with a new key
replaces it, and the client must send its pending requests again.
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
RETRY_SECONDS = 0.5

#: How long the last handlers may take, and then the deletion of a queue that is not needed any more, in seconds.
CLOSE_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _ReplyAddress:
    """Where replies go: the routing key, and the queue bound with it."""

    key: str
    topology: Topology

    @classmethod
    def generate(cls, user: str) -> Self:
        # The key ends in 192 random bits: who cannot guess it cannot forge a reply.
        key = f"{user}.{secrets.token_urlsafe(24)}"
        return cls(key, reply_topology(f"quintain.reply.{key}", key))

    @property
    def queue(self) -> Queue:
        return self.topology.queues[0]


class ReplyQueue:
    """One client's replies. ``on_replaced`` is called when a fresh queue stands in for one that was lost."""

    def __init__(self, bus: Bus, on_reply: Handler, on_replaced: Callable[[], None]) -> None:
        self._bus, self._on_reply, self._on_replaced = bus, on_reply, on_replaced
        self._address = _ReplyAddress.generate(bus.user)
        self._consumed_address: _ReplyAddress | None = None
        self._consumer: Consumer | None = None
        self._replace_task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def key(self) -> str:
        """Where replies are to be sent: another one after a loss."""
        return self._address.key

    async def open(self) -> None:
        """Declare and consume it. Raises what `Bus.declare` and `Bus.consume` raise."""
        await self._attach()

    async def close(self) -> None:
        """Stop taking replies, and delete the queue: nobody comes back for it."""
        self._closed = True
        if self._replace_task is not None:
            self._replace_task.cancel()
            await asyncio.gather(self._replace_task, return_exceptions=True)
            if self._address is not self._consumed_address:
                await self._delete(self._address)
        await self._stop_consuming()

    def _on_queue_lost(self, address: _ReplyAddress) -> None:
        # Before it was attached nobody had asked anything; a place that was left is missed by nobody.
        if self._closed or self._consumed_address is None or address is not self._address:
            return
        log.warning("The reply queue was lost; a fresh one takes its place, and what is unanswered is asked again")
        self._address = _ReplyAddress.generate(self._bus.user)
        if self._replace_task is None or self._replace_task.done():
            self._replace_task = asyncio.get_running_loop().create_task(self._replace(), name="move-reply-queue")

    async def _replace(self) -> None:
        """Attach to the fresh queue, however long the broker is away."""
        while self._consumed_address is not self._address:
            # The old one first: as long as it is declared, a queue whose node is down fails every declaration.
            await self._stop_consuming()
            try:
                await self._attach()
            except BusError as error:
                log.warning("No fresh reply queue yet: %s", error.message)
                await asyncio.sleep(RETRY_SECONDS)
        self._on_replaced()

    async def _attach(self) -> None:
        address = self._address
        await self._bus.declare(EVALUATOR_TOPOLOGY + address.topology)
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
        # Where the broker is away the queue expires by itself.
        with contextlib.suppress(BusError):
            await self._bus.delete(address.queue, timeout_seconds=CLOSE_TIMEOUT_SECONDS)

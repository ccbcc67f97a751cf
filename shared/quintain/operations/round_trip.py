"""A message to oneself: out by the connection that publishes, through the broker, back by the one that consumes.

What a service consumes together with others, such as a target's queue, would hand a probe to whoever is free. So a
service proves its consumers in two parts: each is attached now, and this way is open over the same two connections.
"""

from __future__ import annotations

import asyncio
import secrets

from quintain.bus.base import Bus, Consumer, Delivery, Envelope
from quintain.errors import BusError, Unroutable
from quintain.operations.health import READY_SECONDS
from quintain.service import forgotten
from quintain.topology import REPLY, reply_topology

#: The type of the message, and how many of them are taken at a time.
PROBE, PREFETCH = "probe", 4


class RoundTrip:
    """One process's own reply queue, for nothing but this: made when it is first asked for, and anew where it is lost.

    It is no part of what the bus declares again: a user who may not have it is not ready, and serves all the same.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._key = f"{bus.user}.probe.{secrets.token_urlsafe(24)}"
        self._topology = reply_topology(f"quintain.reply.{self._key}", self._key)
        self._consumer: Consumer | None = None
        self._waiting: dict[str, asyncio.Future[None]] = {}

    async def stop(self) -> None:
        """Hear no more, and delete the queue; where the broker is away it expires."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.drain(0)
            await forgotten(self._bus, self._topology)

    async def check(self) -> str | None:
        """Whether a message comes back in time."""
        correlation_id = secrets.token_hex(8)
        back = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        probe = Envelope(
            body=b"",
            type=PROBE,
            correlation_id=correlation_id,
            expiration_ms=int(READY_SECONDS * 1000),
            persistent=False,
        )
        try:
            async with asyncio.timeout(READY_SECONDS):
                await self._send(probe)
                await back
        except TimeoutError:
            return f"no message came back through the broker within {READY_SECONDS:g} s"
        except BusError as lost:
            return f"no message goes through the broker: {lost.message}"
        finally:
            del self._waiting[correlation_id]
        return None

    async def _send(self, probe: Envelope) -> None:
        await self._attach()
        try:
            await self._bus.publish(REPLY, self._key, probe, timeout=READY_SECONDS)
        except Unroutable:
            # Nobody else's message goes there: the queue was lost.
            await self.stop()
            await self._attach()
            await self._bus.publish(REPLY, self._key, probe, timeout=READY_SECONDS)

    async def _attach(self) -> None:
        if self._consumer is None:
            await self._bus.declare(self._topology, kept=False)
            self._consumer = await self._bus.consume(self._topology.queues[0], self._on_back, prefetch=PREFETCH)

    async def _on_back(self, delivery: Delivery) -> None:
        back = self._waiting.get(delivery.correlation_id or "")
        if back is not None and not back.done():
            back.set_result(None)
        await delivery.ack()

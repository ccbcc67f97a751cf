"""Readiness check of the broker: publishes a message to a queue of its own and waits for its delivery.

Probing a shared queue, such as a target's, would deliver the probe to any of its consumers. A service is ready when its
consumers are attached and this round trip works over the same two connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.contracts.service_card import ServiceCard
from quintain.errors import BusError, Unroutable
from quintain.observe.health import CHECK_TIMEOUT_SECONDS, HealthCheck, OpsEndpoints
from quintain.rpc.own_queues import OwnQueue
from quintain.topology import REPLY, reply_topology

#: The AMQP type of a probe message, and the prefetch of the probe queue.
PROBE_TYPE, PREFETCH = "probe", 4


@contextlib.asynccontextmanager
async def report_ready(
    endpoints: OpsEndpoints, bus: Bus, check: HealthCheck, card: Callable[[], ServiceCard] | None = None
) -> AsyncIterator[None]:
    """While the context is open, the service is ready if ``check`` passes and a message comes back from the broker."""
    probe = BrokerProbe(bus)

    async def check_both() -> str | None:
        return "; ".join(filter(None, await asyncio.gather(check(), probe.check()))) or None

    try:
        with endpoints.report_ready(bus, check_both, card):
            yield
    finally:
        await probe.stop()


class BrokerProbe:
    """One process's probe queue, declared at the first check and again after it was lost.

    The queue is not redeclared with the bus's topology: a user without permission for it is not ready, but serves
    calls.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._queue = self._new_queue()
        self._pending: dict[str, asyncio.Future[None]] = {}

    async def stop(self) -> None:
        """Stop consuming and delete the queue; if the broker is unreachable, the queue expires."""
        await self._queue.close()

    async def check(self) -> str | None:
        """Send a probe message to this process; returns None if it arrives in time, else what failed."""
        correlation_id = secrets.token_hex(8)
        returned = self._pending[correlation_id] = asyncio.get_running_loop().create_future()
        probe = Envelope(
            body=b"",
            type=PROBE_TYPE,
            correlation_id=correlation_id,
            expiration_ms=int(CHECK_TIMEOUT_SECONDS * 1000),
            persistent=False,
        )
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
                await self._send(probe)
                await returned
        except TimeoutError:
            return f"no message came back through the broker within {CHECK_TIMEOUT_SECONDS:g} s"
        except BusError as error:
            return f"no message goes through the broker: {error.message}"
        finally:
            del self._pending[correlation_id]
        return None

    async def _send(self, probe: Envelope) -> None:
        await self._queue.open()
        try:
            await self._bus.publish(REPLY, self._queue.key, probe, timeout_seconds=CHECK_TIMEOUT_SECONDS)
        except Unroutable:
            # The queue has no other binding, so it was lost.
            await self.stop()
            self._queue = self._new_queue()
            await self._queue.open()
            await self._bus.publish(REPLY, self._queue.key, probe, timeout_seconds=CHECK_TIMEOUT_SECONDS)

    def _new_queue(self) -> OwnQueue:
        key = f"{self._bus.user}.probe.{secrets.token_urlsafe(24)}"
        topology = reply_topology(f"quintain.reply.{key}", key)
        return OwnQueue(self._bus, topology, PREFETCH, self._on_returned, redeclare=False)

    async def _on_returned(self, delivery: Delivery) -> None:
        returned = self._pending.get(delivery.correlation_id or "")
        if returned is not None and not returned.done():
            returned.set_result(None)
        await delivery.ack()

"""Consumes this worker's queue of cancellations, which the metadata service publishes to a fanout exchange.

A missed cancellation is repeated with the next lease renewal.
"""

from __future__ import annotations

import logging
import secrets

from quintain.bus.base import Bus, Consumer, Delivery
from quintain.contracts.ledger import CancelBroadcast
from quintain.errors import Fault
from quintain.topology import cancel_topology
from quintain_worker.delivery.inflight import InflightCalls

log = logging.getLogger(__name__)

PREFETCH = 16


class CancellationConsumer:
    """Consumes one worker's cancellation queue and aborts the cancelled calls that are in flight."""

    def __init__(self, bus: Bus, inflight: InflightCalls) -> None:
        self._bus, self._inflight = bus, inflight
        self._topology = cancel_topology(secrets.token_hex(16))
        self._consumer: Consumer | None = None

    async def start(self) -> None:
        """Declare the queue and start consuming."""
        await self._bus.declare(self._topology)
        self._consumer = await self._bus.consume(self._topology.queues[0], self._on_cancel, prefetch=PREFETCH)

    async def stop(self) -> None:
        """Stop consuming; the broker deletes the queue."""
        if self._consumer is not None:
            await self._consumer.drain(0)

    async def _on_cancel(self, delivery: Delivery) -> None:
        try:
            self._inflight.abort(CancelBroadcast.from_wire(delivery.body).calls)
        except Fault as unreadable:
            log.error("An unreadable cancellation was dropped: %s", unreadable.message)
        await delivery.ack()

"""Hearing at once which calls were taken back: this worker's own queue of what the metadata service fans out.

It may miss one, while the broker or the worker is away: the ledger repeats them with every renewal of the lease.
"""

from __future__ import annotations

import logging
import secrets

from quintain.bus.base import Bus, Consumer, Delivery
from quintain.contracts.ledger import CallsTakenBack
from quintain.errors import Fault
from quintain.topology import cancel_topology
from quintain_worker.running import Running

log = logging.getLogger(__name__)

PREFETCH = 16


class Cancels:
    """Consumes one worker's queue of cancellations."""

    def __init__(self, bus: Bus, running: Running) -> None:
        self._bus, self._running = bus, running
        self._topology = cancel_topology(secrets.token_hex(16))
        self._consumer: Consumer | None = None

    async def start(self) -> None:
        """Hear from now on."""
        await self._bus.declare(self._topology)
        self._consumer = await self._bus.consume(self._topology.queues[0], self._on_cancel, prefetch=PREFETCH)

    async def stop(self) -> None:
        """Hear no more; the queue goes by itself."""
        if self._consumer is not None:
            await self._consumer.drain(0)

    async def _on_cancel(self, delivery: Delivery) -> None:
        try:
            self._running.take_back(CallsTakenBack.from_wire(delivery.body).calls)
        except Fault as unreadable:
            log.error("A cancellation nobody can read is dropped: %s", unreadable.message)
        await delivery.ack()

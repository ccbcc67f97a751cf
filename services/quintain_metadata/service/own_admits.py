"""The metadata service's own queue for admits: workers that know its key send there, which no quorum queue delays."""

from __future__ import annotations

import contextlib
import logging
import secrets

from quintain.bus.base import Bus, Consumer, Handler
from quintain.contracts.ledger import LeaseRenewed
from quintain.errors import BrokerRefused, BusError
from quintain.topology import admit_topology

log = logging.getLogger(__name__)


class OwnAdmitQueue:
    """An exclusive queue, which ends with this service's connection: the broker then returns what is sent to it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._topology = admit_topology(secrets.token_hex(8))
        self._consumer: Consumer | None = None

    async def start(self, handler: Handler, *, prefetch: int) -> None:
        """Declare and consume the queue; without the permission for it the service has only the shared queue."""
        try:
            await self._bus.declare(self._topology, redeclare=False)
        except BrokerRefused as refusal:
            log.warning("All admits take the shared queue, which is slower: %s", refusal.message)
            return
        await self._bus.declare(self._topology)
        self._consumer = await self._bus.consume(self._topology.queues[0], handler, prefetch=prefetch)

    def tell(self, renewed: LeaseRenewed) -> LeaseRenewed:
        """Return the answer to a worker with the key of this queue, if it is consumed now."""
        if self._consumer is None or not self._consumer.active:
            return renewed
        return renewed.model_copy(update={"admit_key": self._topology.bindings[0].key})

    async def stop(self, grace_seconds: float) -> None:
        """Delete the queue, so that further admits are returned to their workers, and wait for the handlers."""
        if self._consumer is None:
            return
        await self._consumer.cancel()
        with contextlib.suppress(BusError):
            await self._bus.delete(self._topology.queues[0])
        await self._consumer.drain(grace_seconds)

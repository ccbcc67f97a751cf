"""The worker put together: one composition root; a consumer per target, each with its own prefetch."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Mapping, Sequence

from quintain.bus.base import Bus, Consumer
from quintain.caller import Caller
from quintain.clock import Clock
from quintain.contracts.ledger import TargetCard
from quintain.topology import LEDGER, Topology, target_queue, target_topology
from quintain_worker.admissions import Admissions
from quintain_worker.handler import Desk, Served, handler_of
from quintain_worker.lease import Lease

log = logging.getLogger(__name__)


class Worker:
    """Serves targets: any number of workers, on any machine, share each target's queue."""

    def __init__(self, bus: Bus, served: Mapping[str, Served], cards: Sequence[TargetCard]) -> None:
        self._bus, self._served = bus, served
        self._prefetch = {card.name: card.max_concurrency for card in cards}
        self._clock = Clock()
        incarnation = secrets.token_hex(16)
        self.worker_id = f"{socket.gethostname()}-{os.getpid()}"
        self._caller = Caller(bus, user="worker")
        self._admissions = Admissions(bus, self._caller, self._clock, incarnation)
        self._lease = Lease(self._caller, self._clock, self.worker_id, incarnation, cards)
        self._desk = Desk(bus, self._admissions, self._clock, incarnation)
        self._consumers: list[Consumer] = []

    async def start(self) -> None:
        """Register, then take calls; waits for a metadata service to come up."""
        await self._bus.declare(Topology((LEDGER,)))
        await self._caller.start()
        self._admissions.start()
        await self._lease.start()
        for name, served in self._served.items():
            await self._bus.declare(target_topology(name))
            handler = handler_of(served, self._desk)
            self._consumers.append(await self._bus.consume(target_queue(name), handler, prefetch=self._prefetch[name]))
        log.info("Worker %s serves %s", self.worker_id, ", ".join(self._served))

    async def stop(self, grace_seconds: float = 30.0) -> None:
        """Take no more, give back what has not started, finish what runs within the grace, then let go; the reply
        consumer goes last."""
        for consumer in self._consumers:
            await consumer.cancel()
        self._admissions.stop()
        drained = await asyncio.gather(*(consumer.drain(grace_seconds) for consumer in self._consumers))
        if not all(drained):
            log.warning("A call outlived the grace of %.0f s; another worker takes it over", grace_seconds)
        await self._lease.stop()
        await self._caller.close()
        for served in self._served.values():
            await served.provider.close()

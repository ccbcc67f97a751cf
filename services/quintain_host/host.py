"""The host: a number of lease slots of one target on one bus."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket

from quintain.bus.base import Bus
from quintain.contracts.discovery import ServedTarget, ServiceCard
from quintain.discovery.announce import ServiceIdentity
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import host_topology
from quintain_host.counters import HostCounters
from quintain_host.factory import InstanceFactory
from quintain_host.run import RunLogHandler
from quintain_host.slot import LeaseSlot

log = logging.getLogger(__name__)


def host_card(identity: ServiceIdentity, bus: Bus, name: str, *, slots: int, in_flight: int) -> ServiceCard:
    """The card of a host of this target, so many of whose slots are leased out."""
    served = ServedTarget(name=name, kind="leased", slots=slots, in_flight=in_flight)
    return identity.card(targets=[served], slots=slots, in_flight=in_flight, broker_reconnects=bus.reconnects)


class Host:
    """Leases out instances of one target, so many at a time."""

    def __init__(
        self,
        bus: Bus,
        name: str,
        factory: InstanceFactory,
        slots: int,
        counters: HostCounters | None = None,
        *,
        timings: Timings = DEFAULT_TIMINGS,
    ) -> None:
        self._bus, self._name = bus, name
        self.host_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._identity = ServiceIdentity("host", self.host_id)
        #: Set once a target did not let go of its thread. The slots go on with new threads; a process that is there
        #: for one slot may rather end, and be started again.
        self.stuck = asyncio.Event()
        self.counters = HostCounters() if counters is None else counters
        self._slots = [
            LeaseSlot(bus, name, factory, self.host_id, self.stuck.set, self.counters, timings=timings)
            for _ in range(slots)
        ]
        self._slot_tasks: list[asyncio.Task[None]] = []
        self._log_handler = RunLogHandler()

    async def start(self) -> None:
        """Take lease requests."""
        await self._bus.declare(host_topology(self._name))
        logging.getLogger().addHandler(self._log_handler)
        loop = asyncio.get_running_loop()
        self._slot_tasks = [
            loop.create_task(slot.serve(), name=f"slot {number}") for number, slot in enumerate(self._slots)
        ]

    def card(self) -> ServiceCard:
        """What it tells whoever asks who is there."""
        leased = sum(slot.lease is not None for slot in self._slots)
        return host_card(self._identity, self._bus, self._name, slots=len(self._slots), in_flight=leased)

    async def check(self) -> str | None:
        """What keeps it from leasing out: slots that neither wait for a lease request nor have one in hand."""
        closed = sum(not slot.is_open for slot in self._slots)
        return f"{closed} of {len(self._slots)} slots take no lease request" if closed else None

    async def stop(self, grace_seconds: float = 30.0) -> None:
        """Take no more; what is leased may end within the grace, and is torn down after it."""
        for slot, task in zip(self._slots, self._slot_tasks, strict=True):
            if not slot.drain():
                task.cancel()
        running = sum(slot.lease is not None for slot in self._slots)
        if running and grace_seconds:
            log.warning("Asked to stop: what is leased out (%d) may go on for %.0f s", running, grace_seconds)
        if self._slot_tasks:
            _, unfinished = await asyncio.wait(self._slot_tasks, timeout=grace_seconds)
            for task in unfinished:
                # Once: one that is ending already is not to be disturbed.
                if not task.cancelling():
                    task.cancel()
        await asyncio.gather(*self._slot_tasks, return_exceptions=True)
        logging.getLogger().removeHandler(self._log_handler)

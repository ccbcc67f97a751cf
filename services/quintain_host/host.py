"""The host put together: so many slots of one target on one bus."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket

from quintain.bus.base import Bus
from quintain.contracts.discovery import ServedTarget, ServiceCard
from quintain.operations.presence import Identity
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import host_topology
from quintain_host.factory import Factory
from quintain_host.logs import RunLog
from quintain_host.slot import Slot
from quintain_host.tally import Tally

log = logging.getLogger(__name__)


def host_card(identity: Identity, bus: Bus, name: str, *, slots: int, leased: int) -> ServiceCard:
    """The card of a host of this target, so many of whose slots are leased out."""
    served = ServedTarget(name=name, kind="leased", slots=slots, in_flight=leased)
    return identity.card(targets=[served], slots=slots, in_flight=leased, broker_reconnects=bus.reconnects)


class Host:
    """Leases out instances of one target, so many at a time."""

    def __init__(
        self,
        bus: Bus,
        name: str,
        factory: Factory,
        slots: int,
        tally: Tally | None = None,
        *,
        timings: Timings = DEFAULT_TIMINGS,
    ) -> None:
        self._bus, self._name = bus, name
        self.host_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._identity = Identity("host", self.host_id)
        #: Set once a target did not let go of its thread. The slots go on with new threads; a process that is there
        #: for one slot may rather end, and be started again.
        self.stuck = asyncio.Event()
        self.tally = Tally() if tally is None else tally
        self._slots = [
            Slot(bus, name, factory, self.host_id, self.stuck.set, self.tally, timings=timings) for _ in range(slots)
        ]
        self._serving: list[asyncio.Task[None]] = []
        self._log = RunLog()

    async def start(self) -> None:
        """Take lease requests."""
        await self._bus.declare(host_topology(self._name))
        logging.getLogger().addHandler(self._log)
        loop = asyncio.get_running_loop()
        self._serving = [
            loop.create_task(slot.serve(), name=f"slot {number}") for number, slot in enumerate(self._slots)
        ]

    def card(self) -> ServiceCard:
        """What it tells whoever asks who is there."""
        leased = sum(slot.lease is not None for slot in self._slots)
        return host_card(self._identity, self._bus, self._name, slots=len(self._slots), leased=leased)

    async def check(self) -> str | None:
        """What keeps it from leasing out: slots that neither wait for a lease request nor have one in hand."""
        closed = sum(not slot.open for slot in self._slots)
        return f"{closed} of {len(self._slots)} slots take no lease request" if closed else None

    async def stop(self, grace_seconds: float = 30.0) -> None:
        """Take no more; what is leased may end within the grace, and is torn down after it."""
        for slot, task in zip(self._slots, self._serving, strict=True):
            if not slot.drain():
                task.cancel()
        running = sum(slot.lease is not None for slot in self._slots)
        if running and grace_seconds:
            log.warning("Asked to stop: what is leased out (%d) may go on for %.0f s", running, grace_seconds)
        if self._serving:
            _, late = await asyncio.wait(self._serving, timeout=grace_seconds)
            for task in late:
                # Once: one that is ending already is not to be disturbed.
                if not task.cancelling():
                    task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        logging.getLogger().removeHandler(self._log)

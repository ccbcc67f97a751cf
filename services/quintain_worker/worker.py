"""The worker put together: one composition root; an intake per target, each with its own prefetch."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from quintain.bus.base import Bus
from quintain.caller import Caller
from quintain.clock import Clock
from quintain.contracts.discovery import ServiceCard
from quintain.contracts.ledger import Drain, LeaseRenewed, Register, TargetCard
from quintain.operations.presence import Identity
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import LEDGER, Topology, target_queue
from quintain_worker.admissions import Admissions
from quintain_worker.cancels import Cancels
from quintain_worker.desk import Desk
from quintain_worker.handler import Served
from quintain_worker.instrumentation import InstrumentedProvider
from quintain_worker.intake import Intake
from quintain_worker.lease import Lease
from quintain_worker.metrics import WorkerMetrics
from quintain_worker.port import MOST_RETRY_AFTER_SECONDS

log = logging.getLogger(__name__)

MOST_PAUSE_MS = int(MOST_RETRY_AFTER_SECONDS * 1000)


class Worker:
    """Serves targets: any number of workers, on any machine, share each target's queue."""

    def __init__(  # noqa: PLR0913 -- a composition root
        self,
        bus: Bus,
        served: Mapping[str, Served],
        cards: Sequence[TargetCard],
        metrics: WorkerMetrics | None = None,
        *,
        sole_id: str | None = None,
        drain: Callable[[], object] | None = None,
        timings: Timings = DEFAULT_TIMINGS,
    ) -> None:
        """``sole_id`` is an id that only one process at a time can have: whoever had it before has died. ``drain`` is
        told, perhaps more than once, that an administrator asks this worker to stop; without it nobody may ask.
        ``timings`` are those of the whole fleet."""
        metrics = metrics or WorkerMetrics()
        self._bus, self._cards = bus, cards
        self._served = {card.name: instrumented(served[card.name], card, metrics) for card in cards}
        clock, incarnation = Clock(), secrets.token_hex(16)
        self._timings = timings
        self.worker_id = sole_id or f"{socket.gethostname()}-{os.getpid()}"
        self._identity = Identity("worker", self.worker_id)
        self._caller = Caller(bus)
        self._admissions = Admissions(bus, self._caller, clock, incarnation, timings)
        self._desk = Desk(bus, self._admissions, clock, incarnation, metrics, timings)
        self._cancels = Cancels(bus, self._desk.running)
        sole = True if sole_id else None
        able = Drain.UNABLE if drain is None else Drain.ABLE
        card = Register(worker_id=self.worker_id, incarnation=incarnation, targets=list(cards), sole=sole, drain=able)
        self._drain = drain
        self._lease = Lease(self._caller, clock, card, self._on_renewed, timings)
        self._intakes = {
            card.name: Intake(
                self._served[card.name],
                self._desk,
                prefetch=card.max_concurrency,
                tell=partial(self._lease.pause, card.name),
            )
            for card in cards
        }

    async def start(self) -> None:
        """Register, then take calls; waits for a metadata service to come up."""
        await self._bus.declare(Topology((LEDGER,)))
        await self._caller.start()
        self._admissions.start()
        await self._cancels.start()
        await self._lease.start()
        for intake in self._intakes.values():
            await intake.start()
        log.info("Worker %s serves %s", self.worker_id, ", ".join(self._served))

    async def stop(self, grace_seconds: float = 30.0) -> None:
        """Take no more, give back what has not started, finish what runs within the grace, then let go; the reply
        consumer goes last."""
        for intake in self._intakes.values():
            await intake.cancel()
        self._admissions.stop()
        drained = await asyncio.gather(*(intake.drain(grace_seconds) for intake in self._intakes.values()))
        if not all(drained):
            log.warning("A call outlived the grace of %.0f s; another worker takes it over", grace_seconds)
        await self._cancels.stop()
        await self._lease.stop()
        await self._caller.close()
        for served in self._served.values():
            await served.provider.close()

    def card(self) -> ServiceCard:
        """What it tells whoever asks who is there."""
        served = [self._intakes[one.name].served(one.provider) for one in self._cards]
        age = self._lease.age_seconds
        return self._identity.card(
            targets=served,
            slots=sum(one.slots for one in served),
            in_flight=sum(one.in_flight for one in served),
            heartbeat_age_ms=None if math.isinf(age) else int(age * 1000),
            broker_reconnects=self._bus.reconnects,
        )

    async def check(self) -> str | None:
        """What keeps it from taking calls: a lease that is not renewed, or a target's queue that is not consumed."""
        if self._lease.age_seconds > self._timings.lease_seconds:
            return "the ledger has not renewed this worker's lease: does a metadata service run?"
        idle = [name for name, intake in self._intakes.items() if not intake.open]
        return f"not consumed: {', '.join(target_queue(name).name for name in idle)}" if idle else None

    def _on_renewed(self, renewed: LeaseRenewed) -> None:
        """The ledger's word on what is paused for everybody, on what was taken back, and on whether to go on."""
        paused = renewed.paused or {}
        for name, intake in self._intakes.items():
            left_ms = paused[name] - renewed.now if name in paused else None
            left_seconds = None if left_ms is None else min(left_ms, MOST_PAUSE_MS) / 1000
            intake.pause.hear(left_seconds, told=self._lease.is_told(name))
        self._desk.running.take_back(renewed.taken_back or ())
        if renewed.drain and self._drain is not None:
            log.warning("An administrator asks this worker to drain")
            self._drain()


def instrumented(served: Served, card: TargetCard, metrics: WorkerMetrics) -> Served:
    """The same target with its provider instrumented."""
    provider = InstrumentedProvider(served.provider, card, metrics, content=served.trace_content)
    return dataclasses.replace(served, provider=provider)

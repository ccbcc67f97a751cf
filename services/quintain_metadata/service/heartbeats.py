"""Renews workers' leases, and measures how late heartbeats are read, so that no lease lapses for a delay of ours.

Heartbeats have a queue of their own. Each metadata service publishes a probe to it at every interval, with the time on
the ledger's clock. A queue keeps its order: whoever reads a probe knows that every heartbeat that was sent before it
was delivered. Leases that end after the last probe that was read do not lapse yet. If probes are read too late,
heartbeats may have expired in the queue: then no lease lapses for the duration of one lease.
"""

from __future__ import annotations

import asyncio
import logging

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.contracts.ledger import Heartbeat, HeartbeatProbe, LeaseRenewed
from quintain.errors import BudgetUnavailable, BusError, Fault
from quintain.routes import HEARTBEAT_PROBE
from quintain.rpc.server import result_or_fault, send_reply
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_metadata.ledger.base import Ledger, Moment, SqlProgram
from quintain_metadata.rules import leases
from quintain_metadata.service.own_admits import OwnAdmitQueue

log = logging.getLogger(__name__)

#: A service that freezes keeps so many heartbeats from the others at most: fewer than a worker sends in one lease.
HEARTBEAT_PREFETCH = 2


class LeaseGuard:
    """Decides which leases may lapse, from the probes that were read. Times are milliseconds on the ledger's clock."""

    def __init__(self, ledger: Ledger, timings: Timings = DEFAULT_TIMINGS) -> None:
        self._ledger = ledger
        self._lease_ms, self._gap_ms = timings.lease_ms, int(timings.gap_seconds * 1000)
        self._read_until = 0
        self._has_missed = self._was_late = False

    def start(self, now: int) -> None:
        """Let no lease lapse for the duration of one lease: heartbeats may have been lost before the start."""
        self._suspend(now)
        self._read_until = now
        self._ledger.lapse_leases_until(now)

    def on_missed(self) -> None:
        """Note that a heartbeat was read and its lease not renewed, because the ledger was out of reach."""
        self._has_missed = True

    def on_probe(self, sent_at: int, now: int) -> None:
        """Note that every heartbeat that was sent before this probe was read."""
        is_late = now - self._read_until > self._gap_ms or self._has_missed
        if is_late and not self._was_late:
            log.warning(
                "Heartbeats are read late: no lease lapses for %.0f s after the last such one", self._lease_ms / 1000
            )
        if is_late:
            self._suspend(now)
        self._was_late, self._has_missed = is_late, False
        self._read_until = max(self._read_until, min(sent_at, now))
        self._ledger.lapse_leases_until(self._read_until)

    def _suspend(self, now: int) -> None:
        self._ledger.suspend_lease_expiry_until(now + self._lease_ms)


class HeartbeatConsumer:
    """Consumes heartbeats and probes in the order of their queue."""

    def __init__(
        self, bus: Bus, ledger: Ledger, timings: Timings = DEFAULT_TIMINGS, own_admits: OwnAdmitQueue | None = None
    ) -> None:
        self._bus, self._ledger, self._timings = bus, ledger, timings
        self._own_admits = own_admits or OwnAdmitQueue(bus)
        self._guard = LeaseGuard(ledger, timings)
        self._order = asyncio.Lock()
        self._probe_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Let no lease lapse for the duration of one lease; called before anything is consumed."""
        self._guard.start(await self._ledger.now())

    def start_probes(self) -> None:
        """Publish probes periodically, from when the queue is consumed."""
        self._probe_task = asyncio.get_running_loop().create_task(self._probe_periodically(), name="heartbeat-probe")

    async def stop(self) -> None:
        """Publish no more probes."""
        if self._probe_task is not None:
            self._probe_task.cancel()
            await asyncio.gather(self._probe_task, return_exceptions=True)

    async def __call__(self, delivery: Delivery) -> None:
        """Process one heartbeat or probe, after those that were delivered before it."""
        async with self._order:
            if delivery.exchange == HEARTBEAT_PROBE.exchange.name:
                await result_or_fault(self._on_probe(delivery), "reading a probe")
            else:
                answer = await result_or_fault(self.renew(delivery), "renewing a lease")
                await send_reply(self._bus, delivery, answer)
            await delivery.ack()

    async def renew(self, delivery: Delivery) -> LeaseRenewed:
        """Renew the lease of the worker that sent this heartbeat."""
        heartbeat = Heartbeat.from_wire(delivery.body)
        try:
            renewed = await self._ledger.transact(
                lambda moment: leases.renew_lease(moment.now, heartbeat, self._timings.lease_ms)
            )
        except BudgetUnavailable:
            self._guard.on_missed()
            raise
        return self._own_admits.tell(renewed)

    async def _on_probe(self, delivery: Delivery) -> None:
        probe = HeartbeatProbe.from_wire(delivery.body)
        # An operation, not `now`: while the ledger is out of reach, no heartbeat can be taken.
        self._guard.on_probe(probe.sent_at, await self._ledger.transact(_read_time))

    async def _probe_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._timings.sweep_seconds)
            try:
                probe = HeartbeatProbe(sent_at=await self._ledger.now())
                envelope = Envelope(
                    body=probe.to_wire(),
                    type=HEARTBEAT_PROBE.key,
                    expiration_ms=self._timings.lease_ms,
                    persistent=False,
                )
                await self._bus.publish(
                    HEARTBEAT_PROBE.exchange,
                    HEARTBEAT_PROBE.key,
                    envelope,
                    timeout_seconds=self._timings.heartbeat_seconds,
                )
            except (BusError, Fault) as error:
                # The bus and the ledger log their outages; until a probe is read again, no lease lapses.
                log.debug("A probe was not published: %s", error.message)


def _read_time(moment: Moment) -> SqlProgram[int]:
    yield from ()
    return moment.now

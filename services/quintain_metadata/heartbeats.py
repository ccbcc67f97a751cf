"""Renews workers' leases, and measures how late heartbeats are read, so that no lease lapses for a delay of ours.

Heartbeats have a queue of their own. Each metadata service publishes a probe to it at every interval, with the time on
the ledger's clock. A queue keeps its order: a reader of a probe knows that every heartbeat that was sent before it
was delivered. Leases that end after the last probe that was read do not lapse yet. If probes are read too late,
heartbeats may have expired in the queue: then no lease lapses for the duration of one lease. The answers to heartbeats
name the service's own queue for admits, to which workers send without the delay of a quorum queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.contracts.ledger import Heartbeat, HeartbeatProbe, LeaseRenewed
from quintain.contracts.message import Message
from quintain.errors import BudgetUnavailable, BusError, Fault
from quintain.routes import HEARTBEAT_PROBE
from quintain.rpc.own_queues import OwnQueue
from quintain.rpc.server import result_or_fault, send_reply
from quintain.runtime.concurrency import Batcher, cancel_and_wait
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_metadata.cancellations import CancellationSender
from quintain_metadata.ledger import leases
from quintain_metadata.ledger.targets import RunningCounts
from quintain_metadata.store.base import LeaseExpiry, Ledger, Moment, SqlProgram

log = logging.getLogger(__name__)

#: How many are delivered and not acknowledged at most. A service that freezes keeps these from the others, and one more
#: of each worker, which it acknowledged: together fewer than a worker sends in one lease.
HEARTBEAT_PREFETCH = 2


class LeaseGuard:
    """Decides which leases may lapse, from the probes that were read. Times are milliseconds on the ledger's clock."""

    def __init__(self, lease_expiry: LeaseExpiry, timings: Timings = DEFAULT_TIMINGS) -> None:
        self._lease_expiry = lease_expiry
        self._lease_ms, self._gap_ms = timings.lease_ms, int(timings.gap_seconds * 1000)
        self._read_until = 0
        self._has_missed = self._was_late = False

    def start(self, now: int) -> None:
        """Let no lease lapse for the duration of one lease: heartbeats may have been lost before the start."""
        self._suspend(now)
        self._read_until = now
        self._lease_expiry.lapse_until = now

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
        self._lease_expiry.lapse_until = self._read_until

    def _suspend(self, now: int) -> None:
        self._lease_expiry.suspended_until = now + self._lease_ms


@dataclass(frozen=True, slots=True)
class _Unprocessed:
    """A heartbeat and its user, or a probe (None), that was delivered."""

    delivery: Delivery
    heartbeat: Heartbeat | None
    user: str


class HeartbeatConsumer:
    """Consumes heartbeats and probes in the order of their queue, in batches: one transaction for many heartbeats."""

    def __init__(
        self,
        bus: Bus,
        ledger: Ledger,
        timings: Timings,
        own_queue: OwnQueue,
        cancellation_sender: CancellationSender,
        running: RunningCounts,
    ) -> None:
        self._bus, self._ledger, self._timings = bus, ledger, timings
        self._own_queue, self._cancellation_sender, self._running = own_queue, cancellation_sender, running
        self._guard = LeaseGuard(ledger.lease_expiry, timings)
        self._order = asyncio.Lock()
        self._batches: Batcher[_Unprocessed] = Batcher(self._process)
        #: Of each worker with a heartbeat that is not processed: done when it is.
        self._of_worker: dict[str, asyncio.Future[None]] = {}
        self._probe_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Let no lease lapse for the duration of one lease; called before anything is consumed."""
        self._guard.start(await self._ledger.now())

    def start_probes(self) -> None:
        """Publish probes periodically, from when the queue is consumed."""
        self._probe_task = asyncio.get_running_loop().create_task(self._probe_periodically(), name="heartbeat-probe")

    async def stop(self, grace_seconds: float) -> None:
        """Publish no more probes, and finish the heartbeats that were acknowledged, for ``grace_seconds`` at most."""
        if self._of_worker:
            await asyncio.wait(self._of_worker.values(), timeout=grace_seconds)
        await cancel_and_wait(self._probe_task)

    async def __call__(self, delivery: Delivery) -> None:
        """Put one heartbeat or probe in the next batch, after those that were delivered before it, and acknowledge it.

        A heartbeat waits, unacknowledged, while an earlier one of its worker is not processed: a service that freezes
        must not take all heartbeats of a worker from the others.
        """
        async with self._order:
            if delivery.exchange == HEARTBEAT_PROBE.exchange.name:
                self._batches.add(_Unprocessed(delivery, None, ""))
            else:
                await self._add_heartbeat(delivery)
            await delivery.ack()

    async def _add_heartbeat(self, delivery: Delivery) -> None:
        try:
            heartbeat, user = Heartbeat.from_wire(delivery.body), leases.require_user(delivery.user_id)
        except Fault as unreadable:
            await self._reply(delivery, unreadable)
            return
        earlier = self._of_worker.get(heartbeat.incarnation)
        if earlier is not None:
            await asyncio.wait([earlier])
        self._of_worker[heartbeat.incarnation] = self._batches.add(_Unprocessed(delivery, heartbeat, user))

    async def _process(self, batch: list[_Unprocessed]) -> None:
        """Process heartbeats and probes in their order, the heartbeats between two probes in one transaction."""
        for is_probe, group in groupby(batch, key=lambda one: one.heartbeat is None):
            if is_probe:
                for probe in group:
                    await result_or_fault(self._on_probe(probe.delivery), "reading a probe")
            else:
                await self._renew_all(list(group))

    async def _renew_all(self, group: list[_Unprocessed]) -> None:
        heartbeats = [(one.heartbeat, one.user) for one in group if one.heartbeat is not None]
        answers = list[LeaseRenewed | Fault]()
        try:
            answers += await self._renew(heartbeats)
        except Exception:  # of one of them, and nothing says of which
            for each in heartbeats:
                renewed = await result_or_fault(self._renew([each]), "renewing a lease")
                answers += [renewed] if isinstance(renewed, Fault) else renewed
        for one, (heartbeat, _), answer in zip(group, heartbeats, answers, strict=True):
            self._of_worker.pop(heartbeat.incarnation, None)
            if isinstance(answer, LeaseRenewed):
                self._cancellation_sender.note_renewed(heartbeat.incarnation, one.delivery)
        await asyncio.gather(*(self._reply(one.delivery, answer) for one, answer in zip(group, answers, strict=True)))

    async def _renew(self, heartbeats: Sequence[tuple[Heartbeat, str]]) -> Sequence[LeaseRenewed | Fault]:
        try:
            renewed = await self._ledger.transact(
                lambda moment: leases.renew_leases(moment.now, heartbeats, self._timings.lease_ms, self._running)
            )
        except BudgetUnavailable as unavailable:
            self._guard.on_missed()
            return [unavailable] * len(heartbeats)
        return [with_admit_key(each, self._own_queue) for each in renewed]

    async def _reply(self, delivery: Delivery, answer: Message | Fault) -> None:
        try:
            await send_reply(self._bus, delivery, answer)
        except BusError as error:
            # The bus logs its outages, and the worker sends its next heartbeat soon.
            log.debug("The answer to a heartbeat was not sent: %s", error.message)

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


def with_admit_key(renewed: LeaseRenewed, own_queue: OwnQueue) -> LeaseRenewed:
    """Return the answer to a worker with the key of this service's own queue, if it is consumed now."""
    return renewed.with_fields(admit_key=own_queue.key) if own_queue.is_consumed else renewed

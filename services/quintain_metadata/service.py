"""The metadata service: composes its six queue consumers and the periodic sweep over one bus and one ledger.

Of several on a ledger of PostgreSQL one runs at a time: `replicas` says which.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable

from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from quintain.bus.base import Bus, Consumer, Delivery, Handler
from quintain.contracts.credentials import SessionToken, digest
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.ledger import AdmitBatch, AdmitReply, OpenChild, Register, SettleBatch
from quintain.contracts.message import CLIENT_QUEUE_PREFETCH, Message
from quintain.contracts.service_card import ServiceCard
from quintain.errors import BadRequest, BrokerRefused, BudgetUnavailable, BusError, Fault
from quintain.fleet.beats import ServiceIdentity, send_beats
from quintain.routes import ADMIT, BEAT, HEARTBEAT, METADATA_BEAT, OPEN_CHILD, REGISTER
from quintain.rpc.groups import group_handler
from quintain.rpc.own_queues import OwnQueue
from quintain.rpc.server import log_defect, result_or_fault, send_reply
from quintain.runtime.concurrency import cancel_and_wait, running_task
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import (
    ADMIT_QUEUE,
    DEAD_QUEUE,
    HEARTBEAT_QUEUE,
    METADATA_QUEUE,
    METADATA_TOPOLOGY,
    SETTLE_QUEUE,
    UNROUTED_QUEUE,
    Queue,
    admit_topology,
    target_topology,
)
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.dead_letters import DeadLetterConsumer, poison_handler
from quintain_metadata.fleet import FleetStatus
from quintain_metadata.handlers import MetadataRequestHandler
from quintain_metadata.heartbeats import HEARTBEAT_PREFETCH, HeartbeatConsumer, with_admit_key
from quintain_metadata.ledger import calls, children, leases, pruning, targets
from quintain_metadata.ledger_queues import AdmitConsumer, SettleConsumer
from quintain_metadata.line_ledger import LineLedger
from quintain_metadata.metrics import InstrumentedLedger, MetadataMetrics, read_gauges
from quintain_metadata.routing import Router
from quintain_metadata.store.base import Ledger

log = logging.getLogger(__name__)

#: The prefetch of the queues that only workers write to. The largest messages there, settles with a reply of
#: `MAX_STORED_REPLY_BYTES` in base64, are 90 MiB together.
PREFETCH = 64

#: How often the gauges are read from the ledger, in seconds.
GAUGES_SECONDS = 10.0

#: The service is not ready if a small query takes the ledger longer than this, in seconds.
LEDGER_CHECK_SECONDS = 2.0

#: Pause before a ledger that is out of reach is asked again while the service starts, in seconds.
LEDGER_RETRY_SECONDS = 0.5


class MetadataService:
    """Consumes the queues of sessions and operations, admits, settles, unrouted requests and dead letters."""

    def __init__(
        self,
        bus: Bus,
        ledger: Ledger,
        admin_sha256: bytes | None,
        metrics: MetadataMetrics | None = None,
        *,
        timings: Timings = DEFAULT_TIMINGS,
        start_window_seconds: float | None = None,
    ) -> None:
        self._metrics, self._timings = metrics or MetadataMetrics(), timings
        self._identity = ServiceIdentity("metadata")
        self._bus, self._ledger = bus, InstrumentedLedger(ledger, self._metrics, timings)
        # It ends with this service's connection: the broker then returns what is sent to it.
        self._own_queue = OwnQueue(bus, admit_topology(secrets.token_hex(8)), PREFETCH, self._on_own_message)
        quotas = LineLedger(self._ledger)
        self._admission_queue = AdmissionQueue(self._ledger, self._metrics, timings, quotas)
        self._metrics.read_quotas = quotas.states
        self._fleet = FleetStatus(bus, self._ledger, self._identity.instance, quotas.states, timings)
        self._request_handler = MetadataRequestHandler(
            bus, self._ledger, self._admission_queue, self._fleet, admin_sha256, timings
        )
        self._cancellation_sender = self._request_handler.cancellation_sender
        self._admits = AdmitConsumer(bus, self._ledger, self._admission_queue)
        self._settles = SettleConsumer(self._admission_queue, self._metrics, timings)
        self._running = quotas.line.places.at_workers
        senders = self._own_queue, self._cancellation_sender
        self._heartbeats = HeartbeatConsumer(bus, self._ledger, timings, *senders, self._running)
        self._consumers: dict[str, Consumer] = {}
        self._start_window_seconds = start_window_seconds
        self._router: Router | None = None
        self._sweep_task: asyncio.Task[None] | None = None
        self._ask_task: asyncio.Task[None] | None = None
        self._beat_task: asyncio.Task[None] | None = None
        self._gauges_read_at = -math.inf

    async def start(self) -> None:
        """Declare the topology and the queues of the registered targets, then start consuming and sweeping.

        A ledger that is out of reach meanwhile is waited for, as is the broker.
        """
        when_reachable = AsyncRetrying(
            retry=retry_if_exception_type(BudgetUnavailable), wait=wait_fixed(LEDGER_RETRY_SECONDS)
        )
        await when_reachable(self._heartbeats.start)
        self._router = Router(self._bus, self._ledger, self._timings, self._start_window_seconds)
        await when_reachable(self._router.start)
        await when_reachable(self._admission_queue.quotas.refresh)
        self._ask_task = asyncio.get_running_loop().create_task(self._admission_queue.ask_forever(), name="ask-waiting")
        await self._bus.declare(METADATA_TOPOLOGY)
        names: list[str] = await when_reachable(self._ledger.transact, lambda _: targets.target_names())
        for target in names:
            await self._bus.declare(target_topology(target))
        try:
            await self._own_queue.open()
        except BrokerRefused as refusal:
            log.warning("All admits take the shared queue, which is slower: %s", refusal.message)
            await self._own_queue.close()
        # Before it consumes what others do: who consumes and is not heard is a stranger.
        beats = send_beats(self._bus, self.card, self._timings, METADATA_BEAT)
        self._beat_task = asyncio.get_running_loop().create_task(beats, name="heartbeats")
        dead_letters = DeadLetterConsumer(self._bus, self._ledger, self._timings)
        handlers: dict[Queue, Handler] = {
            METADATA_QUEUE: poison_handler(self._bus, self._request_handler),
            ADMIT_QUEUE: self._on_ledger_request,
            SETTLE_QUEUE: self._settles,
            UNROUTED_QUEUE: group_handler(self._bus, poison_handler(self._bus, self._router)),
            DEAD_QUEUE: group_handler(self._bus, poison_handler(self._bus, dead_letters)),
            HEARTBEAT_QUEUE: self._heartbeats,
        }
        client_queues = dict.fromkeys((METADATA_QUEUE, UNROUTED_QUEUE, DEAD_QUEUE), CLIENT_QUEUE_PREFETCH)
        prefetches = {HEARTBEAT_QUEUE: HEARTBEAT_PREFETCH, **client_queues}
        for queue, handler in handlers.items():
            self._consumers[queue.name] = await self._bus.consume(
                queue, handler, prefetch=prefetches.get(queue, PREFETCH)
            )
        self._heartbeats.start_probes()
        self._sweep_task = asyncio.get_running_loop().create_task(self._sweep_periodically(), name="sweep")

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Stop consuming, wait up to ``grace_seconds`` for the handlers that run, and stop the sweep.

        One that does not lead its ledger any more waits for none: nothing that they say would be published.
        """
        leadership = self._ledger.leadership
        if leadership is not None and not leadership.may_publish():
            grace_seconds = 0.0
        for consumer in self._consumers.values():
            await consumer.cancel()
        if self._router is not None:
            self._router.stop()
        await asyncio.gather(
            self._own_queue.close(grace_seconds),
            *(consumer.drain(grace_seconds) for consumer in self._consumers.values()),
        )
        await self._heartbeats.stop(grace_seconds)
        await cancel_and_wait(self._sweep_task, self._ask_task, self._beat_task)

    async def admit(self, batch: AdmitBatch, on_reply: Callable[[AdmitReply], None], _: str) -> None:
        """Decide admits of a worker in this process, for which the service is its `LedgerPort`."""
        await self._admits.admit(batch, on_reply)

    async def settle(self, batch: SettleBatch) -> None:
        """Record settles of a worker in this process; returns when they are in the ledger."""
        await self._settles.apply(batch.items)

    def card(self) -> ServiceCard:
        """Return the card that the service sends in its heartbeats; waiting admits count as in flight."""
        return self._identity.card(
            in_flight=self._admission_queue.waiting_count,
            broker_reconnects=self._bus.reconnects,
            ledger=self._ledger.kind,
            calls=self._metrics.call_counter.counts(time.monotonic()),
        )

    async def check(self) -> str | None:
        """Return why the service is not ready, or None: it must consume all its queues, and the ledger must answer."""
        not_consumed = [name for name, consumer in self._consumers.items() if not consumer.active]
        if not_consumed:
            return f"not consumed: {', '.join(not_consumed)}"
        return await check_ledger(self._ledger)

    async def _on_own_message(self, delivery: Delivery) -> None:
        is_heartbeat = delivery.routing_key in {HEARTBEAT.key, BEAT.key}
        await (self._fleet.hear if is_heartbeat else self._admits)(delivery)

    async def _on_ledger_request(self, delivery: Delivery) -> None:
        if delivery.routing_key == ADMIT.key:
            await self._admits(delivery)
            return
        answer = await result_or_fault(self._answer_ledger_request(delivery), f"answering {delivery.routing_key}")
        await send_reply(self._bus, delivery, answer)
        await delivery.ack()

    async def _answer_ledger_request(self, delivery: Delivery) -> Message:
        if delivery.routing_key == OPEN_CHILD.key:
            child = OpenChild.from_wire(delivery.body)
            # Both ids are random, and the ledger keeps only one of them.
            token = SessionToken.of_request(child.attempt_id, delivery.correlation_id or secrets.token_hex())
            return await self._ledger.transact(lambda moment: children.open_child(moment, child, token))
        assert delivery.routing_key == REGISTER.key, "the queue is bound to these keys only"
        registration = Register.from_wire(delivery.body)
        if registration.protocol != PROTOCOL_VERSION:
            raise BadRequest(
                f"protocol: the worker speaks version {registration.protocol}, this metadata service "
                f"{PROTOCOL_VERSION}: install the same release of Quintain on both"
            )
        user = leases.require_user(delivery.user_id)
        # Before queues are declared, and again as it is recorded.
        await self._ledger.transact(
            lambda _: leases.check_targets(user, (target.name for target in registration.targets))
        )
        for target in registration.targets:
            await self._bus.declare(target_topology(target.name))
        renewed = await self._ledger.transact(
            lambda moment: leases.register_worker(moment.now, registration, self._timings.lease_ms, user, self._running)
        )
        self._cancellation_sender.note_renewed(registration.incarnation, delivery)
        await self._admission_queue.refresh()
        return with_admit_key(renewed, self._own_queue)

    async def _sweep_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._timings.sweep_seconds)
            try:
                await self._ledger.transact(calls.sweep)
                await self._update_gauges()
                await self._admission_queue.retry_waiting()
            except BudgetUnavailable:
                continue  # logged by the instrumented ledger
            except (Fault, BusError) as error:
                log.error("The sweep failed and will be repeated: %s", error.message)
            except Exception as error:
                # The sweep must go on after any error: without it no call would ever expire.
                log_defect(error, "sweeping")

    async def _update_gauges(self) -> None:
        """Read the gauges from the ledger, at most every `GAUGES_SECONDS`."""
        now = asyncio.get_running_loop().time()
        if now - self._gauges_read_at >= GAUGES_SECONDS:
            self._gauges_read_at = now
            self._metrics.set_gauges(await self._ledger.read(read_gauges))


async def check_ledger(ledger: Ledger) -> str | None:
    """Return why a ledger cannot be used now, or None."""
    try:
        async with asyncio.timeout(LEDGER_CHECK_SECONDS):
            await ledger.read(lambda _: targets.target_names())
    except BudgetUnavailable as unavailable:
        return unavailable.message
    except TimeoutError:
        return f"the ledger does not answer within {LEDGER_CHECK_SECONDS:g} s"
    return None


@contextlib.asynccontextmanager
async def running_metadata(  # noqa: PLR0913 -- the service's own arguments
    bus: Bus,
    ledger: Ledger,
    admin_token: str | None,
    metrics: MetadataMetrics | None = None,
    *,
    timings: Timings = DEFAULT_TIMINGS,
    start_window_seconds: float | None = None,
    retention_days: int | None = None,
) -> AsyncIterator[MetadataService]:
    """Run a metadata service while the context is open. The caller closes the ledger.

    Arguments: ``admin_token`` is the administrator's token, or None for no administrator.
    ``start_window_seconds`` is for how long after its start calls wait for targets that are not registered, by default
    as ``timings`` say; 0 where all workers are known to register before the first call. ``retention_days`` is for how
    long sessions that have ended are kept; None is for ever.
    """
    admin_sha256 = None if admin_token is None else digest(admin_token)
    service = MetadataService(
        bus,
        ledger,
        admin_sha256,
        metrics,
        timings=timings,
        start_window_seconds=start_window_seconds,
    )
    try:
        await service.start()
        async with _retaining(ledger, retention_days):
            yield service
    finally:
        await service.stop()


@contextlib.asynccontextmanager
async def _retaining(ledger: Ledger, retention_days: int | None) -> AsyncIterator[None]:
    """Delete sessions that ended so many days ago, every hour while the context is open."""
    if retention_days is None:
        yield
        return
    async with running_task(pruning.prune_periodically(ledger, retention_days), "prune"):
        yield

"""One lease slot: consumes a lease request when it is free, creates an instance, and serves it until the lease ends.

A busy slot has no consumer, so that a request stays in the queue for the next free host.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

from quintain.bus.base import Bus, Consumer, Delivery
from quintain.bus.failure_log import FailureLog
from quintain.config.python_imports import OWN_SECRETS
from quintain.contracts import hosting
from quintain.errors import BadRequest, BusError, QueueFull, Unroutable
from quintain.observe import logs
from quintain.observe.semconv import lease_request_span
from quintain.observe.spans import span_in_trace
from quintain.routes import DESCRIBE_HOST
from quintain.rpc.own_queues import OwnQueue
from quintain.rpc.server import send_reply
from quintain.runtime.concurrency import start_task
from quintain.target.exceptions import to_failure
from quintain.timings import Timings
from quintain.topology import host_topology, lease_topology
from quintain_host.counters import LEASE_ENDED, LEASE_GIVEN, HostCounters
from quintain_host.instances import InstanceFactory, InstanceThread, create_instance
from quintain_host.lease import HostedLease

log = logging.getLogger(__name__)

#: How many messages of a controller are handled at once.
LEASE_PREFETCH = 128

#: How long the factory may take by default, in seconds.
BOOT_SECONDS = 600.0


class LeaseSlot:
    """Holds at most one leased instance of a target.

    ``description`` is the reply to requests for a description of the host. ``must_end`` is called when an instance
    blocks its thread at the end of its lease, and when ``after_lease`` returns True; then the slot drains, too.
    An instance must be created within ``boot_seconds``.
    """

    def __init__(  # noqa: PLR0913 -- what a host has for each of its slots
        self,
        bus: Bus,
        name: str,
        factory: InstanceFactory,
        description: hosting.HostDescribed,
        must_end: Callable[[], None],
        counters: HostCounters,
        *,
        boot_seconds: float,
        after_lease: Callable[[], Awaitable[bool]] | None,
        timings: Timings,
    ) -> None:
        self._bus, self._name, self._factory, self._description = bus, name, factory, description
        self._must_end, self._counters, self._timings = must_end, counters, timings
        self._after_lease = after_lease
        self._boot_seconds = boot_seconds
        self._queue = host_topology(name).queues[0]
        begun, ended = f"A slot of {name} takes no lease", f"A slot of {name} takes leases"
        self._no_lease = FailureLog(log, begun, ended, bus)
        self.lease: HostedLease | None = None
        #: True from the receipt of a lease request to the end of its lease. A drain does not interrupt this: the
        #: controller would hold a lease that no host serves.
        self._is_busy = False
        self.is_draining = False
        self._request_consumer: Consumer | None = None
        #: The queue of the next lease, declared while the slot waits or serves: the controller need not wait for that.
        self._next_queue: OwnQueue | None = None
        self._closing_tasks: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        """Whether the slot consumes lease requests, or serves one."""
        return self._is_busy or (self._request_consumer is not None and self._request_consumer.active)

    def drain(self) -> bool:
        """Take no more lease requests, and end an unused lease. Returns whether a lease is active or being created."""
        self.is_draining = True
        if self.lease is not None:
            self.lease.end_if_unused()
        return self._is_busy

    async def serve(self) -> None:
        """Serve one lease after another until the slot drains or is cancelled.

        An error in one lease is logged and does not end the slot.
        """
        while not self.is_draining:
            self._prepare_queue()
            try:
                if await self._serve_next() and self._after_lease is not None and await self._after_lease():
                    self.is_draining = True
                    self._must_end()
            except BusError as error:
                self._no_lease.failed(error)
                await asyncio.sleep(self._timings.host_pause_seconds)
            except Exception:
                log.exception("A lease of %s failed; the slot takes the next one", self._name)
                await asyncio.sleep(self._timings.host_pause_seconds)
            finally:
                self._is_busy = False

    async def _serve_next(self) -> bool:
        """Serve the next lease that is requested; returns False where its driver has gone."""
        lease: HostedLease | None = None
        try:
            async with self._next_request() as request:
                self._is_busy = True
                lease = await self._offer(request)
            if lease is not None:
                with logs.log_context(request_id=lease.request_id):
                    log.debug("A lease begins")
                    await self._serve_lease(lease)
                    log.debug("A lease has ended")
            return lease is not None
        finally:
            # Also one that was offered while the slot is cancelled.
            if lease is not None:
                await self._close_lease(lease)

    def _prepare_queue(self) -> OwnQueue:
        if self._next_queue is None:
            self._next_queue = OwnQueue(self._bus, lease_topology(secrets.token_urlsafe(24)), LEASE_PREFETCH)
        self._next_queue.prepare()
        return self._next_queue

    @contextlib.asynccontextmanager
    async def _next_request(self) -> AsyncIterator[Delivery]:
        """Consume exactly one lease request; a second one is requeued, so that a free host can take it."""
        received: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

        async def on_request(delivery: Delivery) -> None:
            answer = self._description if delivery.type == DESCRIBE_HOST.key else refusal_of(delivery)
            if answer is not None:
                # No lease begins: the slot goes on consuming.
                await self._reply(delivery, answer)
            elif received.done():
                await delivery.requeue()
            else:
                received.set_result(delivery)

        self._request_consumer = consumer = await self._bus.consume(self._queue, on_request, prefetch=1)
        self._no_lease.worked()
        try:
            yield await received
        finally:
            await consumer.drain(0)

    async def _reply(self, request: Delivery, answer: hosting.HostDescribed | BadRequest) -> None:
        try:
            await send_reply(self._bus, request, answer)
        except BusError as error:
            log.info("The reply to a %s to %s could not be sent: %s", request.type, self._name, error.message)
        finally:
            await request.ack()

    async def _offer(self, request: Delivery) -> HostedLease | None:
        """Offer a lease to the driver, and acknowledge its request; returns None for a driver that has gone."""
        queue, self._next_queue = self._prepare_queue(), None
        lease = HostedLease(
            self._bus,
            queue,
            request.correlation_id or "",
            InstanceThread(f"target {self._name}"),
            counters=self._counters,
            timings=self._timings,
        )
        assert self._request_consumer is not None, "a request came to a consumer"
        try:
            # A second request would be delivered as soon as this one is acknowledged.
            await asyncio.gather(self._request_consumer.cancel(), lease.offer(request, self._description.host_id))
        except BaseException as error:
            await self._close_lease(lease)
            if not isinstance(error, Unroutable | QueueFull):
                raise
            log.info("A lease request for %s was withdrawn: its driver has gone", self._name)
            return None
        finally:
            await request.ack()
        return lease

    async def _serve_lease(self, lease: HostedLease) -> None:
        """Create the instance of a lease, and serve it until it ends."""
        try:
            if await self._boot(lease):
                self.lease = lease
                self._counters.count(LEASE_GIVEN)
                if self.is_draining:
                    lease.end_if_unused()
                else:
                    self._prepare_queue()
                await lease.wait_closed()
        except (Unroutable, QueueFull):
            log.info("A lease of %s ends at once: its driver has gone", self._name)

    async def _close_lease(self, lease: HostedLease) -> None:
        try:
            if not await lease.close():
                log.error(
                    "An instance of %s blocks its thread at the end of its lease: the thread is left behind", self._name
                )
                self._must_end()
        finally:
            self._counters.on_address("", "")
            # The next lease does not wait for the deletion of this one's queue.
            start_task(self._closing_tasks, lease.close_queue())
            if self.lease is not None:
                self.lease = None
                self._counters.count(LEASE_ENDED)

    async def wait_closed(self) -> None:
        """Wait until the queues of ended leases are deleted, and that of the next one."""
        if self._next_queue is not None:
            await self._next_queue.close()
        await asyncio.gather(*self._closing_tasks, return_exceptions=True)

    async def _boot(self, lease: HostedLease) -> bool:
        """Create the instance of a lease, and tell its driver; returns whether there is one."""
        target = codec = None
        try:
            with span_in_trace(lease_request_span("lease"), lease.traceparent):
                target, codec, descriptor = await create_instance(
                    self._factory, self._name, lease.instance_thread, self._boot_seconds
                )
            result = hosting.LeaseResult(to=1, descriptor=descriptor, fingerprint=self._description.fingerprint)
        except Exception as error:
            # The factory's exception is sent to the driver with its class and message, and logged here.
            log.exception("The factory of %s failed", self._name)
            result = hosting.LeaseResult(to=1, failure=to_failure(error, OWN_SECRETS))
        await lease.open(result, target, codec)
        return target is not None


def refusal_of(request: Delivery) -> BadRequest | None:
    """Return why a message is no request for a lease that this host can read; None if it is one."""
    try:
        items = hosting.DriverMessage.from_wire(request.body).items if request.type == hosting.LEASE_TYPE else []
        if not request.correlation_id or not items or not isinstance(items[0], hosting.OpenLease):
            return BadRequest("items: a request for a lease begins with an `open`, and has a correlation id")
    except BadRequest as unreadable:
        return BadRequest(f"This host speaks version {hosting.REMOTE_TARGET_VERSION} of hosting: {unreadable.message}")
    if (version := items[0].version) == hosting.REMOTE_TARGET_VERSION:
        return None
    return BadRequest(
        f"version: this host speaks version {hosting.REMOTE_TARGET_VERSION} of hosting, the controller {version}: "
        "install the same release of quintain on both"
    )

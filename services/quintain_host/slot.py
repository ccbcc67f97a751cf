"""One slot: takes a lease request when it is free, builds a fresh instance, and is busy until the lease is over.

A busy slot consumes nothing, so that a request waits in the queue for whichever host is free first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from quintain.bus.base import Bus, Consumer, Delivery
from quintain.contracts.hosted import HOSTING_VERSION, AskLease, LeaseAnswer
from quintain.contracts.message import Message
from quintain.errors import BadRequest, Fault
from quintain.service import at_work, defect, reply
from quintain.target.codec import Codec
from quintain.target.failures import failure_of
from quintain.target.vocabulary import vocabulary_of
from quintain.telemetry.conventions import hosted
from quintain.timings import Timings
from quintain.topology import host_topology
from quintain_host.factory import Factory
from quintain_host.lease import HostedLease
from quintain_host.stage import Stage
from quintain_host.tally import LEASE, OVER, Tally

log = logging.getLogger(__name__)


class Slot:
    """Room for one instance of a target. ``stuck`` is called when one does not let go of its thread."""

    def __init__(  # noqa: PLR0913 -- what a host has for each of its slots
        self,
        bus: Bus,
        name: str,
        factory: Factory,
        host_id: str,
        stuck: Callable[[], None],
        tally: Tally,
        *,
        timings: Timings,
    ) -> None:
        self._bus, self._name, self._factory, self._host_id = bus, name, factory, host_id
        self._stuck, self._tally, self._timings = stuck, tally, timings
        self._queue = host_topology(name).queues[0]
        self.lease: HostedLease | None = None
        #: From a request that was taken to the end of its lease. It is not cut off: whoever asked would hold a lease
        #: that nobody serves.
        self._busy = False
        self.draining = False
        self._waiting: Consumer | None = None

    @property
    def open(self) -> bool:
        """Whether it waits for a lease request, or has one in hand."""
        return self._busy or (self._waiting is not None and self._waiting.live)

    def drain(self) -> bool:
        """Take no more; a lease that was never used ends. Returns whether a lease still runs, or is being given."""
        self.draining = True
        if self.lease is not None:
            self.lease.end_unused()
        return self._busy

    async def serve(self) -> None:
        """Lease out, one lease after another, until it drains or is cancelled. Whatever goes wrong with one lease,
        the slot goes on."""
        while not self.draining:
            try:
                async with self._taken() as request:
                    self._busy = True
                    lease = await self._answered(request)
                if lease is not None:
                    await self._live(lease)
            except Exception:
                log.exception("A slot of %s failed, and goes on", self._name)
                await asyncio.sleep(self._timings.host_pause_seconds)
            finally:
                self._busy = False

    @contextlib.asynccontextmanager
    async def _taken(self) -> AsyncIterator[Delivery]:
        """The next lease request. One is taken, and no more: the second would wait for nothing while another host
        is free."""
        came: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

        async def take(delivery: Delivery) -> None:
            if came.done():
                await delivery.requeue()
            else:
                came.set_result(delivery)

        self._waiting = consumer = await self._bus.consume(self._queue, take, prefetch=1)
        try:
            delivery = await came
            await consumer.cancel()
            yield delivery
        finally:
            await consumer.drain(0)

    async def _answered(self, request: Delivery) -> HostedLease | None:
        """The lease that this request got, if any. The request is done with, whatever came of it."""
        answer: Message | Fault
        lease: HostedLease | None = None
        try:
            with at_work(request, hosted("lease")):
                require_version(AskLease.from_wire(request.body))
                lease, answer = await self._lease()
        except Fault as fault:
            answer = fault
        except Exception as error:
            # Whatever went wrong, the controller gets its answer.
            answer = defect(error, f"leasing {self._name}")
        try:
            await reply(self._bus, request, answer)
        except BaseException:
            # Nobody knows of this lease: it is not waited for.
            if lease is not None:
                await self._closed(lease)
            raise
        finally:
            await request.ack()
        return lease

    async def _live(self, lease: HostedLease) -> None:
        self.lease = lease
        self._tally.count(LEASE)
        if self.draining:
            lease.end_unused()
        try:
            await lease.lived()
        finally:
            await self._closed(lease)
            self.lease = None
            self._tally.count(OVER)

    async def _closed(self, lease: HostedLease) -> None:
        if not await lease.close():
            log.error("A target of %s does not let go: its thread is left behind", self._name)
            self._stuck()

    async def _lease(self) -> tuple[HostedLease | None, LeaseAnswer]:
        stage = Stage(f"target {self._name}")
        try:
            target: Any = await stage.do(self._factory)
            codec = Codec(vocabulary_of(type(target)))
            descriptor = await stage.do(lambda: codec.describe(target))
            lease = HostedLease(self._bus, target, stage, codec, self._tally, self._timings)
            await lease.open()
        except Exception as error:
            # The factory's own words reach whoever asked, with their class, and the host's log.
            log.exception("The factory of %s failed", self._name)
            await self._abandoned(stage)
            return None, LeaseAnswer(host_id=self._host_id, failure=failure_of(error))
        except asyncio.CancelledError:
            await self._abandoned(stage)
            raise
        return lease, LeaseAnswer(lease_id=lease.lease_id, key=lease.key, host_id=self._host_id, descriptor=descriptor)

    async def _abandoned(self, stage: Stage) -> None:
        if not await stage.close():
            self._stuck()


def require_version(asked: AskLease) -> None:
    """Raises `BadRequest` where the controller speaks another version of hosting."""
    if asked.version != HOSTING_VERSION:
        raise BadRequest(
            f"version: this host speaks version {HOSTING_VERSION} of hosting, the controller {asked.version}: "
            "install the same release of quintain on both"
        )

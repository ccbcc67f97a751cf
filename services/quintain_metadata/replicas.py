"""Runs one of several metadata services on a ledger of PostgreSQL: it serves while it leads, and stands by otherwise.

One that stands by is ready, consumes nothing and publishes nothing, and looks whether nobody leads. One that does not
lead any more ends its service, whose messages the broker gives to the next leader, and stands by.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from quintain.bus.base import Bus
from quintain.contracts.service_card import ServiceCard
from quintain.errors import BudgetUnavailable, LedgerInUse
from quintain.fleet.beats import ServiceIdentity
from quintain.runtime.concurrency import cancel_and_wait, running_task
from quintain_metadata.service import MetadataService, check_ledger
from quintain_metadata.store.base import Ledger
from quintain_metadata.store.leadership import LEASE_SECONDS, LOOK_SECONDS, Leadership

log = logging.getLogger(__name__)

#: The interval of the AMQP heartbeats of a metadata service, in seconds: of one that stands still, the broker gives the
#: messages to the next leader after three of them.
BROKER_HEARTBEAT_SECONDS = 3

#: Starts a metadata service, which runs while the context is open.
Serve = Callable[[], contextlib.AbstractAsyncContextManager[MetadataService]]


@contextlib.asynccontextmanager
async def leading(bus: Bus, ledger: Ledger) -> AsyncIterator[None]:
    """Lead the ledger while the context is open. Raises `LedgerInUse` where another process leads it."""
    leadership = ledger.leadership
    if leadership is None:
        yield
        return
    bus.publish_only_while(leadership.may_publish)
    try:
        async with asyncio.timeout(2 * LEASE_SECONDS):  # a leader that was killed leads so long at most
            while True:
                if await leadership.take():
                    break
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise LedgerInUse(
            "Another process leads the ledger that QUINTAIN_LEDGER_URL names: stop it, or give this one another ledger"
        ) from None
    try:
        async with running_task(_keep_on(leadership), "lead"):
            yield
    finally:
        await leadership.leave()


async def _keep_on(leadership: Leadership) -> None:
    """Renew the lease also after a long time in which that was not possible: no other process may have led."""
    while True:
        await leadership.keep()
        with contextlib.suppress(BudgetUnavailable):
            await leadership.renew()
        await asyncio.sleep(LOOK_SECONDS)


class Replica:
    """One of several metadata services on a ledger."""

    def __init__(self, bus: Bus, ledger: Ledger, leadership: Leadership, serve: Serve) -> None:
        self._bus, self._ledger, self._leadership, self._serve = bus, ledger, leadership, serve
        self._identity = ServiceIdentity("metadata")
        self._service: MetadataService | None = None
        #: Done once it serves, or has found that another one does; with the error of a service that did not start.
        self.began: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def card(self) -> ServiceCard:
        """Return the card of the service that runs, or of one that stands by."""
        if self._service is not None:
            return self._service.card()
        return self._identity.card(ledger=self._ledger.kind, broker_reconnects=self._bus.reconnects)

    async def check(self) -> str | None:
        """Return why it is not ready, or None; one that stands by needs the ledger."""
        return await (check_ledger(self._ledger) if self._service is None else self._service.check())

    async def run(self) -> None:
        """Stand by, lead, and so on, until cancelled."""
        while True:
            with contextlib.suppress(BudgetUnavailable):  # looked at again
                if await self._leadership.take():
                    await self._lead()
                if not self.began.done():
                    log.info("Another metadata service leads the ledger; this one stands by")
                    self.began.set_result(None)
            await asyncio.sleep(LOOK_SECONDS)

    async def _lead(self) -> None:
        """Serve until another process leads the ledger, or may do so for long."""
        log.info("This metadata service leads the ledger")
        loop = asyncio.get_running_loop()
        leads, serves = loop.create_task(self._leadership.keep(), name="lead"), loop.create_task(self._serve_on())
        try:
            await asyncio.wait([leads, serves], return_when=asyncio.FIRST_COMPLETED)
            if leads.done():
                log.warning("This metadata service could not keep the ledger's lead, and stands by")
        finally:
            await cancel_and_wait(serves)
            await cancel_and_wait(leads)
            await self._leadership.leave()

    async def _serve_on(self) -> None:
        try:
            async with self._serve() as self._service:
                if not self.began.done():
                    self.began.set_result(None)
                await asyncio.Event().wait()
        except Exception as error:
            if not self.began.done():
                self.began.set_exception(error)
            else:
                log.exception("The service did not start, and the leader starts it again")
        finally:
            self._service = None


@contextlib.asynccontextmanager
async def replicated(bus: Bus, ledger: Ledger, serve: Serve) -> AsyncIterator[MetadataService | Replica]:
    """Run the service that ``serve`` starts, by turns with others where several may share the ledger."""
    leadership = ledger.leadership
    if leadership is None:
        async with serve() as service:
            yield service
        return
    bus.publish_only_while(leadership.may_publish)
    replica = Replica(bus, ledger, leadership, serve)
    async with running_task(replica.run(), "replica"):
        await replica.began
        yield replica

"""Keeps a `FleetModel` up to date over a bus: consumes events, asks for states, and collects service cards."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection

from quintain.bus.base import Bus, Delivery
from quintain.client.admin import Admin
from quintain.contracts.fleet import Discover, FleetChanged
from quintain.errors import BusError, Fault, NoAnswer, Unauthorized, Unroutable
from quintain.fleet.fleet_figures import FleetFigures
from quintain.fleet.model import SILENT_SECONDS, FleetModel
from quintain.routes import DISCOVER
from quintain.rpc.requests import RpcClient, RpcRequest, parse_reply
from quintain.rpc.server import delete_queues, log_defect
from quintain.runtime.concurrency import cancel_and_wait
from quintain.topology import events_topology

log = logging.getLogger(__name__)

#: The note without an admin token.
NO_ADMIN_NOTE = (
    "Targets that are registered and that no worker serves, and budgets, cannot be shown: set QUINTAIN_ADMIN_TOKEN to "
    "that of the metadata service"
)

#: How often services are asked for their cards, and the ledger for the quotas and for the whole state, in seconds.
CARDS_SECONDS, QUOTAS_SECONDS, STATE_SECONDS = 0.5, 2.0, 10.0

#: How often it is looked whether all queues were counted, in seconds.
COUNT_POLL_SECONDS = 0.05

#: Pause before a state is asked for again that did not come, in seconds.
RETRY_SECONDS = 1.0

#: How many events are handled at a time.
PREFETCH = 16

#: Figures are made again after this time at the earliest, and take at most this part of a processor's time.
FIGURES_SECONDS, FIGURES_SHARE = 0.25, 1 / 30

#: How far the ledger's clock may be off this machine's before calls expire too early or too late, in seconds.
MAX_SKEW_SECONDS = 10.0


def _reason(error: Fault | NoAnswer | BusError) -> str:
    if isinstance(error, Unauthorized):
        return "the metadata service refuses QUINTAIN_ADMIN_TOKEN: set it to the one that the service has"
    return error.message


def _clock_problem(seconds_ahead: float) -> str:
    way = "ahead of" if seconds_ahead > 0 else "behind"
    return (
        f"The ledger's clock is {abs(seconds_ahead):.0f} s {way} this machine's: calls expire too early or too late; "
        "run NTP (chrony, systemd-timesyncd) on both"
    )


class FleetWatch:
    """A model of a running fleet, kept up to date while `running` is open.

    Without ``admin`` the ledger is not read, and what it alone knows is not among the figures. ``answer_seconds`` is
    how long services have for their first answer.

    Example::

        async with FleetWatch(bus, rpc_client, admin).running() as watch:
            await watch.wait_state(timeout_seconds=5)
            print(watch.figures())
    """

    def __init__(
        self, bus: Bus, rpc_client: RpcClient, admin: Admin | None, *, answer_seconds: float = SILENT_SECONDS
    ) -> None:
        self._bus, self._rpc_client, self._admin = bus, rpc_client, admin
        now = time.monotonic()
        self._model = FleetModel(now, clock_offset=time.time() - now, answer_seconds=answer_seconds)
        #: Set once the state was read and services were asked for their cards, or could not be.
        self._tried = {"state": asyncio.Event(), "cards": asyncio.Event()}
        if admin is None:
            self._tried["state"].set()
        #: Set once events are consumed: what the state does not have yet comes as an event.
        self._consuming = asyncio.Event()
        self._errors: dict[str, Fault | NoAnswer | BusError] = {}
        #: By how much the ledger's clock is ahead of this machine's.
        self._seconds_ahead = 0.0
        self._figures: FleetFigures | None = None
        self._figures_until = -math.inf

    @property
    def is_refused(self) -> bool:
        """Whether the metadata service refuses the administrator's token."""
        return isinstance(self._errors.get("state"), Unauthorized)

    def raise_if_unasked(self) -> None:
        """Raise the `BusError` because of which services cannot be asked for their cards, if there is one."""
        if "cards" in self._errors:
            raise self._errors["cards"]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FleetWatch]:
        """Keep the model up to date while the context is open. Raises nothing: problems are among the figures."""
        loop = asyncio.get_running_loop()
        work = {"events": self._consume_events, "cards": self._collect_cards}
        if self._admin is not None:
            work["state"] = functools.partial(self._read_states, self._admin)
            work["quotas"] = functools.partial(self._read_quotas, self._admin)
        tasks = [loop.create_task(self._repeat(name, run), name=f"fleet {name}") for name, run in work.items()]
        try:
            yield self
        finally:
            await cancel_and_wait(*tasks)

    async def wait_state(self, timeout_seconds: float) -> None:
        """Wait until the state of the ledger was read, or could not be, or there is no token for it."""
        await self._wait_tried("state", timeout_seconds)

    async def wait_asked(self, timeout_seconds: float) -> None:
        """Wait until services were asked for their cards, or could not be."""
        await self._wait_tried("cards", timeout_seconds)

    async def _wait_tried(self, name: str, timeout_seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._tried[name].wait()

    async def count_consumers(self, queues: Collection[str], timeout_seconds: float) -> dict[str, int]:
        """Return the consumers of each of these queues, waiting until the metadata service has told of all of them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while not self._model.consumers.keys() >= set(queues):  # noqa: ASYNC110 -- several events tell it
                    await asyncio.sleep(COUNT_POLL_SECONDS)
        return dict(self._model.consumers)

    def figures(self) -> FleetFigures:
        """Return what is known now; the same value for a moment, so that many who look cost no more than one."""
        now = time.monotonic()
        if self._figures is None or now >= self._figures_until:
            began = time.thread_time()
            self._figures = self._model.figures(
                now,
                [
                    f"The {name} of the fleet cannot be read: {_reason(error)}"
                    for name, error in self._errors.items()
                    # The same service tells both.
                    if name != "quotas" or "state" not in self._errors
                ]
                + ([_clock_problem(self._seconds_ahead)] if abs(self._seconds_ahead) > MAX_SKEW_SECONDS else []),
                () if self._admin is not None else (NO_ADMIN_NOTE,),
            )
            took_seconds = time.thread_time() - began
            self._figures_until = time.monotonic() + max(FIGURES_SECONDS, took_seconds / FIGURES_SHARE)
        return self._figures

    async def _repeat(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await run()
            except (BusError, Fault, NoAnswer) as error:
                self._errors[name] = error
                if name in self._tried:
                    self._tried[name].set()
            except Exception as error:
                log_defect(error, f"watching the {name} of the fleet")
            await asyncio.sleep(RETRY_SECONDS)

    async def _consume_events(self) -> None:
        topology, lost = events_topology(secrets.token_hex(16)), asyncio.Event()
        await self._bus.declare(topology)
        try:
            consumer = await self._bus.consume(
                topology.queues[0], self._on_event, prefetch=PREFETCH, on_queue_lost=lost.set
            )
            self._errors.pop("events", None)
            self._consuming.set()
            try:
                await lost.wait()
            finally:
                await consumer.drain(0)
        finally:
            await delete_queues(self._bus, topology)

    async def _on_event(self, delivery: Delivery) -> None:
        try:
            changed = FleetChanged.from_wire(delivery.body)
            self._model.on_change(changed, time.monotonic())
            self._seconds_ahead = changed.now / 1000 - time.time()
        except Fault as fault:
            log.warning("An event of the fleet cannot be read: %s", fault.message)
        await delivery.ack()

    async def _read_states(self, admin: Admin) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_SECONDS):
                await self._consuming.wait()
        while True:
            state = await admin.fleet()
            self._model.on_state(state, time.monotonic())
            self._seconds_ahead = state.now / 1000 - time.time()
            self._errors.pop("state", None)
            self._tried["state"].set()
            await asyncio.sleep(STATE_SECONDS)

    async def _read_quotas(self, admin: Admin) -> None:
        while True:
            self._model.on_quotas(await admin.quotas())
            self._errors.pop("quotas", None)
            await asyncio.sleep(QUOTAS_SECONDS)

    async def _collect_cards(self) -> None:
        def on_reply(reply: Delivery) -> None:
            try:
                self._model.on_card(parse_reply(reply, DISCOVER.reply_type), time.monotonic())
            except Fault as fault:
                log.warning("A service's card cannot be read: %s", fault.message)

        correlation_id = secrets.token_hex(16)
        unsubscribe = self._rpc_client.subscribe(correlation_id, on_reply)
        request = RpcRequest(
            exchange=DISCOVER.exchange,
            key=DISCOVER.key,
            type=DISCOVER.key,
            body=Discover().to_wire(),
            headers={},
            deadline_seconds=STATE_SECONDS,
        )
        try:
            while True:
                try:
                    await self._rpc_client.publish(request, correlation_id)
                except Unroutable:
                    log.debug("No service is bound to %s", DISCOVER.exchange.name)
                self._model.on_asked(time.monotonic())
                self._errors.pop("cards", None)
                self._tried["cards"].set()
                await asyncio.sleep(CARDS_SECONDS)
        finally:
            unsubscribe()

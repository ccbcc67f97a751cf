"""The metadata service put together: one composition root, five queues, one clock."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from functools import partial

from quintain import logs
from quintain.bus.base import Bus, Consumer, Delivery, Handler
from quintain.contracts.discovery import ServiceCard
from quintain.contracts.ledger import (
    Admission,
    AdmitAnswer,
    AdmitBatch,
    Heartbeat,
    Register,
    Settle,
    SettleBatch,
)
from quintain.contracts.message import Message
from quintain.errors import BudgetUnavailable, BusError, Fault
from quintain.operations.presence import Identity
from quintain.routes import ADMIT, HEARTBEAT, REGISTER
from quintain.service import answer_to, defect, reply
from quintain.telemetry.context import traceparent_in
from quintain.telemetry.conventions import ledger_settle
from quintain.telemetry.spans import error_type_of, past
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import (
    ADMIT_QUEUE,
    DEAD_QUEUE,
    METADATA_QUEUE,
    METADATA_TOPOLOGY,
    SETTLE_QUEUE,
    UNROUTED_QUEUE,
    Queue,
    target_topology,
)
from quintain_metadata import calls, upkeep
from quintain_metadata.canceller import Canceller
from quintain_metadata.dead import Undertaker
from quintain_metadata.desk import Desk
from quintain_metadata.figures import figures
from quintain_metadata.instrumentation import InstrumentedLedger
from quintain_metadata.ledger import Ledger
from quintain_metadata.lifecycle import Transition
from quintain_metadata.metrics import MetadataMetrics
from quintain_metadata.operations import Operations
from quintain_metadata.records import Call
from quintain_metadata.routing import Router

log = logging.getLogger(__name__)

PREFETCH = 64

#: How often the books are looked at for the numbers they come to.
FIGURES_SECONDS = 10.0

#: A ledger that takes longer to say which targets there are is no ledger to be ready on.
LEDGER_SECONDS = 2.0


class MetadataService:
    """Sessions, info, the ledger, routing and dead letters, over one bus and one ledger."""

    def __init__(
        self,
        bus: Bus,
        ledger: Ledger,
        admin_sha256: bytes | None,
        metrics: MetadataMetrics | None = None,
        *,
        timings: Timings = DEFAULT_TIMINGS,
    ) -> None:
        self._metrics, self._timings = metrics or MetadataMetrics(), timings
        self._identity = Identity("metadata")
        self._bus, self._ledger = bus, InstrumentedLedger(ledger, self._metrics, timings)
        self._desk = Desk(self._ledger, self._metrics, timings)
        canceller = Canceller(bus, self._ledger, self._desk, timings)
        self._operations = Operations(bus, self._ledger, canceller, admin_sha256)
        self._consumers: dict[str, Consumer] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._awake_at = 0.0
        self._read_at = -math.inf

    async def start(self) -> None:
        """Declare the topology, know the targets of before, and answer."""
        await self._mourn()
        await self._bus.declare(METADATA_TOPOLOGY)
        for target in await self._ledger.do(lambda _: upkeep.target_names()):
            await self._bus.declare(target_topology(target))
        handlers: dict[Queue, Handler] = {
            METADATA_QUEUE: self._operations,
            ADMIT_QUEUE: self._on_ledger,
            SETTLE_QUEUE: self._on_settle,
            UNROUTED_QUEUE: Router(self._bus, self._ledger, self._timings),
            DEAD_QUEUE: Undertaker(self._bus, self._ledger, self._timings),
        }
        for queue, handler in handlers.items():
            self._consumers[queue.name] = await self._bus.consume(queue, handler, prefetch=PREFETCH)
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep_on(), name="sweep")

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Take no more, finish what runs, and stop; what was not taken waits in its queue."""
        for consumer in self._consumers.values():
            await consumer.cancel()
        await asyncio.gather(*(consumer.drain(grace_seconds) for consumer in self._consumers.values()))
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)

    def card(self) -> ServiceCard:
        """What it tells whoever asks who is there: the admits that wait are in flight."""
        return self._identity.card(
            in_flight=self._desk.waiting, broker_reconnects=self._bus.reconnects, ledger=self._ledger.kind
        )

    async def check(self) -> str | None:
        """What keeps it from answering: a queue that it does not consume, or the ledger."""
        idle = [name for name, consumer in self._consumers.items() if not consumer.live]
        if idle:
            return f"not consumed: {', '.join(idle)}"
        try:
            async with asyncio.timeout(LEDGER_SECONDS):
                await self._ledger.do(lambda _: upkeep.target_names())
        except BudgetUnavailable as unavailable:
            return unavailable.message
        except TimeoutError:
            return f"the ledger does not answer within {LEDGER_SECONDS:g} s"
        return None

    async def _on_ledger(self, delivery: Delivery) -> None:
        answer = await answer_to(self._ledger_answer(delivery), f"answering {delivery.routing_key}")
        if answer is not None:
            await reply(self._bus, delivery, answer)
        await delivery.ack()

    async def _ledger_answer(self, delivery: Delivery) -> Message | None:
        await self._mind_the_gap()
        if delivery.routing_key == ADMIT.key:
            batch = AdmitBatch.from_wire(delivery.body)

            async def answer(items: list[Admission], held: list[str]) -> None:
                now = await self._ledger.now()
                await reply(self._bus, delivery, AdmitAnswer(items=items, held=held or None, now=now))

            await self._desk.admit(batch, answer)
            return None
        if delivery.routing_key == HEARTBEAT.key:
            beat = Heartbeat.from_wire(delivery.body)
            return await self._ledger.do(lambda moment: upkeep.renew(moment.now, beat, self._timings.lease_ms))
        assert delivery.routing_key == REGISTER.key, "the queue is bound to these keys alone"
        card = Register.from_wire(delivery.body)
        for target in card.targets:
            await self._bus.declare(target_topology(target.name))
        return await self._ledger.do(lambda moment: upkeep.register(moment.now, card, self._timings.lease_ms))

    async def _on_settle(self, delivery: Delivery) -> None:
        try:
            batch = SettleBatch.from_wire(delivery.body)
        except Fault as fault:
            log.error("A settle nobody can read is dropped: %s", fault.message)
            await delivery.ack()
            return
        self._metrics.batch("settle", len(batch.items))
        for item in batch.items:
            self._metrics.settled(item.outcome)
        settled = await self._settled(batch.items)
        await delivery.ack()
        for target in {call.target for call in settled}:
            await self._desk.try_again(target)

    async def _settled(self, items: list[Settle]) -> list[Call]:
        """Apply settles, however long the ledger is out of reach: to give them back would count as a delivery, and a
        queue drops what is delivered too often. Returns those of their calls that there are, as they were."""
        began, found = time.perf_counter(), list[Call]()
        while items:
            outcomes = await self._ledger.do_each([partial(calls.settle, ask=item) for item in items])
            seconds, late = time.perf_counter() - began, list[Settle]()
            for item, outcome in zip(items, outcomes, strict=True):
                if isinstance(outcome, BudgetUnavailable):
                    late.append(item)
                    continue
                call = _noted(item, outcome, seconds)
                found += [] if call is None else [call]
            items = late
            if items:
                await asyncio.sleep(self._timings.sweep_seconds)
        return found

    async def _sweep_on(self) -> None:
        while True:
            await asyncio.sleep(self._timings.sweep_seconds)
            try:
                await self._mind_the_gap()
                await self._ledger.do(upkeep.sweep)
                await self._read_figures()
                # While the ledger was out of reach no worker could renew: that is a gap too.
                self._awake_at = asyncio.get_running_loop().time()
                await self._desk.try_again()
            except BudgetUnavailable:
                continue  # the ledger has said so itself
            except (Fault, BusError) as error:
                log.error("The sweep failed and will be repeated: %s", error.message)
            except Exception as error:
                # Without its sweep the ledger stands still: whatever went wrong, it goes on.
                defect(error, "sweeping")

    async def _read_figures(self) -> None:
        """Now and then: they are for people, who look every few seconds at most."""
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= FIGURES_SECONDS:
            self._read_at = now
            self._metrics.read(await self._ledger.do(figures))

    async def _mind_the_gap(self) -> None:
        """After a pause in this process's own running no worker is gone: whoever comes first, an admit or the
        sweep, must see that before it judges."""
        if asyncio.get_running_loop().time() - self._awake_at > self._timings.gap_seconds:
            await self._mourn()

    async def _mourn(self) -> None:
        self._ledger.mourn_from(await self._ledger.now() + self._timings.lease_ms)
        self._awake_at = asyncio.get_running_loop().time()


def _noted(item: Settle, outcome: tuple[Call | None, Transition] | Exception, seconds: float) -> Call | None:
    """The call of a settle that has been applied. What the ledger can never take ends here: it neither comes again for
    ever nor loses its neighbours. Either is a span of the call's trace, where it has one."""
    failed = error_type_of(outcome) if isinstance(outcome, Exception) else None
    if traceparent_in(item.traceparent) is not None:
        opening = ledger_settle(item.session_id, item.request_id, item.outcome.value)
        past(opening, seconds=seconds, parent=item.traceparent, failed=failed)
    if isinstance(outcome, Exception):
        with logs.about(request_id=item.request_id, session_id=item.session_id):
            defect(outcome, f"settling call {item.request_id!r}")
        return None
    return outcome[0]

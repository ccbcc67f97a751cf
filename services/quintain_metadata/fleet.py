"""Hears the heartbeats of all services, and answers what the fleet is like: the operation ``fleet``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from quintain.bus.base import Bus, Delivery, QueueCount
from quintain.contracts.fleet import QuotaList, QuotaState
from quintain.contracts.fleet_figures import BudgetFigures, FleetFigures
from quintain.contracts.ledger import DrainState, Heartbeat
from quintain.contracts.money import to_dollars
from quintain.contracts.service_card import ServiceCard
from quintain.contracts.session import CostUsage, RegisteredWorker, SessionState
from quintain.errors import BadRequest, BusError, Fault
from quintain.routes import HEARTBEAT, METADATA_BEAT
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import CONSUMED_QUEUES, backlog_queue, target_queue
from quintain_metadata.fleet_model import GONE_SECONDS, FleetModel, FleetRows
from quintain_metadata.ledger import leases, targets
from quintain_metadata.store.base import Ledger, SqlProgram, execute, fetch_one

log = logging.getLogger(__name__)

#: How many open sessions are named at most: the newest.
MAX_SESSIONS = 200

#: The figures are the same ones for this time at least, and their making takes at most this part of a processor's time.
FIGURES_SECONDS, FIGURES_SHARE = 0.5, 1 / 30

#: How many targets' queues are counted for one answer, once all were; the others have their turn in the next ones.
MAX_COUNTED = 50

#: The largest card that any user of the broker may send, in bytes: that of a gateway or a host.
MAX_OPEN_CARD_BYTES = 4096

_OPEN_SERVICES = frozenset({"gateway", "host"})


def read_fleet(now: int) -> SqlProgram[FleetRows]:
    """Return every target, the workers and the newest open sessions. Calls are counted by indexes only."""
    registered = yield from targets.list_targets(now)
    listed = yield from leases.list_workers(now)
    lost = yield from execute(
        "SELECT worker_id, incarnation, lease_until FROM worker WHERE lease_until <= ? AND lease_until > ?"
        " AND drain <> ?",
        *(now, now - int(GONE_SECONDS * 1000), leases.DRAIN_RANKS[DrainState.DRAINED]),
    )
    rows = yield from execute(
        "SELECT id, label, parent_id, default_target, used, max_calls, state, max_cost, warn_at, cost_spent, cost_held,"
        " cost_reserved, cost_excess, cost_unknown FROM session WHERE state <> ?"
        " AND (expires_at IS NULL OR expires_at > ?) ORDER BY created_at DESC, id DESC LIMIT ?",
        *(SessionState.CLOSED, now, MAX_SESSIONS),
    )
    count = yield from fetch_one(
        "SELECT count(*) FROM session WHERE state <> ? AND (expires_at IS NULL OR expires_at > ?)",
        *(SessionState.CLOSED, now),
    )
    assert count is not None
    return FleetRows(
        targets=registered.targets,
        workers=[worker for worker in listed.workers if worker.lease_until > now],
        lost=[
            RegisteredWorker(worker_id=row[0], incarnation=row[1], lease_until=row[2], drain=DrainState.UNSUPPORTED)
            for row in lost
        ],
        budgets=[
            BudgetFigures(
                session_id=row[0],
                label=row[1],
                parent_id=row[2],
                default_target=row[3],
                used=row[4],
                max_calls=row[5],
                is_spent=row[4] >= row[5],
                state=SessionState(row[6]),
                max_cost_usd=None if row[7] is None else to_dollars(row[7]),
                warn_at=None if row[8] is None else row[8] / 1_000_000,
                cost=_cost_of(*row[9:]) if row[7] is not None or any(row[9:]) else None,
            )
            for row in rows
        ],
        more_sessions=max(0, count[0] - len(rows)),
        now=now,
    )


def _cost_of(spent: int, held: int, reserved: int, excess: int, unknown: int) -> CostUsage:
    return CostUsage(
        spent_usd=to_dollars(spent),
        held_usd=to_dollars(held),
        reserved_usd=to_dollars(reserved),
        excess_usd=to_dollars(excess),
        unknown=unknown,
    )


def read_card(delivery: Delivery) -> ServiceCard | None:
    """Return the card of a heartbeat; None if it has none. Raises `BadRequest` for what its sender may not say.

    Only workers may write to the exchange of their heartbeats, and only metadata services to that of theirs.
    """
    if delivery.exchange == HEARTBEAT.exchange.name:
        card, services = Heartbeat.from_wire(delivery.body).card, frozenset({"worker"})
    elif delivery.exchange == METADATA_BEAT.exchange.name:
        card, services = ServiceCard.from_wire(delivery.body), frozenset({"metadata"})
    elif len(delivery.body) > MAX_OPEN_CARD_BYTES:
        raise BadRequest(f"The card of a service has {len(delivery.body)} bytes, and {MAX_OPEN_CARD_BYTES} at most")
    else:
        card, services = ServiceCard.from_wire(delivery.body).with_fields(problem=None), _OPEN_SERVICES
    if card is not None and card.service not in services:
        raise BadRequest(f"service: a card of {', '.join(sorted(services))} was expected")
    return card


class FleetStatus:
    """What one metadata service knows of the fleet: it hears the heartbeats, and makes the figures when it is asked."""

    def __init__(
        self,
        bus: Bus,
        ledger: Ledger,
        instance: str,
        read_quotas: Callable[[], list[QuotaState]],
        timings: Timings = DEFAULT_TIMINGS,
    ) -> None:
        self._bus, self._ledger, self._read_quotas = bus, ledger, read_quotas
        self._model = FleetModel(instance, timings)
        self._lock = asyncio.Lock()
        self._figures: FleetFigures | None = None
        self._figures_until = 0.0
        self._queues: dict[str, QueueCount] = {}
        self._counted = set[str]()
        self._next_counted = 0

    async def hear(self, delivery: Delivery) -> None:
        """Take the card of a heartbeat, and acknowledge it. What cannot be read is dropped."""
        try:
            if (card := read_card(delivery)) is not None:
                self._model.on_card(card, time.monotonic())
        except Fault as fault:
            log.debug("A heartbeat was dropped: %s", fault.message)
        await delivery.ack()

    async def figures(self) -> FleetFigures:
        """Return the figures of the fleet; the same value for a moment, so that many who ask cost no more than one."""
        async with self._lock:
            if self._figures is None or time.monotonic() >= self._figures_until:
                rows = await self._ledger.read(lambda moment: read_fleet(moment.now))
                await self._count_queues([target.name for target in rows.targets])
                quotas = QuotaList(quotas=self._read_quotas(), now=rows.now)
                began = time.thread_time()
                self._figures = self._model.figures(rows, quotas, self._queues, time.monotonic())
                took_seconds = time.thread_time() - began
                self._figures_until = time.monotonic() + max(FIGURES_SECONDS, took_seconds / FIGURES_SHARE)
            return self._figures

    async def _count_queues(self, names: Sequence[str]) -> None:
        """Count what waits in the queues of targets, and who consumes them and those of the metadata services.

        Other users have no right to ask the broker for it.
        """
        turn = [name for name in names if name not in self._counted]
        if not turn:
            turn = [names[(self._next_counted + number) % len(names)] for number in range(min(len(names), MAX_COUNTED))]
            self._next_counted += len(turn)
        self._counted.update(turn)
        of_targets = (queue(name) for name in turn for queue in (target_queue, backlog_queue))
        try:
            self._queues.update(await self._bus.count([*CONSUMED_QUEUES, *of_targets]))
        except BusError as error:
            log.debug("The queues were not counted: %s", error.message)

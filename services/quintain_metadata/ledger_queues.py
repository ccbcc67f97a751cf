"""Consumes what workers ask and tell of calls: decides admits; records how attempts ended, and fills their places."""

from __future__ import annotations

import asyncio
import logging
import time

from quintain.bus.base import Bus, Delivery
from quintain.contracts.ledger import AdmitBatch, AttemptOutcome, Settle, SettleBatch
from quintain.errors import BudgetUnavailable, Fault
from quintain.observe import logs
from quintain.observe.semconv import ledger_settle_span
from quintain.observe.spans import error_type_of, record_finished_span, valid_traceparent
from quintain.rpc.server import log_defect, send_reply
from quintain.timings import Timings
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.ledger.call_rows import CallRow
from quintain_metadata.ledger.replies import AdmitReplySender, LargeReplays
from quintain_metadata.metrics import MetadataMetrics
from quintain_metadata.store.base import Ledger

log = logging.getLogger(__name__)


class AdmitConsumer:
    """Has the admission queue decide the admits of workers, which get the answers from it."""

    def __init__(self, bus: Bus, ledger: Ledger, admission_queue: AdmissionQueue) -> None:
        self._bus, self._ledger, self._admission_queue = bus, ledger, admission_queue
        self._large_replays = LargeReplays()

    async def __call__(self, delivery: Delivery) -> None:
        """Decide one batch, and acknowledge it; a batch that cannot be decided is answered with its fault."""
        address = (delivery.reply_to, delivery.correlation_id)
        sender = AdmitReplySender(address, self._bus, self._ledger, delivery, self._large_replays)
        try:
            await self._admission_queue.admit(AdmitBatch.from_wire(delivery.body), sender)
        except Fault as fault:
            await send_reply(self._bus, delivery, fault)
        except Exception as defect:
            await send_reply(self._bus, delivery, log_defect(defect, "deciding admits"))
        await delivery.ack()


class SettleConsumer:
    """Applies the settles of workers to the ledger."""

    def __init__(self, admission_queue: AdmissionQueue, metrics: MetadataMetrics, timings: Timings) -> None:
        self._admission_queue, self._metrics, self._timings = admission_queue, metrics, timings

    async def __call__(self, delivery: Delivery) -> None:
        """Apply one batch, and acknowledge it; what it may have freed is given to the admits that wait."""
        try:
            items = SettleBatch.from_wire(delivery.body).items
        except Fault as fault:
            log.error("An unreadable settle was dropped: %s", fault.message)
            await delivery.ack()
            return
        self._metrics.count_settles(items)
        settled_calls = await self._apply(items)
        await delivery.ack()
        ended_attempts = [item.attempt_id for item in items if item.outcome is AttemptOutcome.NEVER_SENT]
        await self._admission_queue.on_settled(settled_calls, ended_attempts)

    async def _apply(self, items: list[Settle]) -> list[CallRow]:
        """Apply settles, retrying while the ledger is out of reach; returns the settled calls as they were before.

        They are not requeued, because a requeue counts as a delivery, and the queue drops a message that is delivered
        too often. A settle that failed is logged and dropped, so that it is not retried for ever and does not affect
        its batch.
        """
        started_at, settled_calls = time.perf_counter(), list[CallRow]()
        while True:
            outcomes = await self._admission_queue.operations.run(items)
            seconds, unapplied = time.perf_counter() - started_at, list[Settle]()
            for item, outcome in zip(items, outcomes, strict=True):
                if isinstance(outcome, BudgetUnavailable):
                    unapplied.append(item)
                    continue
                call = None if isinstance(outcome, Exception) else outcome[0]
                self._admission_queue.quotas.settled(item, call)
                if item.traceparent is not None:
                    _record_span(item, outcome, seconds=seconds)
                if isinstance(outcome, Exception):
                    with logs.log_context(request_id=item.request_id, session_id=item.session_id):
                        log_defect(outcome, f"settling call {item.request_id!r}")
                elif call is not None:
                    self._metrics.call_counter.count_settle(call.target, item)
                    settled_calls.append(call)
            if not unapplied:
                return settled_calls
            items = unapplied
            await asyncio.sleep(self._timings.sweep_seconds)


def _record_span(item: Settle, outcome: object, *, seconds: float) -> None:
    """Record the settle as a span of the call's trace, if the call has one."""
    if valid_traceparent(item.traceparent) is not None:
        failed = error_type_of(outcome) if isinstance(outcome, Exception) else None
        opening = ledger_settle_span(item.session_id, item.request_id, item.outcome.value)
        record_finished_span(opening, duration_seconds=seconds, parent=item.traceparent, error_type=failed)

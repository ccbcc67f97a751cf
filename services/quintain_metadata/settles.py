"""Consumes quintain.ledger.settle: records how attempts ended, and fills the places that they leave."""

from __future__ import annotations

import asyncio
import logging
import time

from quintain.bus.base import Delivery
from quintain.contracts.ledger import AttemptOutcome, Settle, SettleBatch
from quintain.errors import BudgetUnavailable, Fault
from quintain.observe import logs
from quintain.observe.semconv import ledger_settle_span
from quintain.observe.spans import error_type_of, record_finished_span, valid_traceparent
from quintain.rpc.server import log_defect
from quintain.timings import Timings
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.call_rows import CallRow
from quintain_metadata.calls import SettleOperation
from quintain_metadata.lifecycle import Transition
from quintain_metadata.metrics import MetadataMetrics
from quintain_metadata.store import Ledger

log = logging.getLogger(__name__)


class SettleConsumer:
    """Applies the settles of workers to the ledger."""

    def __init__(
        self, ledger: Ledger, metrics: MetadataMetrics, admission_queue: AdmissionQueue, timings: Timings
    ) -> None:
        self._ledger, self._metrics, self._timings = ledger, metrics, timings
        self._admission_queue = admission_queue

    async def __call__(self, delivery: Delivery) -> None:
        """Apply one batch, and acknowledge it; what it may have freed is given to the admits that wait."""
        try:
            batch = SettleBatch.from_wire(delivery.body)
        except Fault as fault:
            log.error("An unreadable settle was dropped: %s", fault.message)
            await delivery.ack()
            return
        self._metrics.observe_batch("settle", len(batch.items))
        self._metrics.count_settles(item.outcome for item in batch.items)
        settled_calls = await self._apply_settles(batch.items)
        await delivery.ack()
        ended_attempts = [item.attempt_id for item in batch.items if item.outcome is AttemptOutcome.NEVER_SENT]
        await self._admission_queue.on_settled(settled_calls, ended_attempts)

    async def _apply_settles(self, items: list[Settle]) -> list[CallRow]:
        """Apply settles, retrying while the ledger is out of reach; returns the settled calls as they were before.

        They are not requeued, because a requeue counts as a delivery, and the queue drops a message that is delivered
        too often.
        """
        started_at, settled_calls = time.perf_counter(), list[CallRow]()
        while items:
            outcomes = await self._ledger.transact_each([SettleOperation(item) for item in items])
            seconds, unapplied = time.perf_counter() - started_at, list[Settle]()
            for item, outcome in zip(items, outcomes, strict=True):
                if isinstance(outcome, BudgetUnavailable):
                    unapplied.append(item)
                    continue
                call = _settled_call(item, outcome, seconds)
                if call is not None:
                    self._metrics.call_counter.count_settle(call.target, item)
                    settled_calls.append(call)
            items = unapplied
            if items:
                await asyncio.sleep(self._timings.sweep_seconds)
        return settled_calls


def _settled_call(
    item: Settle, outcome: tuple[CallRow | None, Transition] | Exception, seconds: float
) -> CallRow | None:
    """Return the call of an applied settle, and record the settle as a span of the call's trace.

    A settle that failed is logged and dropped (None), so that it is not retried for ever and does not affect its batch.
    """
    failed = error_type_of(outcome) if isinstance(outcome, Exception) else None
    if item.traceparent is not None and valid_traceparent(item.traceparent) is not None:
        opening = ledger_settle_span(item.session_id, item.request_id, item.outcome.value)
        record_finished_span(opening, duration_seconds=seconds, parent=item.traceparent, error_type=failed)
    if isinstance(outcome, Exception):
        with logs.log_context(request_id=item.request_id, session_id=item.session_id):
            log_defect(outcome, f"settling call {item.request_id!r}")
        return None
    return outcome[0]

"""Consumes what workers ask and tell of calls: decides admits; records how attempts ended, and fills their places."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError

from quintain.bus.base import Bus, Delivery
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import (
    Admission,
    Admit,
    AdmitBatch,
    AdmitReply,
    Settle,
    SettleBatch,
)
from quintain.errors import BadRequest, BudgetUnavailable, Fault, ReplyExpired
from quintain.observe import logs
from quintain.observe.semconv import ledger_settle_span
from quintain.observe.spans import error_type_of, record_finished_span, valid_traceparent
from quintain.rpc.server import log_defect, send_reply
from quintain.timings import Timings
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.ledger.calls import Settled
from quintain_metadata.ledger.replies import LargeReplay, read_replay
from quintain_metadata.ledger.settles import NO_CHANGE
from quintain_metadata.metrics import MetadataMetrics
from quintain_metadata.store.base import Ledger

log = logging.getLogger(__name__)


BatchT = TypeVar("BatchT", AdmitBatch, SettleBatch)


def read_batch(kind: type[BatchT], item: type[Admit] | type[Settle], body: bytes) -> tuple[BatchT, list[Admission]]:
    """Read a batch without the items that cannot be read, which are logged and harm no other.

    Returns the refusals of those whose attempt is known, too. Raises `BadRequest` for what is no batch.
    """
    try:
        return kind.from_wire(body), []
    except BadRequest as unreadable:
        try:
            fields = json.loads(body)
            whole = kind.from_wire(json.dumps({**fields, "items": []}))
            values = list(fields["items"])
        except (ValueError, TypeError, KeyError):
            raise unreadable from None
    found, refusals = list[Any](), list[Admission]()
    for value in values:
        try:
            found.append(item.from_wire(json.dumps(value)))
        except BadRequest as problem:
            log.error("An item of a worker's batch cannot be read: %s", problem.message)
            with contextlib.suppress(ValidationError, AttributeError):
                attempt_id = value.get("attemptId")
                refusals.append(Admission(attempt_id=attempt_id, fault=FaultReply.from_fault(problem)))
    return whole.with_fields(items=found), refusals


class LargeReplays:
    """The large replays that this service sends: one is in memory at a time, and the others wait."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        #: The attempts whose replays are sent or wait. Their workers repeat their admits meanwhile.
        self.attempt_ids = set[str]()


@dataclass(frozen=True, slots=True)
class AdmitReplySender:
    """Sends admissions to the worker that asked. Two that have the same address are equal."""

    address: tuple[str | None, str | None]
    ledger: Ledger = field(compare=False)
    send_reply: Callable[[AdmitReply], Awaitable[object]] = field(compare=False)
    large_replays: LargeReplays = field(compare=False)

    async def __call__(self, items: list[Admission], waiting_ids: list[str]) -> None:
        """Send the decided admissions, and the attempt ids that must wait; then each large replay."""
        if LargeReplay not in map(type, items):
            await self._send(items, waiting_ids)
            return
        large = [item for item in items if isinstance(item, LargeReplay)]
        await self._send([item for item in items if item not in large], waiting_ids)
        await self._send_large(large)

    async def _send_large(self, large: list[LargeReplay]) -> None:
        pending = [item for item in large if item.attempt_id not in self.large_replays.attempt_ids]
        attempt_ids = {item.attempt_id for item in pending}
        self.large_replays.attempt_ids.update(attempt_ids)
        try:
            for item in pending:
                async with self.large_replays.lock:
                    await self._send([await self._read(item)], [])
        finally:
            self.large_replays.attempt_ids.difference_update(attempt_ids)

    async def _read(self, replay: LargeReplay) -> Admission:
        try:
            return await self.ledger.read(lambda _: read_replay(replay))
        except ReplyExpired as expired:
            return Admission(attempt_id=replay.attempt_id, fault=FaultReply.from_fault(expired))

    async def _send(self, items: list[Admission], waiting_ids: list[str]) -> None:
        now = await self.ledger.now()
        await self.send_reply(AdmitReply(items=items, held=waiting_ids or None, now=now))


class AdmitConsumer:
    """Has the admission queue decide the admits of workers, which get the answers from it."""

    def __init__(self, bus: Bus, ledger: Ledger, admission_queue: AdmissionQueue) -> None:
        self._bus, self._ledger, self._admission_queue = bus, ledger, admission_queue
        self._large_replays = LargeReplays()

    async def __call__(self, delivery: Delivery) -> None:
        """Decide one batch, and acknowledge it; a batch that cannot be decided is answered with its fault."""
        address, reply = (delivery.reply_to, delivery.correlation_id), partial(send_reply, self._bus, delivery)
        sender = AdmitReplySender(address, self._ledger, reply, self._large_replays)
        try:
            batch, refusals = read_batch(AdmitBatch, Admit, delivery.body)
            if refusals:
                await sender(refusals, [])
            if batch.items:
                await self._admission_queue.admit(batch, sender)
        except Fault as fault:
            await send_reply(self._bus, delivery, fault)
        except Exception as defect:
            await send_reply(self._bus, delivery, log_defect(defect, "deciding admits"))
        await delivery.ack()

    async def admit(self, batch: AdmitBatch, on_reply: Callable[[AdmitReply], None]) -> None:
        """Decide a batch of a worker in this process; ``on_reply`` is called with each answer."""

        async def reply(answer: AdmitReply) -> None:
            on_reply(answer)

        sender = AdmitReplySender((None, batch.incarnation), self._ledger, reply, self._large_replays)
        try:
            await self._admission_queue.admit(batch, sender)
        except Exception as defect:  # the worker repeats what is not answered
            log_defect(defect, "deciding admits")


class SettleConsumer:
    """Applies the settles of workers to the ledger."""

    def __init__(self, admission_queue: AdmissionQueue, metrics: MetadataMetrics, timings: Timings) -> None:
        self._admission_queue, self._metrics, self._timings = admission_queue, metrics, timings

    async def __call__(self, delivery: Delivery) -> None:
        """Apply one batch, and acknowledge it."""
        try:
            batch, _ = read_batch(SettleBatch, Settle, delivery.body)
        except Fault as fault:
            log.error("An unreadable settle was dropped: %s", fault.message)
            await delivery.ack()
            return
        await self.apply(batch.items)
        await delivery.ack()

    async def apply(self, items: list[Settle]) -> None:
        """Apply settles, retrying while the ledger is out of reach, and tell the line what each changed.

        They are not requeued, because a requeue counts as a delivery, and the queue drops a message that is delivered
        too often. A settle that failed is logged and dropped, so that it is not retried for ever and does not affect
        its batch.
        """
        self._metrics.count_settles(items)
        started_at = time.perf_counter()
        while items:
            outcomes = await self._admission_queue.operations.run(items)
            seconds, unapplied = time.perf_counter() - started_at, list[Settle]()
            ended = list[tuple[Settle, Settled]]()
            for item, outcome in zip(items, outcomes, strict=True):
                if isinstance(outcome, BudgetUnavailable):
                    unapplied.append(item)
                    continue
                settled = Settled(None, NO_CHANGE, []) if isinstance(outcome, Exception) else outcome
                ended.append((item, settled))
                if item.traceparent is not None:
                    _record_span(item, outcome, seconds=seconds)
                with logs.log_context(request_id=item.request_id, session_id=item.session_id):
                    log.debug("Attempt %s is settled: %s", item.attempt_id, item.outcome.value)
                    if isinstance(outcome, Exception):
                        log_defect(outcome, f"settling call {item.request_id!r}")
                if settled.call is not None:
                    self._metrics.call_counter.count_settle(settled.call.target, item)
            self._admission_queue.on_ended(ended)
            items = unapplied
            if items:
                await asyncio.sleep(self._timings.sweep_seconds)


def _record_span(item: Settle, outcome: object, *, seconds: float) -> None:
    """Record the settle as a span of the call's trace, if the call has one."""
    if valid_traceparent(item.traceparent) is not None:
        failed = error_type_of(outcome) if isinstance(outcome, Exception) else None
        opening = ledger_settle_span(item.session_id, item.request_id, item.outcome.value)
        record_finished_span(opening, duration_seconds=seconds, parent=item.traceparent, error_type=failed)

"""Client side of `admit`: batches admission requests and resends those that get no answer within 3 s."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.clock import Clock
from quintain.contracts.ledger import Admission, Admit, AdmitBatch, AdmitReply
from quintain.errors import BudgetUnavailable, BusError, Expired, Fault
from quintain.routes import ADMIT
from quintain.rpc.client import RpcClient
from quintain.runtime.batching import Batcher
from quintain.timings import Timings

log = logging.getLogger(__name__)

#: All admits of a worker share one correlation id: their answers are matched by the attempt id.
CORRELATION_ID = "admit"

#: How often the pending admits are checked for resends and timeouts, per repeat interval: one timer serves all.
CHECKS_PER_REPEAT = 12


@dataclass(slots=True)
class _PendingAdmit:
    """One admission request that waits for its answer. Times are in the loop's seconds."""

    admit: Admit
    #: None: the call is returned to its queue, and this attempt must not run.
    answer: asyncio.Future[Admission | None]
    #: Done when the admit's last batch was published, or could not be.
    sent: asyncio.Future[None]
    sent_at: float
    acknowledged_at: float
    ends_at: float

    def return_call(self) -> None:
        """Resolve the admit with None, so that the call returns to its queue; does nothing after an answer."""
        if not self.answer.done():
            self.answer.set_result(None)

    def timeout_fault(self, now: float, silence_seconds: float) -> Fault | None:
        """Return the fault that ends the wait, or None while it goes on.

        ``silence_seconds`` is how long the ledger may leave the admit unacknowledged.
        """
        if now - self.acknowledged_at > silence_seconds:
            return BudgetUnavailable()
        if now >= self.ends_at:
            return Expired("The deadline passed before the call was admitted")
        return None


class AdmissionClient:
    """Sends the worker's admission requests to the metadata service and matches the answers to them."""

    def __init__(self, bus: Bus, rpc_client: RpcClient, clock: Clock, incarnation: str, timings: Timings) -> None:
        self._bus, self._rpc_client, self._clock, self._incarnation = bus, rpc_client, clock, incarnation
        self._timings = timings
        self._pending: dict[str, _PendingAdmit] = {}
        self._stopped = False
        self._is_unreachable = False
        self._batcher: Batcher[Admit] = Batcher(self._send_or_report, max_concurrent=2)
        self._check_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Subscribe to the answers of the metadata service."""
        self._rpc_client.subscribe(CORRELATION_ID, self._on_answer)

    def stop(self) -> None:
        """Resolve all pending admits with None, now and from now on: the worker stops."""
        self._stopped = True
        for pending in self._pending.values():
            pending.return_call()

    def return_calls(self, target: str) -> None:
        """Resolve the pending admits of this target with None; later admits may wait again."""
        for pending in self._pending.values():
            if pending.admit.target == target:
                pending.return_call()

    async def admit(self, request: Admit, *, timeout_seconds: float) -> Admission | None:
        """Request admission for one attempt and return the ledger's decision.

        The ledger holds its answer while another attempt runs the call or while the target is at its limit. Returns
        None where the call must return to its queue: the worker stops, or `return_calls` was called for its target.

        Raises `Expired` after ``timeout_seconds`` and `BudgetUnavailable` when the ledger does not answer. The attempt
        must then be settled as never sent, so that a grant that is still on its way becomes void.
        """
        if self._stopped:
            return None
        loop = asyncio.get_running_loop()
        now = loop.time()
        answer: asyncio.Future[Admission | None] = loop.create_future()
        self._pending[request.attempt_id] = _PendingAdmit(
            request, answer, self._batcher.add(request), sent_at=now, acknowledged_at=now, ends_at=now + timeout_seconds
        )
        if self._check_timer is None:
            self._check_timer = loop.call_later(
                self._timings.admit_repeat_seconds / CHECKS_PER_REPEAT, self._check_pending
            )
        try:
            return await answer
        finally:
            del self._pending[request.attempt_id]

    def _check_pending(self) -> None:
        """Resend the admits that got no answer for the repeat interval, and end those that timed out."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for pending in self._pending.values():
            if pending.answer.done():
                continue
            if (fault := pending.timeout_fault(now, self._timings.ledger_silence_seconds)) is not None:
                pending.answer.set_exception(fault)
            elif now - pending.sent_at >= self._timings.admit_repeat_seconds and pending.sent.done():
                pending.sent_at, pending.sent = now, self._batcher.add(pending.admit)
        self._check_timer = (
            loop.call_later(self._timings.admit_repeat_seconds / CHECKS_PER_REPEAT, self._check_pending)
            if self._pending
            else None
        )

    async def _send_or_report(self, items: list[Admit]) -> None:
        try:
            await self._send(items)
        except BusError as error:
            # Every pending call repeats its admit every few seconds: log an outage only when it begins and ends.
            if not self._is_unreachable:
                log.warning("Admits cannot be sent and will be repeated: %s", error.message)
            self._is_unreachable = True
        except Exception as defect:
            # A defect in encoding the batch would occur again with every resend: fail the calls instead.
            for admit in items:
                if (pending := self._pending.get(admit.attempt_id)) is not None and not pending.answer.done():
                    pending.answer.set_exception(defect)
        else:
            if self._is_unreachable:
                log.warning("Admits can be sent again")
            self._is_unreachable = False

    async def _send(self, items: list[Admit]) -> None:
        envelope = Envelope(
            body=AdmitBatch(incarnation=self._incarnation, items=items).to_wire(),
            type=ADMIT.key,
            correlation_id=CORRELATION_ID,
            reply_to=self._rpc_client.reply_key,
            expiration_ms=int(self._timings.ledger_silence_seconds * 1000),
            persistent=False,
        )
        await self._bus.publish(ADMIT.exchange, ADMIT.key, envelope, timeout_seconds=self._timings.admit_repeat_seconds)

    def _on_answer(self, delivery: Delivery) -> None:
        if delivery.type != "result":
            log.error("The ledger refused a batch of admits; they will be repeated")
            return
        try:
            answer = AdmitReply.from_wire(delivery.body)
        except Fault as unreadable:
            log.error("An unreadable answer of the ledger was dropped: %s", unreadable.message)
            return
        self._clock.synchronize(answer.now)
        now = asyncio.get_running_loop().time()
        for attempt_id in answer.held or ():
            if attempt_id in self._pending:
                self._pending[attempt_id].acknowledged_at = now
        for item in answer.items:
            pending = self._pending.get(item.attempt_id)
            if pending is not None and not pending.answer.done():
                pending.answer.set_result(item)

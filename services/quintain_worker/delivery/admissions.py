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

#: All admits of a worker share one correlation id: their answers are told apart by the attempt.
CORRELATION_ID = "admit"

#: How often it is looked whose time has come, in parts of the repeat interval: one clock for all who wait.
CHECKS_PER_REPEAT = 12


@dataclass(slots=True)
class _PendingAdmit:
    admit: Admit
    #: None: the call is given back, and this attempt is not to run.
    answer: asyncio.Future[Admission | None]
    #: The admit's last batch: done when that has gone, or could not go.
    sent: asyncio.Future[None]
    sent_at: float
    acknowledged_at: float
    ends_at: float

    def return_call(self) -> None:
        """Give the call back, unless its answer is here."""
        if not self.answer.done():
            self.answer.set_result(None)

    def timeout_fault(self, now: float, silence_seconds: float) -> Fault | None:
        """Why it waits no more, if it does not."""
        if now - self.acknowledged_at > silence_seconds:
            return BudgetUnavailable()
        if now >= self.ends_at:
            return Expired("The deadline passed before the call was admitted")
        return None


class AdmissionClient:
    """The worker's side of the admission desk."""

    def __init__(self, bus: Bus, rpc_client: RpcClient, clock: Clock, incarnation: str, timings: Timings) -> None:
        self._bus, self._rpc_client, self._clock, self._incarnation = bus, rpc_client, clock, incarnation
        self._timings = timings
        self._pending: dict[str, _PendingAdmit] = {}
        self._stopped = False
        self._is_unreachable = False
        self._batcher: Batcher[Admit] = Batcher(self._send_or_report, max_concurrent=2)
        self._check_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Hear the answers."""
        self._rpc_client.subscribe(CORRELATION_ID, self._on_answer)

    def stop(self) -> None:
        """Admit nothing from now on: what waits is told so at once."""
        self._stopped = True
        for pending in self._pending.values():
            pending.return_call()

    def return_calls(self, target: str) -> None:
        """Wait no more for this target: what waits is told so at once, what comes may wait again."""
        for pending in self._pending.values():
            if pending.admit.target == target:
                pending.return_call()

    async def admit(self, request: Admit, *, timeout_seconds: float) -> Admission | None:
        """The ledger's word on this attempt; waits while another holds the call, or its target is at its limit.
        None where the call is to be given back: the worker stops, or its target was let go.

        Raises `Expired` when the time is over and `BudgetUnavailable` when the ledger is out of reach: the attempt
        must then be settled as never sent, so that a grant on its way is void.
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
        """Ask again whoever was not answered for long enough, and end the wait of whoever is late."""
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
            # Every call that waits repeats its admit every few seconds: an outage is told when it begins, and ends.
            if not self._is_unreachable:
                log.warning("Admits cannot be sent and will be repeated: %s", error.message)
            self._is_unreachable = True
        except Exception as defect:
            # Whoever waits hears it: repeated, it would be the same.
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
            log.error("The ledger could not read a batch of admits; they will be repeated")
            return
        try:
            answer = AdmitReply.from_wire(delivery.body)
        except Fault as unreadable:
            log.error("An answer of the ledger cannot be read: %s", unreadable.message)
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

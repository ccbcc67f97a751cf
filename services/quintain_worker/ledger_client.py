"""How a worker asks the ledger whether calls may run, and tells it how attempts ended: over the bus, or by a function
call where both are in one process.

Admits are sent in batches, and again where there is no answer within 3 s.

At most `MAX_UNDER_WAY` requests are under way: sent, and neither decided nor held by the ledger. Further ones wait
here, in order. Silence is a property of the link to the metadata services: it is counted from the last answer of any of
them, to any request of this worker.

A first request goes to the own queue of the metadata service that last renewed the lease, which no quorum queue delays.
A repetition goes to the shared queue: that service may hang, which the broker does not say. So does what is returned.

Settles that wait at the same time share messages too. One that cannot be sent affects no other of its batch.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.bus.failure_log import FailureLog
from quintain.contracts.group import count_fitting
from quintain.contracts.ledger import Admission, Admit, AdmitBatch, AdmitReply, Settle, SettleBatch
from quintain.errors import BudgetUnavailable, BusError, Expired, Fault, QueueFull, Unroutable
from quintain.observe.semconv import ATTEMPT, CALL_COUNT, OUTCOME, AttributeValue
from quintain.routes import ADMIT, SETTLE
from quintain.rpc.requests import RpcClient
from quintain.runtime.concurrency import BatchSender
from quintain.timings import Clock, Timings

log = logging.getLogger(__name__)

#: All admits of a worker share one correlation id: their answers are matched by the attempt id.
CORRELATION_ID = "admit"

#: Is called with each answer to admits; an answer may come twice.
OnAdmitReply = Callable[[AdmitReply], None]


class LedgerPort(Protocol):
    """Where a worker's admits are decided and its settles recorded; each may be sent again."""

    async def admit(self, batch: AdmitBatch, on_reply: OnAdmitReply, key: str) -> None:
        """Send admits. Each is answered once it is decided, or has to wait; what gets no answer is to be sent again.

        ``key`` is where the bus takes them. Raises `BusError` where they cannot be sent, and `BadRequest` where one of
        them cannot be written.
        """

    async def settle(self, batch: SettleBatch) -> None:
        """Record how attempts ended; returns when the ledger has that, or a queue keeps it for the ledger.

        Raises `BusError` where it cannot be sent, and `BadRequest` where one of them cannot be written.
        """


class BusLedgerPort:
    """Implements `LedgerPort` where the ledger is elsewhere: a message for each batch."""

    def __init__(self, bus: Bus, rpc_client: RpcClient, timings: Timings) -> None:
        self._bus, self._rpc_client, self._timings = bus, rpc_client, timings

    async def admit(self, batch: AdmitBatch, on_reply: OnAdmitReply, key: str) -> None:
        """Implements `LedgerPort.admit`."""
        self._rpc_client.subscribe(CORRELATION_ID, partial(_read_reply, on_reply))
        envelope = Envelope(
            body=batch.to_wire(),
            type=ADMIT.key,
            correlation_id=CORRELATION_ID,
            reply_to=self._rpc_client.reply_key,
            expiration_ms=int(self._timings.ledger_silence_seconds * 1000),
            persistent=False,
        )
        await self._bus.publish(ADMIT.exchange, key, envelope, timeout_seconds=self._timings.admit_repeat_seconds)

    async def settle(self, batch: SettleBatch) -> None:
        """Implements `LedgerPort.settle`."""
        await self._bus.publish(SETTLE.exchange, SETTLE.key, Envelope(body=batch.to_wire(), type=SETTLE.key))


def _read_reply(on_reply: OnAdmitReply, delivery: Delivery) -> None:
    if delivery.type != "result":
        log.error("The ledger refused a batch of admits; they will be repeated")
        return
    try:
        answer = AdmitReply.from_wire(delivery.body)
    except Fault as unreadable:
        log.error("An unreadable answer of the ledger was dropped: %s", unreadable.message)
        return
    on_reply(answer)


#: How often the pending admits are checked for resends and timeouts, per repeat interval: one timer serves all.
CHECKS_PER_REPEAT = 12

#: How many admits may be under way at once: enough to keep the ledger busy, and few enough that it decides all of them
#: within the repeat interval.
MAX_UNDER_WAY = 256


@dataclass(slots=True)
class _PendingAdmit:
    """One admission request that waits for its answer. Times are in the loop's seconds."""

    admit: Admit
    #: None: the call is returned to its queue, and this attempt must not run.
    answer: asyncio.Future[Admission | None]
    #: The deadline of the call, and until when it may wait.
    ends_at: float
    waits_until: float = math.inf
    on_held: Callable[[], object] | None = None
    #: It waits for its batch, or that is being published.
    is_being_sent: bool = False
    first_sent_at: float = math.inf
    sent_at: float = -math.inf

    def return_call(self) -> None:
        """Resolve the admit with None, so that the call returns to its queue; does nothing after an answer."""
        if not self.answer.done():
            self.answer.set_result(None)

    def timeout_fault(self, now: float, heard_at: float, timings: Timings) -> Fault | None:
        """Return the fault that ends the wait, or None while it goes on.

        ``heard_at`` is when a metadata service last answered. One that was not sent yet ends only with its deadline.
        """
        if now - max(self.first_sent_at, heard_at) > timings.ledger_silence_seconds:
            return BudgetUnavailable()
        if now >= self.ends_at + timings.deadline_grace_seconds:
            # The ledger may have granted the call to this worker or to another one.
            return Expired("The deadline passed before the call was admitted", charge_unknown=True)
        return None

    def is_due(self, now: float, repeat_seconds: float) -> bool:
        """Return whether to send it again: a repeat is due, or it may wait no longer since it was sent."""
        if self.first_sent_at == math.inf:
            return now >= min(self.ends_at, self.waits_until)
        due = (self.sent_at + repeat_seconds, self.ends_at, self.waits_until)
        return not self.is_being_sent and any(self.sent_at < at <= now for at in due)


class AdmissionClient:
    """Sends the worker's admission requests to the metadata service and matches the answers to them."""

    def __init__(self, ledger: LedgerPort, clock: Clock, incarnation: str, timings: Timings) -> None:
        self._ledger, self._clock, self._incarnation, self._timings = ledger, clock, incarnation, timings
        self._pending: dict[str, _PendingAdmit] = {}
        #: Those that were not sent yet, in order; some may have ended meanwhile.
        self._unsent: deque[_PendingAdmit] = deque()
        self._under_way: set[str] = set()
        self._heard_at = -math.inf
        self._stopped = False
        self._not_sent = FailureLog(log, "Admits cannot be sent and are repeated", "Admits can be sent again")
        #: The routing key of a metadata service's own queue; None while none is known.
        self._own_key: str | None = None
        #: The key says whether the requests are sent for the first time.
        self._batches = BatchSender[bool, _PendingAdmit](self._send, max_concurrent=2)
        self._check_timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Resolve all pending admits with None, now and from now on: the worker stops."""
        self._stopped = True
        for pending in self._pending.values():
            pending.return_call()

    def return_call(self, attempt_id: str) -> None:
        """Resolve the pending admit of this attempt with None."""
        if (pending := self._pending.get(attempt_id)) is not None:
            pending.return_call()

    def return_calls(self, target: str) -> None:
        """Resolve the pending admits of this target with None; later admits may wait again."""
        for pending in self._pending.values():
            if pending.admit.target == target:
                pending.return_call()

    async def admit(
        self,
        request: Admit,
        *,
        ends_at: float,
        waits_until: float = math.inf,
        on_held: Callable[[], object] | None = None,
    ) -> Admission | None:
        """Request admission for one attempt and return the ledger's decision.

        The ledger holds its answer while another attempt runs the call or while the target is at its limit. Returns
        None where the call must return to its queue: the worker stops, or `return_calls` was called for its target.
        ``on_held`` is called once the ledger says that the admit must wait.

        The ledger is asked once more at ``ends_at``, the call's deadline, and at ``waits_until``, the end of its wait:
        its refusal says whether the call is charged. Raises `Expired` if there is no such answer, `BudgetUnavailable`
        when no metadata service answers. The attempt must then be settled as never sent: a late grant becomes void.
        """
        if self._stopped:
            return None
        loop = asyncio.get_running_loop()
        pending = _PendingAdmit(request, loop.create_future(), ends_at, waits_until, on_held)
        self._pending[request.attempt_id] = pending
        if len(self._under_way) < MAX_UNDER_WAY:
            self._under_way.add(request.attempt_id)
            self._add_to_batch(pending)
        else:
            self._unsent.append(pending)
        if self._check_timer is None:
            self._check_timer = loop.call_later(
                self._timings.admit_repeat_seconds / CHECKS_PER_REPEAT, self._check_pending
            )
        try:
            return await pending.answer
        finally:
            del self._pending[request.attempt_id]
            self._under_way.discard(request.attempt_id)
            if self._unsent:
                self._send_next()

    def note_renewal(self, admit_key: str | None) -> None:
        """Record that a metadata service has renewed the lease, and the routing key of its own queue for admits."""
        self._own_key = admit_key
        self._heard_at = asyncio.get_running_loop().time()

    def _send_next(self) -> None:
        """Send the next admits, up to `MAX_UNDER_WAY`."""
        while self._unsent and len(self._under_way) < MAX_UNDER_WAY:
            pending = self._unsent.popleft()
            if pending.first_sent_at == math.inf and not pending.answer.done():
                self._under_way.add(pending.admit.attempt_id)
                self._add_to_batch(pending)

    def _add_to_batch(self, pending: _PendingAdmit) -> None:
        is_first = pending.first_sent_at == math.inf
        pending.sent_at = asyncio.get_running_loop().time()
        pending.first_sent_at = min(pending.first_sent_at, pending.sent_at)
        pending.is_being_sent = True
        self._batches.add(is_first, pending)

    def _check_pending(self) -> None:
        """Resend the admits that got no answer for the repeat interval, and end those that timed out."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now - self._heard_at >= self._timings.admit_repeat_seconds:
            self._own_key = None
        for pending in self._pending.values():
            if pending.answer.done():
                continue
            if (fault := pending.timeout_fault(now, self._heard_at, self._timings)) is not None:
                pending.answer.set_exception(fault)
            elif pending.is_due(now, self._timings.admit_repeat_seconds):
                self._add_to_batch(pending)
        self._check_timer = (
            loop.call_later(self._timings.admit_repeat_seconds / CHECKS_PER_REPEAT, self._check_pending)
            if self._pending
            else None
        )

    async def _send(self, is_first: bool, batch: list[_PendingAdmit]) -> None:  # noqa: FBT001 -- a key of `_batches`
        """Publish a batch: one that is sent first to a service's own queue, if one is known, else to the shared one.

        One that cannot be sent is repeated with the calls that wait for it.
        """
        key = (self._own_key if is_first else None) or ADMIT.key
        admits = AdmitBatch.unchecked(incarnation=self._incarnation, items=[each.admit for each in batch])
        try:
            try:
                await self._ledger.admit(admits, self._on_answer, key)
            except BusError as error:
                if self._is_queue_gone(key, error):
                    await self._send(False, batch)  # noqa: FBT003 -- a key of `_batches`
            else:
                if key == ADMIT.key:
                    self._not_sent.worked()
        except Exception as defect:
            # A defect in encoding the batch would occur again with every resend: fail the calls instead.
            for pending in batch:
                if not pending.answer.done():
                    pending.answer.set_exception(defect)
        finally:
            for pending in batch:
                pending.is_being_sent = False

    def _is_queue_gone(self, key: str, error: BusError) -> bool:
        """Whether admits were not sent because a service's own queue is gone; log any other error."""
        is_own = key != ADMIT.key
        if is_own and isinstance(error, Unroutable | QueueFull):
            self._own_key = None if self._own_key == key else self._own_key
            return True
        if is_own:
            log.info("Admits could not be sent to a service's own queue, and are repeated: %s", error.message)
        else:
            self._not_sent.failed(error)
        return False

    def _on_answer(self, answer: AdmitReply) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._clock.synchronize(answer.now)
        for item in answer.items:
            pending = self._pending.get(item.attempt_id)
            if pending is not None and not pending.answer.done():
                pending.answer.set_result(item)
            self._under_way.discard(item.attempt_id)
        for attempt_id in answer.held or ():
            self._under_way.discard(attempt_id)
            if (held := self._pending.get(attempt_id)) is not None and held.on_held is not None:
                on_held, held.on_held = held.on_held, None
                on_held()
        if self._unsent:
            self._send_next()


def admission_attributes(admission: Admission | None) -> dict[str, AttributeValue]:
    """Return the span attributes that describe an admission decision; None is a call returned to its queue."""
    if admission is None:
        return {OUTCOME: "given_back"}
    if admission.fault is not None:
        return {OUTCOME: admission.fault.code}
    if admission.replay is not None:
        return {OUTCOME: "replayed"}
    return {OUTCOME: "granted", ATTEMPT: admission.attempt, CALL_COUNT: admission.call_count}


class _PendingSettle(NamedTuple):
    """A settle on its way; ``is_taken`` is False where the broker was unavailable."""

    settle: Settle
    is_taken: asyncio.Future[bool]


class SettleSender:
    """Sends the settles of one worker, and repeats what could not be published."""

    def __init__(self, bus: Bus, ledger: LedgerPort, incarnation: str, timings: Timings) -> None:
        self._ledger, self._incarnation, self._timings = ledger, incarnation, timings
        # A settle is sent also if its call's handler was cancelled meanwhile: the outcome is known.
        self._settles = BatchSender[None, _PendingSettle](self._send, max_concurrent=4, count=_count_settles)
        self._not_sent = FailureLog(log, "Settles could not be sent, and are repeated", "Settles are sent", bus)

    async def settle(self, settle: Settle) -> None:
        """Report the outcome of an attempt until the ledger's port has taken it."""
        while True:
            is_taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._settles.add(None, _PendingSettle(settle, is_taken))
            if await is_taken:
                return
            await asyncio.sleep(self._timings.publish_pause_seconds)

    async def _send(self, _: None, pending: list[_PendingSettle]) -> None:
        items = [each.settle for each in pending]
        try:
            await self._ledger.settle(SettleBatch.unchecked(incarnation=self._incarnation, items=items))
        except BusError as error:
            self._not_sent.failed(error)
            _end(pending, is_taken=False)
        except Exception as defect:
            if len(pending) == 1:
                if not pending[0].is_taken.done():
                    pending[0].is_taken.set_exception(defect)
                return
            # One of them cannot be written; nothing says which it is, so each goes alone.
            for one in pending:
                await self._send(None, [one])
        else:
            self._not_sent.worked()
            _end(pending, is_taken=True)


def _end(pending: Sequence[_PendingSettle], *, is_taken: bool) -> None:
    for one in pending:
        if not one.is_taken.done():
            one.is_taken.set_result(is_taken)


def _count_settles(pending: Sequence[_PendingSettle]) -> int:
    """Return how many of these settles go together: by their replies, beside which a settle is small."""
    settles = (each.settle for each in pending)
    return count_fitting(len(settle.reply or settle.compressed_reply or b"") for settle in settles)

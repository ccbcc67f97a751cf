"""Answers workers' admit requests, and queues those that must wait.

An admit waits while another attempt runs its call, while its target is at its fleet-wide limit or paused, or
while its worker has no valid lease. It is retried when a call of the target is settled, when its call is
cancelled, and at every sweep, because leases lapse and pauses end without a message. A deadline that the request
does not name starts at the first admit. Workers resend unanswered admits, so the queue may be lost with this
process; an admit that is no longer resent is dropped. While the ledger is unavailable nothing is answered, and
workers resend.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass
from functools import partial

from quintain import logs
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit, AdmitBatch
from quintain.contracts.token import public_id
from quintain.errors import BudgetUnavailable, BusError, Fault, Overloaded
from quintain.rpc.server import log_defect
from quintain.telemetry.semconv import ledger_admit_span
from quintain.telemetry.spans import record_finished_span
from quintain.telemetry.trace_context import valid_traceparent
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_metadata.ledger.base import Ledger
from quintain_metadata.metrics import MetadataMetrics
from quintain_metadata.rules import calls
from quintain_metadata.rules.calls import DeferReason, Deferred
from quintain_metadata.rules.lifecycle import MAX_HELD_DUPLICATES

log = logging.getLogger(__name__)

#: Sends an answer to the worker that asked: the decided admissions, and the attempt ids that must wait.
SendAnswer = Callable[[list[Admission], list[str]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _WaitingAdmit:
    """An admit that waits for a decision."""

    admit: Admit
    incarnation: str
    send_answer: SendAnswer
    deferred: Deferred
    #: When its worker last sent the admit, in the loop's seconds.
    last_requested_at: float

    @property
    def call_key(self) -> tuple[str, str]:
        """The key of the call it wants to run: session id and request id."""
        return self.deferred.session_id, self.deferred.request_id


class AdmissionQueue:
    """Decides admits one by one, and queues those that must wait."""

    def __init__(
        self, ledger: Ledger, metrics: MetadataMetrics | None = None, timings: Timings = DEFAULT_TIMINGS
    ) -> None:
        self._ledger, self._metrics, self._timings = ledger, metrics or MetadataMetrics(), timings
        self._waiting: dict[str, _WaitingAdmit] = {}
        self._retry_lock = asyncio.Lock()

    @property
    def waiting_count(self) -> int:
        """The number of waiting admits."""
        return len(self._waiting)

    async def admit(self, batch: AdmitBatch, send_answer: SendAnswer) -> None:
        """Decide a batch of admits, answer what is decided, and queue the rest.

        ``send_answer`` is called now, and again for each waiting admit when it is decided.
        """
        self._metrics.observe_batch("admit", len(batch.items))
        admits = [self._with_first_deadline(admit) for admit in batch.items]
        decisions = await self._decide(admits, batch.incarnation)
        answers: list[Admission] = []
        waiting_ids: list[str] = []
        for admit, decision in zip(admits, decisions, strict=True):
            if isinstance(decision, Deferred):
                requested_at = asyncio.get_running_loop().time()
                refusal = self._add_waiting(
                    _WaitingAdmit(
                        _with_deadline(admit, decision), batch.incarnation, send_answer, decision, requested_at
                    )
                )
                answers += refusal
                waiting_ids += [] if refusal else [admit.attempt_id]
            elif decision is not None:
                self._waiting.pop(admit.attempt_id, None)
                answers.append(decision)
        await send_answer(answers, waiting_ids)

    def _with_first_deadline(self, admit: Admit) -> Admit:
        """Return the admit with the deadline of its first arrival, if it names none itself."""
        waiting = self._waiting.get(admit.attempt_id)
        if admit.deadline is not None or waiting is None:
            return admit
        return admit.model_copy(update={"deadline": waiting.admit.deadline})

    async def retry_waiting(self, target: str | None = None) -> None:
        """Decide the waiting admits again, in order of arrival: all of them, or those of one target."""
        async with self._retry_lock:
            self._drop_expired()
            is_target_blocked = False
            for waiting in list(self._waiting.values()):
                if target is not None and waiting.admit.target != target:
                    continue
                if is_target_blocked and waiting.deferred.reason is DeferReason.TARGET:
                    continue  # the target still has no free slot: the decision would be the same
                decision = await self._retry(waiting)
                if decision is None:
                    return
                if target is not None and isinstance(decision, Deferred):
                    is_target_blocked = is_target_blocked or decision.reason is DeferReason.TARGET

    async def retry_calls(self, call_keys: Set[tuple[str, str]]) -> None:
        """Decide again the waiting admits of these calls, given by session id and request id."""
        async with self._retry_lock:
            self._drop_expired()
            for waiting in [candidate for candidate in self._waiting.values() if candidate.call_key in call_keys]:
                await self._retry(waiting)

    async def _retry(self, waiting: _WaitingAdmit) -> Admission | Deferred | None:
        (decision,) = await self._decide([waiting.admit], waiting.incarnation)
        attempt_id = waiting.admit.attempt_id
        if isinstance(decision, Admission):
            await self._send_decision(waiting, decision)
        elif decision is not None and self._waiting.get(attempt_id) is waiting:
            self._waiting[attempt_id] = dataclasses.replace(waiting, deferred=decision)
        return decision

    def _drop_expired(self) -> None:
        expired_before = asyncio.get_running_loop().time() - self._timings.held_admit_seconds
        for waiting in list(self._waiting.values()):
            if waiting.last_requested_at < expired_before:
                del self._waiting[waiting.admit.attempt_id]

    async def _send_decision(self, waiting: _WaitingAdmit, decision: Admission) -> None:
        self._waiting.pop(waiting.admit.attempt_id, None)
        try:
            await waiting.send_answer([decision], [])
        except (BusError, Fault) as error:
            log.warning(
                "An admission could not be sent; it is sent when the worker repeats its admit: %s", error.message
            )

    def _add_waiting(self, waiting: _WaitingAdmit) -> list[Admission]:
        duplicates = Counter(
            other.call_key
            for other in self._waiting.values()
            if other.deferred.is_duplicate and other.admit.attempt_id != waiting.admit.attempt_id
        )
        if waiting.deferred.is_duplicate and duplicates[waiting.call_key] >= MAX_HELD_DUPLICATES:
            # The call itself runs: it is not decided yet whether it stays charged.
            refusal = Overloaded(
                f"{MAX_HELD_DUPLICATES} duplicates of this call are waiting already",
                retry_after_ms=1000,
                charge_unknown=True,
            )
            return [_refusal(waiting.admit, refusal)]
        self._waiting[waiting.admit.attempt_id] = waiting
        return []

    async def _decide(self, admits: list[Admit], incarnation: str) -> list[Admission | Deferred | None]:
        """Return the ledger's decision on each admit; None while the ledger is out of reach.

        A final decision is recorded as a span of the call's trace; a deferral is not, because it is decided many times.
        """
        started_at = time.perf_counter()
        outcomes = await self._ledger.transact_each(
            [partial(calls.admit, request=admit, incarnation=incarnation) for admit in admits]
        )
        seconds = time.perf_counter() - started_at
        decisions = [_decision_of(admit, outcome) for admit, outcome in zip(admits, outcomes, strict=True)]
        for admit, decision in zip(admits, decisions, strict=True):
            if isinstance(decision, Admission):
                self._metrics.count_admission(decision)
                _record_span(admit, decision, seconds=seconds)
        return decisions


def _decision_of(admit: Admit, outcome: Admission | Deferred | Exception) -> Admission | Deferred | None:
    if isinstance(outcome, BudgetUnavailable):
        return None
    if isinstance(outcome, Fault):
        return _refusal(admit, outcome)
    if isinstance(outcome, Exception):
        # A defect in one admit must not affect the others of its batch.
        with logs.log_context(request_id=admit.request_id, session_id=public_id(admit.token), target=admit.target):
            return _refusal(admit, log_defect(outcome, f"admitting call {admit.request_id!r}"))
    return outcome


def _with_deadline(admit: Admit, deferred: Deferred) -> Admit:
    """Return the admit with its deadline; one that names none gets the deadline computed at its first decision."""
    return admit if admit.deadline is not None else admit.model_copy(update={"deadline": deferred.deadline})


def _refusal(admit: Admit, fault: Fault) -> Admission:
    return Admission(attempt_id=admit.attempt_id, fault=FaultReply.from_fault(fault))


def _record_span(admit: Admit, decision: Admission, *, seconds: float) -> None:
    """Record the decision as a span of the call's trace, if the call has one."""
    traceparent = valid_traceparent(admit.traceparent)
    if traceparent is None:
        return
    fault_code = None if decision.fault is None else decision.fault.code
    outcome = fault_code or ("granted" if decision.replay is None else "replayed")
    record_finished_span(
        ledger_admit_span(admit.request_id, outcome),
        duration_seconds=seconds,
        parent=traceparent,
        error_type=fault_code,
    )

"""Answers workers' admit requests: has the ledger decide them, and the line say which of those that wait are next.

A deadline that the request does not name starts at the first admit. Workers resend unanswered admits, so that the line
may be lost with this process; an admit that is no longer resent is dropped, and one that waits already is answered from
memory. While the ledger is unavailable nothing is answered, and workers resend. Decision 3 has the reasons.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from quintain.bus.failure_log import FailureLog
from quintain.contracts.credentials import public_id
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit, AdmitBatch, AttemptOutcome, Settle
from quintain.contracts.quota import TryOutcome, TryReport
from quintain.errors import BudgetUnavailable, BusError, Expired, Fault, Overloaded, Throttled
from quintain.observe import logs
from quintain.observe.semconv import ledger_admit_span
from quintain.observe.spans import record_finished_span, valid_traceparent
from quintain.rpc.server import log_defect
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_metadata.ledger.call_rows import CallKey
from quintain_metadata.ledger.calls import CallOperations, Settled
from quintain_metadata.ledger.decisions import AdmitOperation, DeferReason, Deferred
from quintain_metadata.ledger.lifecycle import CallState
from quintain_metadata.line_ledger import LineLedger
from quintain_metadata.metrics import MetadataMetrics
from quintain_metadata.places import RunningAttempt
from quintain_metadata.quotas.fair_queue import Waiting
from quintain_metadata.store.base import Ledger

log = logging.getLogger(__name__)

#: How many duplicates of one running call are deferred; a further one is refused as `overloaded`.
MAX_HELD_DUPLICATES = 16

#: How many waiting admits are decided at once: others of the same ledger wait for all of them.
MAX_DECISIONS = 64

#: How long what is due by time waits at least, in seconds.
MIN_WAIT_SECONDS = 0.001

#: Sends an answer to the worker that asked: the decided admissions, and the attempt ids that must wait. Two that are
#: equal send to the same worker.
SendAnswer = Callable[[list[Admission], list[str]], Awaitable[None]]

#: How a provider took an attempt whose settle says nothing of it.
_DEFAULT_REPORTS = {
    AttemptOutcome.RESULT: TryReport(outcome=TryOutcome.ANSWERED),
    AttemptOutcome.CHARGED: TryReport(outcome=TryOutcome.ANSWERED),
    AttemptOutcome.RETRY: TryReport(outcome=TryOutcome.UNKNOWN),
    AttemptOutcome.NEVER_SENT: TryReport(outcome=TryOutcome.NOT_SENT),
    AttemptOutcome.REFUND: TryReport(outcome=TryOutcome.UNKNOWN),
    AttemptOutcome.IN_DOUBT: TryReport(outcome=TryOutcome.UNKNOWN),
}


@dataclass(slots=True)
class _Asker:
    """An admit that waits, the worker that sent it, how to answer it, and when it was sent last, in the loop's time."""

    admit: Admit
    incarnation: str
    send_answer: SendAnswer
    last_requested_at: float


class AdmissionQueue:
    """Decides admits, and queues those that must wait."""

    def __init__(
        self,
        ledger: Ledger,
        metrics: MetadataMetrics | None = None,
        timings: Timings = DEFAULT_TIMINGS,
        quotas: LineLedger | None = None,
    ) -> None:
        self._metrics, self._timings = metrics or MetadataMetrics(), timings
        self.quotas = quotas or LineLedger(ledger)
        self.line, self._clock = self.quotas.line, self.quotas.clock
        self.operations = CallOperations(ledger)
        self._askers: dict[str, _Asker] = {}
        #: Set when a waiting call may be able to go on.
        self._changed = asyncio.Event()
        #: Whether the ledger took the last operation of this queue.
        self._is_ledger_available = True
        begun = "Admissions could not be sent; they are sent when the workers repeat their admits"
        self._not_sent = FailureLog(log, begun, "Admissions are sent")

    @property
    def waiting_count(self) -> int:
        """The number of waiting admits."""
        return len(self._askers)

    async def admit(self, batch: AdmitBatch, send_answer: SendAnswer) -> None:
        """Decide a batch of admits, answer what is decided, and queue the rest.

        ``send_answer`` is called now, and again for each waiting admit when it is decided.
        """
        self._metrics.observe_admits(len(batch.items))
        now, line = asyncio.get_running_loop().time(), self.line
        answers, waiting_ids, operations = list[Admission](), list[str](), list[AdmitOperation]()
        awaited_payers = line.payers_before()
        for admit in batch.items:
            asker = self._askers.get(admit.attempt_id)
            if asker is not None:
                asker.send_answer, asker.last_requested_at = send_answer, now
                waiting_ids.append(admit.attempt_id)
                continue
            try:
                credential = admit.credential()
            except Fault as unauthorized:  # its format is wrong
                answers.append(_refusal_of(admit, unauthorized))
                continue
            key = credential.id, admit.request_id
            self._askers[admit.attempt_id] = _Asker(admit, batch.incarnation, send_answer, now)
            has_place = line.offer(self._clock(), admit.attempt_id, admit.target, key, batch.incarnation)
            operations.append(AdmitOperation(admit, batch.incarnation, credential, has_place, awaited_payers))
        for operation, decision in zip(operations, await self._decide(operations), strict=True):
            attempt_id = operation.request.attempt_id
            if isinstance(decision, Deferred):
                # One that names no deadline gets the one of its first decision.
                asker = self._askers.get(attempt_id)
                if asker is not None and operation.request.deadline is None:
                    asker.admit = operation.request.model_copy(update={"deadline": decision.deadline})
                waiting_ids.append(attempt_id)
                continue
            self._askers.pop(attempt_id, None)
            if decision is not None:
                answers.append(decision)
        await send_answer(answers, waiting_ids if self._is_ledger_available else [])

    def on_ended(self, ended: Iterable[tuple[Settle, Settled]]) -> None:
        """Take note of attempts that ended, by their settles and what these changed."""
        now = self._clock()
        for item, settled in ended:
            attempt_id, call = item.attempt_id, settled.call
            key, without_place = (item.session_id, item.request_id), None
            if call is not None and call.state is CallState.RUNNING and call.attempt_id == attempt_id:
                without_place = RunningAttempt(attempt_id, call.target, key, call.incarnation or "")
            report = item.report or _DEFAULT_REPORTS[item.outcome]
            self.line.end(now, attempt_id, key, report, without_place)
            if item.outcome is AttemptOutcome.NEVER_SENT:
                self._askers.pop(attempt_id, None)
                self.line.give_up(now, attempt_id)
            for funds in settled.funds:
                self.line.money(*funds)
        self._changed.set()

    async def retry_waiting(self) -> None:
        """Forget what is no longer asked for, and bring the line up to date; called at every sweep."""
        oldest = self._oldest_request()
        for attempt_id in [each for each, asker in self._askers.items() if asker.last_requested_at < oldest]:
            del self._askers[attempt_id]
            self.line.give_up(self._clock(), attempt_id)
        await self.refresh()

    def _oldest_request(self) -> float:
        """Return the time before which an admit counts as no longer resent, in the loop's seconds."""
        return asyncio.get_running_loop().time() - self._timings.held_admit_seconds

    async def refresh(self) -> None:
        """Bring the line up to date with the ledger; where that is out of reach, the next sweep does."""
        redelivered = {attempt_id for attempt_id, asker in self._askers.items() if asker.admit.redelivered}
        try:
            await self.quotas.refresh(redelivered)
        except BudgetUnavailable:
            self._is_ledger_available = False
        self._changed.set()

    def wake_calls(self, keys: Iterable[CallKey]) -> None:
        """Ask about the waiting admits of these calls again."""
        for key in keys:
            self.line.wake_call(key)
        self._changed.set()

    async def ask_waiting(self) -> bool:
        """Have the ledger decide those that wait and are next; returns whether it could be asked."""
        while asks := self.line.next(self._clock(), MAX_DECISIONS):
            operations, askers = list[AdmitOperation](), list[_Asker]()
            asked = {waiting.attempt_id for waiting, _ in asks}
            for waiting, has_place in asks:
                asker = self._askers.get(waiting.attempt_id)
                if asker is None or asker.last_requested_at < self._oldest_request():
                    # Its worker is gone. A lost grant is sent again when the admit is repeated.
                    self._askers.pop(waiting.attempt_id, None)
                    self.line.give_up(self._clock(), waiting.attempt_id)
                    continue
                credential, payers = asker.admit.credential(), self.line.payers_before(waiting.number, asked)
                operations.append(AdmitOperation(asker.admit, asker.incarnation, credential, has_place, payers))
                askers.append(asker)
            decided: dict[SendAnswer, list[Admission]] = {}
            for asker, decision in zip(askers, await self._decide(operations), strict=True):
                if isinstance(decision, Admission):
                    self._askers.pop(asker.admit.attempt_id, None)
                    decided.setdefault(asker.send_answer, []).append(decision)
            await asyncio.gather(*(self._send(send_answer, answers) for send_answer, answers in decided.items()))
            if not self._is_ledger_available:
                return False
        return True

    async def ask_forever(self) -> None:
        """Do so whenever something changed, or by the time that passed."""
        while True:
            due_seconds = self.line.due_at() - self._clock()
            try:
                async with asyncio.timeout(None if due_seconds == float("inf") else max(0.0, due_seconds)):
                    await self._changed.wait()
            except TimeoutError:
                await asyncio.sleep(MIN_WAIT_SECONDS)
            self._changed.clear()
            try:
                is_available = await self.ask_waiting()
            except Exception as error:
                # Without this task no call that waits would ever start.
                log_defect(error, "asking for calls that wait")
                is_available = False
            if not is_available:
                await asyncio.sleep(self._timings.sweep_seconds)

    async def _decide(self, operations: Sequence[AdmitOperation]) -> list[Admission | Deferred | None]:
        """Return the ledger's decision on each admit; None while the ledger is out of reach: its worker repeats it.

        A final decision is recorded as a span of the call's trace; a deferral is not, because it is decided many times.
        """
        if not operations:
            return []
        started_at, decisions = time.perf_counter(), list[Admission | Deferred | None]()
        outcomes = await self.operations.run(operations)
        self._is_ledger_available = BudgetUnavailable not in map(type, outcomes)
        seconds = time.perf_counter() - started_at
        for operation, outcome in zip(operations, outcomes, strict=True):
            admit = operation.request
            decision = _decision_of(admit, outcome) if isinstance(outcome, Exception) else outcome
            decision = self._note(operation, decision)
            decisions.append(decision)
            _note_decision(admit, decision, seconds=seconds)
            if isinstance(decision, Admission):
                self._metrics.count_admission(admit.target, decision)
        return decisions

    def _note(self, operation: AdmitOperation, decision: Admission | Deferred | None) -> Admission | Deferred | None:
        """Tell the line what the ledger decided; returns the decision as it is answered."""
        admit, now, line = operation.request, self._clock(), self.line
        attempt_id, call = admit.attempt_id, (operation.credential.id, admit.request_id)
        if decision is None:
            line.undecided(now, attempt_id)
        elif isinstance(decision, Deferred):
            if decision.reason is DeferReason.CALL and self._is_overloaded(admit, call):
                decision = _overloaded(admit)
                line.give_up(now, attempt_id)
            else:
                line.wait(now, self._waiting(operation, decision))
        elif decision.is_grant:
            deadline = self.quotas.seconds_of(decision.deadline)
            if line.granted(now, RunningAttempt(attempt_id, admit.target, call, operation.incarnation, deadline)):
                decision = decision.with_fields(is_probe=True)
        else:
            decision = self._with_reason(operation, decision)
            line.refused(now, attempt_id, call)
        if decision is None or isinstance(decision, Deferred) or line.due_at() < now:
            self._changed.set()
        return decision

    def _waiting(self, operation: AdmitOperation, deferred: Deferred) -> Waiting:
        return Waiting(
            operation.request.attempt_id,
            deferred.target,
            *deferred.share,
            is_takeover=deferred.is_takeover,
            call=(deferred.session_id, deferred.request_id),
            incarnation=operation.incarnation,
            reason=deferred.reason,
            deadline=self.quotas.seconds_of(deferred.deadline),
            not_before=self.quotas.seconds_of(deferred.not_before),
            payer=deferred.payer,
            cost=operation.request.max_cost or 0,
        )

    def _is_overloaded(self, admit: Admit, call: CallKey) -> bool:
        """Whether as many duplicates of a call wait as may, beside this one, each for another caller."""
        if admit.redelivered or admit.attempt_id in self.line.waiting:
            return False
        joins = (each for each in self.line.of_call(call) if each.reason is DeferReason.CALL)
        askers = (self._askers.get(each.attempt_id) for each in joins)
        return sum(asker is not None and not asker.admit.redelivered for asker in askers) >= MAX_HELD_DUPLICATES

    def _with_reason(self, operation: AdmitOperation, refusal: Admission) -> Admission:
        """Return the refusal of a call that waited for limits of its provider until its deadline as throttled."""
        fault, waited = refusal.fault, self.line.waiting.get(refusal.attempt_id)
        if fault is None or fault.code != Expired.code or fault.charged is not False or waited is None:
            return refusal
        seconds = self.line.places.throttled_seconds(self._clock(), operation.request.target)
        if seconds is None:
            return refusal
        return refusal.with_fields(fault=FaultReply.from_fault(Throttled(retry_after_ms=round(seconds * 1000) or None)))

    async def _send(self, send_answer: SendAnswer, answers: list[Admission]) -> None:
        try:
            await send_answer(answers, [])
        except BudgetUnavailable:
            # That the ledger is out of reach is logged once, where it is found.
            log.debug("An admission could not be sent: the ledger is out of reach")
        except (BusError, Fault) as error:
            self._not_sent.failed(error)
        else:
            self._not_sent.worked()


def _decision_of(admit: Admit, error: Exception) -> Admission | None:
    """Return the answer to an admit that was not decided otherwise; None where its worker is to repeat it."""
    if isinstance(error, BudgetUnavailable):
        return None
    if isinstance(error, Fault):
        return _refusal_of(admit, error)
    # A defect in one admit must not affect the others of its batch.
    with logs.log_context(
        request_id=admit.request_id, session_id=admit.session_id or public_id(admit.token), target=admit.target
    ):
        return _refusal_of(admit, log_defect(error, f"admitting call {admit.request_id!r}"))


def _refusal_of(admit: Admit, fault: Fault) -> Admission:
    """Return the answer that refuses an admit."""
    return Admission(attempt_id=admit.attempt_id, fault=FaultReply.from_fault(fault))


def _note_decision(admit: Admit, decision: Admission | Deferred | None, *, seconds: float) -> None:
    """Log a decision at debug, and record a final one as a span of the call's trace, if the call has one."""
    if log.isEnabledFor(logging.DEBUG):
        said = f"held, {decision.reason.name.lower()}" if isinstance(decision, Deferred) else _outcome_of(decision)
        session_id = admit.session_id or public_id(admit.token)
        with logs.log_context(request_id=admit.request_id, session_id=session_id, target=admit.target):
            log.debug("The admit of attempt %s: %s", admit.attempt_id, said)
    if not isinstance(decision, Admission) or (traceparent := valid_traceparent(admit.traceparent)) is None:
        return
    record_finished_span(
        ledger_admit_span(admit.request_id, _outcome_of(decision)),
        duration_seconds=seconds,
        parent=traceparent,
        error_type=None if decision.fault is None else decision.fault.code,
    )


def _outcome_of(decision: Admission | None) -> str:
    if decision is None or not (decision.fault or decision.is_replay or decision.is_grant):
        return "asked_again"
    return decision.fault.code if decision.fault is not None else "replayed" if decision.is_replay else "granted"


def _overloaded(admit: Admit) -> Admission:
    # The call itself runs: it is not decided yet whether it stays charged.
    message = f"{MAX_HELD_DUPLICATES} duplicates of this call are waiting already"
    return _refusal_of(admit, Overloaded(message, retry_after_ms=1000, charge_unknown=True))

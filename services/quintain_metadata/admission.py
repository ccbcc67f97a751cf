"""Answers workers' admit requests, and queues those that must wait.

An admit waits while another attempt runs its call, while its target is at its fleet-wide limit or paused, or its quota
has no place for it (`quota_admission`), or while its worker has no valid lease. It is decided again only when what it
waits for may have ended: when its call is settled or cancelled, when its target has free capacity (take-overs before
new calls, then in order of arrival), when its quota gives it a place, and at a sweep that finds so, because leases
lapse and pauses end without a message. A deadline that the request does not name starts at the first admit. Workers
resend unanswered admits, so the queue may be lost with this process; an admit that is no longer resent is dropped, and
one that waits already is answered from memory. While the ledger is unavailable nothing is answered, and workers resend.
Decision 3 has the reasons.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from quintain.bus.failure_log import FailureLog
from quintain.contracts.ledger import Admission, Admit, AdmitBatch, AttemptEnded
from quintain.errors import BudgetUnavailable, BusError, Fault, Overloaded
from quintain.rpc.server import log_defect
from quintain.timings import DEFAULT_TIMINGS, Clock, Timings
from quintain_metadata.admit_answers import decision_of, note_decision, refusal_of, with_deadline
from quintain_metadata.ledger.call_rows import CallKey, read_capacities
from quintain_metadata.ledger.calls import CallOperations
from quintain_metadata.ledger.decisions import AdmitOperation, DeferReason, Deferred
from quintain_metadata.metrics import MetadataMetrics
from quintain_metadata.money_line import MoneyLine
from quintain_metadata.quotas.fair_queue import Waiting
from quintain_metadata.quotas.quota_admission import QuotaAdmission
from quintain_metadata.store.base import Ledger, Operation, Returned
from quintain_metadata.waiting import SendAnswer, WaitingAdmit, WaitingAdmits, read_capacity, read_ready

log = logging.getLogger(__name__)

#: How many duplicates of one running call are deferred; a further one is refused as `overloaded`.
MAX_HELD_DUPLICATES = 16

#: How many waiting admits are decided at once: others of the same ledger wait for all of them.
MAX_DECISIONS = 64


#: How long the grants of quotas wait for at least that are due by time, in seconds.
MIN_GRANT_SECONDS = 0.001


class AdmissionQueue:
    """Decides admits one by one, and queues those that must wait."""

    def __init__(
        self,
        ledger: Ledger,
        metrics: MetadataMetrics | None = None,
        timings: Timings = DEFAULT_TIMINGS,
        quotas: QuotaAdmission | None = None,
    ) -> None:
        self._ledger, self._metrics, self._timings = ledger, metrics or MetadataMetrics(), timings
        self.quotas, self._waiting = quotas or QuotaAdmission(ledger), WaitingAdmits()
        self.operations = CallOperations(ledger)
        self._clock = Clock()
        self._targets_to_fill: set[str] = set()
        #: Whether the ledger took the last operation of this queue.
        self._is_ledger_available = True
        self._fill_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._arrivals = itertools.count()
        self.money = MoneyLine(self._waiting, self._read, self._retry)
        begun = "Admissions could not be sent; they are sent when the workers repeat their admits"
        self._not_sent = FailureLog(log, begun, "Admissions are sent")

    @property
    def waiting_count(self) -> int:
        """The number of waiting admits."""
        return len(self._waiting.admits)

    async def admit(self, batch: AdmitBatch, send_answer: SendAnswer) -> None:
        """Decide a batch of admits, answer what is decided, and queue the rest.

        ``send_answer`` is called now, and again for each waiting admit when it is decided.
        """
        self._metrics.observe_admits(len(batch.items))
        now = asyncio.get_running_loop().time()
        renewed_ids, admits, awaited_targets = list[str](), batch.items, set[str]()
        awaited_payers: Sequence[Collection[str]] = ()
        if self._waiting.admits:
            renewed_ids = [admit.attempt_id for admit in batch.items if self._renew(admit, send_answer, now)]
            admits = [admit for admit in batch.items if admit.attempt_id not in renewed_ids]
            awaited_targets = {admit.target for admit in admits if self._waiting.is_awaited(admit.target)}
            awaited_payers = [self._waiting.awaited_payers()] * len(admits)
        decisions = await self._decide(admits, [batch.incarnation] * len(admits), awaited_targets, awaited_payers)
        answers, first_number = list[Admission](), next(self._arrivals)
        waiting_ids = renewed_ids if self._is_ledger_available else []
        for admit, decision in zip(admits, decisions, strict=True):
            if isinstance(decision, Deferred):
                deferred = (with_deadline(admit, decision), batch.incarnation, send_answer, decision)
                refusal = self._add_waiting(WaitingAdmit(*deferred, now, next(self._arrivals)))
                answers += refusal
                waiting_ids += [] if refusal else [admit.attempt_id]
            elif decision is not None:
                if self._waiting.admits:
                    self._waiting.remove(admit.attempt_id)
                answers.append(decision)
        await send_answer(answers, waiting_ids)
        # Capacity and money may have become free while these were decided to wait behind others.
        for target in awaited_targets:
            await self.fill(target)
        if self._waiting.admits and any(each >= first_number for each in self._waiting.awaited_payers().values()):
            await self.money.fill()

    def _renew(self, admit: Admit, send_answer: SendAnswer, now: float) -> bool:
        """Note that the worker still waits for this admit, and where; returns whether it goes on waiting here.

        An admit that is repeated after its deadline is decided: only the ledger knows that it was never admitted.
        """
        waiting = self._waiting.get(admit.attempt_id)
        if waiting is None or waiting.deferred.deadline <= self._clock.now_ms():
            return False
        self._waiting.put(dataclasses.replace(waiting, send_answer=send_answer, last_requested_at=now))
        return True

    async def on_ended(self, ended: Collection[AttemptEnded]) -> None:
        """Take note of attempts that ended, decide the admits that join their calls, and fill what they freed."""
        targets = set[str]()
        for each in ended:
            if each.attempt_id in self.quotas.places or self.quotas.quota_of:
                self.quotas.ended(each)
            if each.was_running and each.target is not None:
                targets.add(each.target)
        if self._waiting.admits:
            for each in ended:
                if each.gave_up:
                    self._waiting.remove(each.attempt_id)
            await self.retry_calls({(each.session_id, each.request_id) for each in ended})
            for target in targets:
                await self.fill(target)
            await self.money.fill()

    async def retry_waiting(self) -> None:
        """Decide the waiting admits that no longer need to wait; called at every sweep."""
        lost = self._waiting.requested_before(self._oldest_request())
        for waiting in lost:
            self._waiting.remove(waiting.admit.attempt_id)
            self.quotas.forget(waiting.admit.attempt_id)
        try:
            without_quota = await self.quotas.sweep()
        except BudgetUnavailable:
            self._is_ledger_available = False
            return
        if not self._waiting.admits:
            return
        if without_quota:
            await self._retry([each for each in self._waiting if each.admit.target in without_quota])
        ready = await self._read(partial(read_ready, waited_for=self._waiting.waited_for()))
        if ready is None:
            return
        self._clock.synchronize(ready.now)
        await self._retry(self._waiting.ready(ready))
        for target in self._waiting.targets():
            await self.fill(target)
        await self.money.fill()

    async def retry_calls(self, call_keys: Iterable[CallKey]) -> None:
        """Decide again the waiting admits of these calls, given by session id and request id."""
        await self._retry(self._waiting.of_calls(call_keys))

    async def fill(self, target: str) -> None:
        """Grant the target's free capacity to the admits that wait for it."""
        if not self._waiting.is_awaited(target):
            return
        self._targets_to_fill.add(target)
        async with self._fill_locks[target]:
            # Another task that had the lock may have done it already.
            while target in self._targets_to_fill:
                self._targets_to_fill.discard(target)
                if await self._fill_once(target):
                    self._targets_to_fill.add(target)

    async def _fill_once(self, target: str) -> bool:
        """Decide the first admits that wait for this target; returns whether more of them may be granted."""
        first = self._waiting.first_at(target, MAX_DECISIONS)
        attempts = {waiting.admit.attempt_id: waiting.call_key for waiting in first}
        if not first:
            return False
        found = await self._read(partial(read_capacity, target=target, attempts=attempts))
        if found is None:
            return False
        capacity, ended_ids = found
        oldest_request = self._oldest_request()
        chosen, is_any_removed = list[WaitingAdmit](), False
        for waiting in first[:capacity]:
            # Granted before, or its worker is gone. A lost grant is sent again when the admit is repeated.
            if waiting.admit.attempt_id in ended_ids or waiting.last_requested_at < oldest_request:
                self._waiting.remove(waiting.admit.attempt_id)
                is_any_removed = True
            else:
                chosen.append(waiting)
        decisions = await self._retry(chosen)
        if any(decision is None or _is_blocked(decision) for decision in decisions):
            return False
        granted = sum(isinstance(each, Admission) and each.fault is None for each in decisions)
        return is_any_removed or (bool(decisions) and (capacity is None or granted < capacity))

    async def grant_quotas(self) -> bool:
        """Decide the admits whose next try may begin, and those that their quotas have a place for now.

        Returns whether the ledger could be asked.
        """
        await self._retry(self._waiting.take_tries(self._clock.now_ms()))
        capacities = dict[str, int]()
        if self.quotas.blocked:
            found = await self._read(partial(read_capacities, names=list(self.quotas.blocked)))
            if found is None:
                return False
            capacities = found
        oldest_request, chosen = self._oldest_request(), list[tuple[Waiting, WaitingAdmit]]()
        for place in self.quotas.take(capacities):
            waiting = self._waiting.get(place.attempt_id)
            if waiting is None or waiting.last_requested_at < oldest_request:
                self._waiting.remove(place.attempt_id)
                self.quotas.give_back(place.attempt_id)
            else:
                chosen.append((place, waiting))
        # Who waits for money longer has it first.
        first = self._waiting.awaited_payers()
        behind = [{payer for payer, number in first.items() if number < each.number} for _, each in chosen]
        decisions = await self._retry([waiting for _, waiting in chosen], behind)
        for (place, _), decision in zip(chosen, decisions, strict=True):
            if decision is None:
                self.quotas.wait_again(place)
        return self._is_ledger_available

    async def grant_quotas_forever(self) -> None:
        """Grant what may start whenever something changed, or by the time that passed."""
        while True:
            try:
                async with asyncio.timeout(self._seconds_until_due()):
                    await self.quotas.changed.wait()
            except TimeoutError:
                await asyncio.sleep(MIN_GRANT_SECONDS)
            self.quotas.changed.clear()
            try:
                is_available = await self.grant_quotas()
            except Exception as error:
                # Without this task no call of a quota would ever start again.
                log_defect(error, "granting the calls of quotas")
                is_available = False
            if not is_available:
                await asyncio.sleep(self._timings.sweep_seconds)

    def _seconds_until_due(self) -> float | None:
        """Return in how many seconds a waiting call may start by time alone; None where by none."""
        by_quota, next_try_at = self.quotas.seconds_until_due(), self._waiting.next_try_at()
        if next_try_at == math.inf:
            return by_quota
        seconds = max(0.0, next_try_at - self._clock.now_ms()) / 1000
        return seconds if by_quota is None else min(seconds, by_quota)

    async def _read(self, operation: Operation[Returned]) -> Returned | None:
        """Run an operation; None while the ledger is out of reach: the next sweep tries again."""
        try:
            returned = await self._ledger.transact(operation)
        except BudgetUnavailable:
            self._is_ledger_available = False  # logged by the instrumented ledger
            return None
        self._is_ledger_available = True
        return returned

    def _oldest_request(self) -> float:
        """Return the time before which an admit counts as no longer resent, in the loop's seconds."""
        return asyncio.get_running_loop().time() - self._timings.held_admit_seconds

    async def _retry(
        self, admits: Sequence[WaitingAdmit], awaited_payers: Sequence[Collection[str]] = ()
    ) -> list[Admission | Deferred | None]:
        """Decide waiting admits again, and answer those that are decided; returns the decisions."""
        all_decisions = list[Admission | Deferred | None]()
        for start in range(0, len(admits), MAX_DECISIONS):
            page = admits[start : start + MAX_DECISIONS]
            payers = awaited_payers[start : start + MAX_DECISIONS]
            workers = [each.incarnation for each in page]
            decisions = await self._decide([each.admit for each in page], workers, awaited_payers=payers)
            all_decisions += decisions
            decided: dict[SendAnswer, list[Admission]] = {}
            for waiting, decision in zip(page, decisions, strict=True):
                current = self._waiting.get(waiting.admit.attempt_id)
                if current is None:
                    continue  # answered meanwhile
                if isinstance(decision, Admission):
                    self._waiting.remove(waiting.admit.attempt_id)
                    decided.setdefault(current.send_answer, []).append(decision)
                elif decision is not None:
                    self._waiting.put(dataclasses.replace(current, deferred=decision))
            await asyncio.gather(*(self._send(send_answer, answers) for send_answer, answers in decided.items()))
            refused = [each.call_key for each, decision in zip(page, decisions, strict=True) if _is_refused(decision)]
            await self._retry(self._waiting.of_calls(refused))
        return all_decisions

    def _add_waiting(self, waiting: WaitingAdmit) -> list[Admission]:
        if waiting.joins_for_caller:
            count = self._waiting.count_duplicates(waiting.call_key, but=waiting.admit.attempt_id)
            if count >= MAX_HELD_DUPLICATES:
                # The call itself runs: it is not decided yet whether it stays charged.
                refusal = Overloaded(
                    f"{MAX_HELD_DUPLICATES} duplicates of this call are waiting already",
                    retry_after_ms=1000,
                    charge_unknown=True,
                )
                return [refusal_of(waiting.admit, refusal)]
        self._waiting.put(waiting)
        if waiting.deferred.reason is DeferReason.RETRY:
            self.quotas.changed.set()
        return []

    async def _decide(
        self,
        admits: Sequence[Admit],
        incarnations: Sequence[str],
        awaited_targets: Collection[str] = (),
        awaited_payers: Sequence[Collection[str]] = (),
    ) -> list[Admission | Deferred | None]:
        """Return the ledger's decision on each admit; None while the ledger is out of reach: its worker repeats it.

        A new call of one of the ``awaited_targets`` waits behind others; so does one for the money of the sessions in
        its ``awaited_payers``. A final decision is recorded as a span of the
        call's trace; a deferral is not, because it is decided many times.
        """
        if not admits:
            return []
        started_at, decisions = time.perf_counter(), list[Admission | Deferred | None]()
        operations, refused = list[AdmitOperation](), dict[int, Fault]()
        for number, (admit, worker) in enumerate(zip(admits, incarnations, strict=True)):
            try:
                after_others = admit.target in awaited_targets
                credential = admit.credential()
                has_quota = admit.target in self.quotas.quota_of
                after_quota = has_quota and not self.quotas.offer(admit)
                payers = awaited_payers[number] if awaited_payers else ()
                operations.append(AdmitOperation(admit, worker, credential, after_others, after_quota, payers))
            except Fault as unauthorized:  # the format of its credential is wrong
                refused[number] = unauthorized
        outcomes = await self.operations.run(operations)
        self._is_ledger_available = BudgetUnavailable not in map(type, outcomes)
        remaining, seconds = iter(outcomes), time.perf_counter() - started_at
        for number, admit in enumerate(admits):
            outcome = refused.get(number) or next(remaining)
            decision = decision_of(admit, outcome) if isinstance(outcome, Exception) else outcome
            has_quota = admit.target in self.quotas.quota_of
            decision = self.quotas.decided(admit, decision) if has_quota else decision
            decisions.append(decision)
            note_decision(admit, decision, seconds=seconds)
            if isinstance(decision, Admission):
                self._metrics.count_admission(admit.target, decision)
        return decisions

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


def _is_refused(decision: Admission | Deferred | None) -> bool:
    return isinstance(decision, Admission) and decision.fault is not None


def _is_blocked(decision: Admission | Deferred) -> bool:
    """Whether the decision is that the target has no capacity left."""
    return isinstance(decision, Deferred) and decision.reason is DeferReason.TARGET

"""Processes a delivery: parse, join or admit, call the provider, settle, reply, acknowledge, in this order.

The delivery is acknowledged only after the settle is confirmed into its quorum queue and the reply is confirmed or
returned. If the worker dies before that, the message is redelivered and the ledger knows the state of the call.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from quintain.bus.base import Delivery
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.headers import ACCEPT_CHUNKS, ACCEPT_GROUPS, ACCEPT_PROGRESS
from quintain.contracts.invoke import Result
from quintain.contracts.ledger import Admission, AttemptOutcome, CallKey
from quintain.contracts.message import LARGE_REPLY_BYTES, Message
from quintain.contracts.quota import TryReport
from quintain.contracts.values import MAX_DEADLINE_SECONDS
from quintain.errors import BudgetUnavailable, Cancelled, Expired, Fault
from quintain.observe.semconv import ADMIT, OUTCOME, QUEUE_WAIT, SETTLE, reply_span
from quintain.observe.spans import Span, current_traceparent, in_span, record_finished_span, start_span
from quintain.routes import INVOKE
from quintain.topology import REPLY
from quintain_worker.admissions import admission_attributes
from quintain_worker.attempt import Attempt, AttemptResult, CallTiming, response_of
from quintain_worker.call_tries import CallTries
from quintain_worker.completion import OnSettled, Reply, compress_reply, encode_settle, no_action
from quintain_worker.context import WorkerContext
from quintain_worker.copies import CallMessage, copied_attempt, copy_of
from quintain_worker.inflight import GateVisit, InflightCall
from quintain_worker.providers.api_conversation import ApiConversation
from quintain_worker.providers.conversation import with_policy
from quintain_worker.providers.provider import CallHolder, Delta, provider_for_call
from quintain_worker.request import IncomingRequest
from quintain_worker.streaming import InterimAttempt, interim_messages
from quintain_worker.target import PauseState, WorkerTarget

log = logging.getLogger(__name__)

_REPLY_SPAN = reply_span(REPLY.name)


class _HeldLongEnough(Exception):
    """The call waits, and its message was held for as long as it may be: it returns to its queue."""


class DeliveryHandler:
    """Processes one delivery, from its receipt to its acknowledgement."""

    def __init__(
        self,
        target: WorkerTarget,
        context: WorkerContext,
        pause: PauseState,
        delivery: Delivery,
        request: IncomingRequest,
        return_at: float,
    ) -> None:
        self._target, self._context, self._pause = target, context, pause
        self._delivery, self._request, self._return_at = delivery, request, return_at
        self._attempt_id = context.attempt_ids.next()
        self._tries = CallTries()
        #: Before this time of the loop no admission is asked for.
        self._ask_at = 0.0
        self._is_traced = False
        published = request.published_at
        #: Milliseconds between the publish of the request and its receipt; 0 where its publisher gave no time.
        self._queued_ms = 0 if published is None else max(0, context.clock.now_ms() - published)

    async def process(self, process_span: Span | None) -> None:
        """Join the same call if it is in flight here, or else admit and run it; then reply and acknowledge."""
        self._is_traced = process_span is not None
        if self._is_traced:
            record_finished_span(QUEUE_WAIT, duration_seconds=self._queued_ms / 1000)
        calls, identity = self._context.inflight, self._request.identity(self._target.name)
        try:
            while (other := calls.find(identity)) is not None:
                if (result := await self._wait_for_duplicate(other)) is not None:
                    await self._finish(result)
                    return
        except Fault as fault:
            await self._finish(fault)
            return
        except _HeldLongEnough:
            await self._requeue()
            return
        run, visit = calls.add(identity, self._attempt_id), GateVisit()
        try:
            while (wait_seconds := await self._admit_and_run(visit, run)) is not None:
                # The same call and message, with another attempt.
                run.attempt_id = self._attempt_id = self._context.attempt_ids.next()
                self._ask_at = asyncio.get_running_loop().time() + wait_seconds
        except Exception:
            if run.message is None or run.message.is_original:
                raise
            log.exception("The handler of a call failed; its message, which was copied, will be delivered again")
            await run.message.requeue()
        finally:
            self._context.call_gate.leave(visit)
            calls.remove(run)

    async def join(self, on_held: Callable[[], object]) -> bool:
        """Hold the message as long as its call runs, here or elsewhere; returns whether it needs a slot."""
        identity, copied = self._request.identity(self._target.name), copied_attempt(self._delivery)
        if (message := self._context.inflight.find_message(identity, self._delivery)) is not None:
            await message.hold(self._delivery)
            return False
        if copied is None:
            return True
        if copied in self._context.ended_attempts:
            await self._delivery.ack()
            return False
        try:
            admission = await self._request_admission(copied=copied, on_held=on_held)
        except Expired as fault:
            await self._finish(fault)
            return False
        except BudgetUnavailable:
            admission = None
        if admission is None:
            await self._requeue()
            return False
        return not await self._answer_decided(admission)

    async def _answer_decided(self, admission: Admission) -> bool:
        """Answer a call that the ledger refuses, or whose answer it has; returns False after any other decision."""
        if admission.fault is not None:
            await self._finish(self._tries.fault_of(admission.fault))
        elif admission.replay is not None:
            # Only its size is kept: it is encoded again when there is room for it.
            async with self._context.large_replies.hold(len(admission.replay.to_wire())):
                await self._finish(admission.replay)
        else:
            return False
        return True

    async def _wait_for_duplicate(self, other: InflightCall) -> Result | None:
        """Return the result of the same call, already in flight in this worker; None where it ended without one."""
        seconds = self._remaining_seconds() + self._context.timings.deadline_grace_seconds
        held_seconds = self._return_at - asyncio.get_running_loop().time()
        try:
            return await self._context.inflight.wait_for_duplicate(other, min(seconds, held_seconds))
        except TimeoutError:
            if held_seconds < seconds:
                raise _HeldLongEnough from None
            raise Expired("The deadline passed while another delivery ran the call", charge_unknown=True) from None

    async def _admit_and_run(self, visit: GateVisit, run: InflightCall) -> float | None:
        """Ask for admission and run one attempt; returns after how many seconds another one asks, if one does."""
        run.task = asyncio.current_task()
        try:
            admission = await in_span(ADMIT, partial(self._admit, visit))
        except asyncio.CancelledError:
            if not run.take_cancellation():
                raise
            # Another worker may run the same call too: what is charged is decided elsewhere.
            await self._settle_and_finish(AttemptOutcome.NEVER_SENT, Cancelled(charge_unknown=True))
            return None
        except (Expired, BudgetUnavailable) as fault:
            run.task = None
            # A grant may still be on its way: this settle makes it void.
            await self._settle_and_finish(AttemptOutcome.NEVER_SENT, fault)
            return None
        run.task = None
        if admission is None:
            await self._return_to_queue(run, AttemptResult(tries=0, outcome=AttemptOutcome.NEVER_SENT))
        elif not await self._answer_decided(admission):
            run.granted_at = asyncio.get_running_loop().time()
            if run.message is None:
                run.message = self._delivery = CallMessage(self._delivery, self._context.held_seconds)
            return await self._run_attempt(run, admission)
        return None

    async def _admit(self, visit: GateVisit, admit_span: Span | None) -> Admission | None:
        gate = self._context.call_gate
        await self._wait_before_asking()
        if not visit.is_inside:
            await gate.enter(visit, self._remaining_seconds())
        admission = await self._request_admission(alone=visit.is_alone or None)
        if admission is not None and admission.must_be_alone:
            await gate.enter_alone(visit, self._remaining_seconds())
            admission = await self._request_admission(alone=True)
        if admit_span is not None:
            admit_span.set_attributes(admission_attributes(admission))
        return admission

    async def _wait_before_asking(self) -> None:
        """Wait before an attempt that follows a failure, at most until the deadline; not in a worker that stops."""
        loop = asyncio.get_running_loop()
        ask_at = min(self._ask_at, loop.time() + self._remaining_seconds())
        while (seconds := ask_at - loop.time()) > 0 and not self._pause.stopping:
            await self._pause.changed.wait(seconds)

    async def _request_admission(
        self, *, alone: bool | None = None, copied: str | None = None, on_held: Callable[[], object] | None = None
    ) -> Admission | None:
        if self._pause.exceeds_hold_limit:
            return None
        admit = self._request.admit(
            self._attempt_id, self._target.name, current_traceparent(), alone=alone, copied=copied
        )
        return await self._context.admission_client.admit(
            admit, timeout_seconds=self._remaining_seconds(), return_at=self._return_at, on_held=on_held
        )

    def _remaining_seconds(self) -> float:
        """Seconds until the request's deadline on the ledger's clock; where it names none, the ledger ends its wait."""
        if self._request.deadline is None or self._request.problem is not None:
            return MAX_DEADLINE_SECONDS
        seconds = self._context.clock.seconds_until(self._request.deadline)
        return max(0.0, min(seconds, MAX_DEADLINE_SECONDS))

    async def _run_attempt(self, run: InflightCall, grant: Admission) -> float | None:
        """Run an attempt, and end its call unless that asks for another one, after so many seconds."""
        started_at, configured = time.perf_counter(), self._target.read_fingerprint()
        attempt_result = await self._attempt(run, grant)
        duration_ms = (time.perf_counter() - started_at) * 1000
        wait_seconds = self._tries.add(attempt_result, duration_ms / 1000, is_probe=bool(grant.is_probe))
        if attempt_result.outcome is AttemptOutcome.THROTTLED:
            await self._settle(attempt_result)
            # Whoever has a copy of the message goes on with the call.
            return None if run.message is not None and run.message.is_elsewhere else wait_seconds
        if attempt_result.answer is None and attempt_result.fault is None:
            await self._return_to_queue(run, attempt_result)
            return None
        if self._request.published_at is not None:
            self._context.metrics.observe_queue_wait(self._target.name, self._queued_ms / 1000)
        fingerprint = self._target.answer_fingerprint(configured, attempt_result.answer)
        timing = CallTiming(self._target.name, duration_ms, self._queued_ms, fingerprint, self._target.price)
        report = attempt_result.report
        answer, outcome, wire = response_of(attempt_result._replace(tries=self._tries.count), grant, timing)
        if len(wire) <= LARGE_REPLY_BYTES:
            stored = wire if grant.store_replies else b""
            await self._settle_and_finish(outcome, answer, wire, run, stored=stored, report=report)
            return None
        # Its bytes wait until there is room: as text each character takes four of them if one of all needs four.
        del attempt_result, answer
        async with self._context.large_replies.hold(len(wire)):
            stored = await asyncio.to_thread(compress_reply, wire) if grant.store_replies else b""
            await self._settle_and_finish(outcome, Result.from_wire(wire), wire, run, stored=stored, report=report)
        return None

    async def _attempt(self, run: InflightCall, grant: Admission) -> AttemptResult:
        """Ask the provider, and meanwhile send the caller the chunks and progress messages that it asked for."""
        if self._request.accepts.isdisjoint({ACCEPT_CHUNKS, ACCEPT_PROGRESS}):
            return await self._ask_provider(run, grant, None)
        context = self._context
        attempt = InterimAttempt(grant.attempt, self._tries.count, self._target.progress_seconds)
        async with interim_messages(
            context.bus, context.chunk_groups, self._delivery, self._request, attempt
        ) as on_text:
            return await self._ask_provider(run, grant, on_text)

    async def _ask_provider(
        self, run: InflightCall, grant: Admission, on_text: Callable[[int, Delta], None] | None
    ) -> AttemptResult:
        target, asked = self._target, self._request.request
        assert asked is not None, "the ledger refuses a request with a problem"
        ends_at = asyncio.get_running_loop().time() + self._context.clock.seconds_until(grant.deadline)
        holder = CallHolder(
            self._request.credential.id, self._request.request_id, self._attempt_id, self._context.incarnation
        )
        provider = provider_for_call(target.provider, holder)
        if isinstance(asked, ApiRequest) and target.api_provider is None:
            provider = ApiConversation(provider)
        attempt = Attempt(
            provider,
            with_policy(asked, ignore_unsupported=target.ignore_unsupported or grant.ignore_unsupported),
            self._tries.policy(target, grant, ends_at),
            self._pause,
            on_text,
        )
        run.task = asyncio.current_task()
        assert run.message is not None, "the attempt was granted"
        run.message.start_copying(self._return_at, partial(self._publish_copy, ends_at))
        try:
            return await attempt.run()
        except asyncio.CancelledError:
            if not run.take_cancellation():
                raise
            return attempt.cancelled_result()
        finally:
            run.task = None
            run.message.stop_copying()

    async def _publish_copy(self, ends_at: float, held: Delivery) -> None:
        """Publish the message again, as a copy of this attempt's that expires with the call."""
        remaining_seconds = ends_at - asyncio.get_running_loop().time()
        copy = copy_of(held, remaining_seconds, self._attempt_id)
        await self._context.bus.publish(INVOKE.exchange, self._target.name, copy)

    async def _requeue(self) -> None:
        """Return the message to its queue, unless a copy of it is there, or in another worker, already."""
        if isinstance(self._delivery, CallMessage) and self._delivery.is_elsewhere:
            return
        await self._context.requeue_copy(self._delivery, self._target.name, remaining_seconds=self._remaining_seconds())

    async def _return_to_queue(self, run: InflightCall, result: AttemptResult) -> None:
        """Settle the attempt and return the call to its queue: no reply is sent, and the call is not charged."""
        await self._settle(result)
        run.settle(None)
        self._context.metrics.count_returned(self._target.name)
        await self._requeue()

    async def _settle(self, result: AttemptResult) -> None:
        """Settle an attempt whose call goes on."""
        settle_span = start_span(SETTLE) if self._is_traced else None
        settle = self._encode_settle(
            result.outcome, settle_span, result.fault, report=result.report, unproven=result.unproven
        )
        await self._context.completion.settle(settle)
        if settle_span is not None:
            settle_span.end()

    async def _settle_and_finish(
        self,
        outcome: AttemptOutcome,
        answer: Result | Fault,
        wire: bytes = b"",
        run: InflightCall | None = None,
        *,
        stored: bytes = b"",
        report: TryReport | None = None,
    ) -> None:
        """Settle the attempt, then reply and acknowledge the delivery.

        If the worker died between a reply and its settle, a second attempt would run and produce another reply.
        """
        settle_span = start_span(SETTLE) if self._is_traced else None

        def on_settled() -> None:
            if settle_span is not None:
                settle_span.end()
            if run is not None:
                run.settle(answer if isinstance(answer, Result) else None)

        try:
            settle = self._encode_settle(outcome, settle_span, answer, stored, report=report)
            await self._finish(answer, wire, settle, on_settled)
        finally:
            if settle_span is not None:
                settle_span.end()
        if run is not None and run.message is not None and run.message.was_copied:
            self._context.ended_attempts.add(self._attempt_id)

    def _encode_settle(
        self,
        outcome: AttemptOutcome,
        settle_span: Span | None,
        answer: Result | Fault | None = None,
        stored: bytes = b"",
        *,
        report: TryReport | None = None,
        unproven: bool = False,
    ) -> bytes:
        self._context.metrics.count_settled(self._target.name, outcome)
        if settle_span is not None:
            settle_span.set_attributes({OUTCOME: outcome.value})
        traceparent = current_traceparent() if settle_span is None else settle_span.traceparent
        call = CallKey.unchecked(session_id=self._request.credential.id, request_id=self._request.request_id)
        return encode_settle(
            call, self._attempt_id, outcome, answer, stored, traceparent, report=report, unproven=unproven
        )

    async def _finish(
        self, answer: Message | Fault, wire: bytes = b"", settle: bytes | None = None, on_settled: OnSettled = no_action
    ) -> None:
        """Reply and acknowledge the delivery, after the settle is confirmed, if there is one."""
        self._context.metrics.count_answered(self._target.name, answer)
        shares_message = ACCEPT_GROUPS in self._request.accepts
        reply = Reply(self._delivery, answer, self._request.request_id, wire=wire, may_share_message=shares_message)
        replying_since = await self._context.completion.finish(reply, settle, on_settled)
        if self._is_traced:
            record_finished_span(_REPLY_SPAN, duration_seconds=time.perf_counter() - replying_since)

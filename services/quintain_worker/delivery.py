"""Processes a delivery: parse, join or admit, call the provider, settle, reply, acknowledge, in this order.

The delivery is acknowledged only after the settle is confirmed into its quorum queue and the reply is confirmed or
returned. If the worker dies before that, the message is redelivered and the ledger knows the state of the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.clock import Clock
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.headers import ACCEPT_CHUNKS, ACCEPT_GROUPS, ACCEPT_PROGRESS, TRACEPARENT_HEADER
from quintain.contracts.invoke import FaultReply, Result
from quintain.contracts.ledger import Admission, AttemptOutcome, Settle
from quintain.contracts.message import LARGE_REPLY_BYTES, Message
from quintain.errors import BudgetUnavailable, BusError, Cancelled, Expired, Fault
from quintain.observe import logs
from quintain.observe.semconv import ADMIT, OUTCOME, QUEUE_WAIT, SETTLE, process_span, reply_span
from quintain.observe.spans import Span, current_traceparent, in_span, record_finished_span, start_span
from quintain.routes import INVOKE
from quintain.rpc.groups import ReplyGroups
from quintain.rpc.server import copyable_headers, request_id_of
from quintain.runtime.concurrency import ByteBudget, RandomIds
from quintain.timings import Timings
from quintain.topology import REPLY, target_queue
from quintain_worker.admissions import AdmissionClient, admission_attributes
from quintain_worker.attempt import Attempt, AttemptResult, CallTiming, RetryPolicy, response_of
from quintain_worker.completion import Completion, OnSettled, Reply, compress_reply, no_action
from quintain_worker.inflight import CallGate, CallIdentity, GateVisit, InflightCall, InflightCalls
from quintain_worker.metrics import WorkerMetrics
from quintain_worker.providers.api_conversation import ApiConversation
from quintain_worker.providers.conversation import with_policy
from quintain_worker.providers.provider import CallHolder, Delta, provider_for_call
from quintain_worker.request import IncomingRequest, parse_request
from quintain_worker.streaming import EXPIRATION_SECONDS, ChunkSender, report_progress, send_progress
from quintain_worker.target import PauseState, WorkerTarget

log = logging.getLogger(__name__)

#: How long admission may take where a request names no deadline, in seconds; the ledger has the session's own.
DEFAULT_DEADLINE_SECONDS = 600.0

#: Deadlines are at most this far ahead (``docs/protocol.md``), in seconds: no delivery is held for longer.
MAX_DEADLINE_AHEAD_SECONDS = 25 * 60.0

#: More tries than any target allows, so that the chunks of a later attempt void those of all earlier tries.
MAX_TRIES_PER_ATTEMPT = 1_000

_REPLY_SPAN = reply_span(REPLY.name)


#: How many bytes of replies of more than `LARGE_REPLY_BYTES` are settled and sent at a time. Until its message is
#: confirmed, a reply takes several times its size; others wait as bytes.
LARGE_REPLIES_BYTES = 32 * 1024 * 1024


class WorkerContext:
    """Everything that the delivery handlers of one worker share."""

    def __init__(  # noqa: PLR0913 -- everything that they share
        self,
        bus: Bus,
        admission_client: AdmissionClient,
        clock: Clock,
        incarnation: str,
        metrics: WorkerMetrics,
        timings: Timings,
        *,
        slots: int,
    ) -> None:
        """Create the shared state of a worker that takes up to ``slots`` deliveries at a time."""
        self.bus, self.admission_client, self.clock = bus, admission_client, clock
        self.metrics, self.timings = metrics, timings
        self.inflight, self.call_gate = InflightCalls(slots), CallGate(timings.held_call_seconds)
        self.attempt_ids = RandomIds()
        self.incarnation = incarnation
        self.completion = Completion(bus, incarnation, timings)
        self.chunk_groups = ReplyGroups(bus, int(EXPIRATION_SECONDS * 1000))
        self.large_replies = ByteBudget(LARGE_REPLIES_BYTES)

    async def requeue_copy(self, delivery: Delivery, target: str, *, remaining_seconds: float | None = None) -> None:
        """Put a delivery back into its target's queue, as a new message that expires after ``remaining_seconds``, by
        default after as long as the delivery itself.

        A requeue of the delivery itself would count towards the queue's delivery limit. It is used only where the copy
        cannot be published.
        """
        copy = Envelope(
            body=delivery.body,
            type=delivery.type,
            correlation_id=delivery.correlation_id,
            reply_to=delivery.reply_to,
            headers=copyable_headers(delivery.headers),
            expiration_ms=delivery.expiration_ms
            if remaining_seconds is None
            else max(1, int(remaining_seconds * 1000)),
        )
        try:
            await self.bus.publish(INVOKE.exchange, target, copy)
        except BusError as error:
            log.warning("A call could not be published again, and is requeued: %s", error.message)
            await delivery.requeue()
        else:
            await delivery.ack()


def make_handler(
    target: WorkerTarget, context: WorkerContext, pause: PauseState
) -> Callable[[Delivery], Awaitable[None]]:
    """Create the delivery handler of one target's queue."""
    queue = target_queue(target.name).name

    async def handle(delivery: Delivery) -> None:
        if not delivery.reply_to or not delivery.correlation_id:
            await delivery.dead_letter()
            return
        try:
            request = parse_request(delivery, target.name, target.check)
        except Fault as fault:
            await context.completion.finish(Reply(delivery, fault, request_id_of(delivery)))
            return
        ids = {"request_id": request.request_id, "session_id": request.credential.id, "target": target.name}
        logs.set_call_ids(**ids)
        await in_span(
            partial(process_span, INVOKE.exchange.name, target.name, queue, **ids),
            _DeliveryHandler(target, context, pause, delivery, request).process,
            parent=delivery.headers.get(TRACEPARENT_HEADER),
        )

    return handle


class _DeliveryHandler:
    """Processes one delivery, from its receipt to its acknowledgement."""

    def __init__(
        self,
        target: WorkerTarget,
        context: WorkerContext,
        pause: PauseState,
        delivery: Delivery,
        request: IncomingRequest,
    ) -> None:
        self._target, self._context, self._pause = target, context, pause
        self._delivery, self._request = delivery, request
        self._attempt_id = context.attempt_ids.next()
        self._holder = CallHolder(request.credential.id, request.request_id, self._attempt_id, context.incarnation)
        self._is_traced = False
        published = request.published_at
        #: Milliseconds between the publish of the request and its receipt; 0 where its publisher gave no time.
        self._queued_ms = 0 if published is None else max(0, context.clock.now_ms() - published)

    async def process(self, process_span: Span | None) -> None:
        """Join the same call if it is in flight here, or else admit and run it; then reply and acknowledge."""
        self._is_traced = process_span is not None
        if self._is_traced:
            record_finished_span(QUEUE_WAIT, duration_seconds=self._queued_ms / 1000)
        request, calls = self._request, self._context.inflight
        identity = CallIdentity(
            credential=request.credential.text,
            key=(request.credential.id, request.request_id),
            target=self._target.name,
            body_sha256=request.body_sha256,
            problem=None if request.problem is None else request.problem.message,
        )
        try:
            while (other := calls.find(identity)) is not None:
                if (result := await self._wait_for_duplicate(other)) is not None:
                    await self._finish(result)
                    return
        except Fault as fault:
            await self._finish(fault)
            return
        run, visit = calls.add(identity), GateVisit()
        try:
            await self._admit_and_run(visit, run)
        finally:
            self._context.call_gate.leave(visit)
            calls.remove(run)

    async def _wait_for_duplicate(self, other: InflightCall) -> Result | None:
        """Return the result of the same call, already in flight in this worker; None where it ended without one."""
        try:
            seconds = self._remaining_seconds() + self._context.timings.deadline_grace_seconds
            return await self._context.inflight.wait_for_duplicate(other, seconds)
        except TimeoutError:
            raise Expired("The deadline passed while another delivery ran the call", charge_unknown=True) from None

    async def _admit_and_run(self, visit: GateVisit, run: InflightCall) -> None:
        run.task = asyncio.current_task()
        try:
            admission = await in_span(ADMIT, partial(self._admit, visit))
        except asyncio.CancelledError:
            if not run.take_cancellation():
                raise
            # Another worker may run the same call too: what is charged is decided elsewhere.
            await self._settle_and_finish(AttemptOutcome.NEVER_SENT, Cancelled(charge_unknown=True))
            return
        except (Expired, BudgetUnavailable) as fault:
            run.task = None
            # A grant may still be on its way: this settle makes it void.
            await self._settle_and_finish(AttemptOutcome.NEVER_SENT, fault)
            return
        run.task = None
        if admission is None:
            await self._return_to_queue(run, AttemptOutcome.NEVER_SENT)
        elif admission.fault is not None:
            await self._finish(admission.fault.to_fault())
        elif admission.replay is not None:
            # Only its size is kept: it is encoded again when there is room for it.
            async with self._context.large_replies.hold(len(admission.replay.to_wire())):
                await self._finish(admission.replay)
        else:
            await self._run_attempt(run, admission)

    async def _admit(self, visit: GateVisit, admit_span: Span | None) -> Admission | None:
        gate = self._context.call_gate
        await gate.enter(visit, self._remaining_seconds())
        admission = await self._request_admission()
        if admission is not None and admission.must_be_alone:
            await gate.enter_alone(visit, self._remaining_seconds())
            admission = await self._request_admission(alone=True)
        if admit_span is not None:
            admit_span.set_attributes(admission_attributes(admission))
        return admission

    async def _request_admission(self, *, alone: bool | None = None) -> Admission | None:
        if self._pause.exceeds_hold_limit:
            return None
        admit = self._request.admit(self._attempt_id, self._target.name, current_traceparent(), alone=alone)
        return await self._context.admission_client.admit(admit, timeout_seconds=self._remaining_seconds())

    def _remaining_seconds(self) -> float:
        """Seconds until the request's deadline on the ledger's clock, or the default where it names none."""
        if self._request.deadline is None or self._request.problem is not None:
            return DEFAULT_DEADLINE_SECONDS
        seconds = self._context.clock.seconds_until(self._request.deadline)
        return max(0.0, min(seconds, MAX_DEADLINE_AHEAD_SECONDS))

    async def _run_attempt(self, run: InflightCall, grant: Admission) -> None:
        started_at, configured = time.perf_counter(), self._target.read_fingerprint()
        is_streamed = not self._request.accepts.isdisjoint({ACCEPT_CHUNKS, ACCEPT_PROGRESS})
        attempt_result = await (self._attempt_with_streaming if is_streamed else self._attempt)(run, grant)
        if attempt_result.answer is None and attempt_result.fault is None:
            await self._return_to_queue(run, attempt_result.outcome)
            return
        duration_ms = (time.perf_counter() - started_at) * 1000
        if self._request.published_at is not None:
            self._context.metrics.observe_queue_wait(self._target.name, self._queued_ms / 1000)
        fingerprint = self._target.answer_fingerprint(configured, attempt_result.answer)
        timing = CallTiming(self._target.name, duration_ms, self._queued_ms, fingerprint, self._target.price)
        answer, outcome, wire = response_of(attempt_result, grant, timing)
        if len(wire) <= LARGE_REPLY_BYTES:
            await self._settle_and_finish(outcome, answer, wire, run, stored=wire if grant.store_replies else b"")
            return
        # Its bytes wait until there is room: as text each character takes four of them if one of all needs four.
        del attempt_result, answer
        async with self._context.large_replies.hold(len(wire)):
            stored = await asyncio.to_thread(compress_reply, wire) if grant.store_replies else b""
            await self._settle_and_finish(outcome, Result.from_wire(wire), wire, run, stored=stored)

    async def _attempt_with_streaming(self, run: InflightCall, grant: Admission) -> AttemptResult:
        """Ask the provider, and meanwhile send the caller the chunks and progress messages that it asked for."""
        bus, delivery, request_id = self._context.bus, self._delivery, self._request.request_id
        sender = None
        if ACCEPT_CHUNKS in self._request.accepts:
            groups = self._context.chunk_groups if ACCEPT_GROUPS in self._request.accepts else None
            first_attempt = (grant.attempt - 1) * MAX_TRIES_PER_ATTEMPT
            sender = ChunkSender(bus, delivery, request_id, first_attempt=first_attempt, groups=groups)
        reporting: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
        if ACCEPT_PROGRESS in self._request.accepts:
            send = partial(send_progress, bus, delivery, request_id)
            reporting = report_progress(self._target.progress_seconds, grant.attempt, send)
        try:
            async with reporting:
                return await self._attempt(run, grant, None if sender is None else sender.add)
        finally:
            if sender is not None:
                await sender.close()

    async def _attempt(
        self, run: InflightCall, grant: Admission, on_text: Callable[[int, Delta], None] | None = None
    ) -> AttemptResult:
        target, asked = self._target, self._request.request
        assert asked is not None, "the ledger refuses a request with a problem"
        ends_at = asyncio.get_running_loop().time() + self._context.clock.seconds_until(grant.deadline)
        provider = provider_for_call(target.provider, self._holder)
        if isinstance(asked, ApiRequest) and target.api_provider is None:
            provider = ApiConversation(provider)
        attempt = Attempt(
            provider,
            with_policy(asked, ignore_unsupported=target.ignore_unsupported or grant.ignore_unsupported),
            RetryPolicy(target.max_tries, ends_at, target.timeout_seconds, grant.unproven),
            self._pause,
            on_text,
        )
        run.task = asyncio.current_task()
        try:
            return await attempt.run()
        except asyncio.CancelledError:
            if not run.take_cancellation():
                raise
            return attempt.cancelled_result()
        finally:
            run.task = None

    async def _return_to_queue(self, run: InflightCall, outcome: AttemptOutcome) -> None:
        """Settle the attempt and return the call to its queue: no reply is sent, and the call is not charged."""
        settle_span = start_span(SETTLE) if self._is_traced else None
        await self._context.completion.settle(self._encode_settle(outcome, settle_span))
        if settle_span is not None:
            settle_span.end()
        run.settle(None)
        self._context.metrics.count_returned(self._target.name)
        await self._context.requeue_copy(self._delivery, self._target.name, remaining_seconds=self._remaining_seconds())

    async def _settle_and_finish(
        self,
        outcome: AttemptOutcome,
        answer: Result | Fault,
        wire: bytes = b"",
        run: InflightCall | None = None,
        *,
        stored: bytes = b"",
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
            settle = self._encode_settle(outcome, settle_span, answer, stored)
            await self._finish(answer, wire, settle, on_settled)
        finally:
            if settle_span is not None:
                settle_span.end()

    def _encode_settle(
        self,
        outcome: AttemptOutcome,
        settle_span: Span | None,
        answer: Result | Fault | None = None,
        stored: bytes = b"",
    ) -> bytes:
        """Return the outcome of the attempt as the ledger is told it, with the reply to store, if there is one."""
        self._context.metrics.count_settled(self._target.name, outcome)
        if settle_span is not None:
            settle_span.set_attributes({OUTCOME: outcome.value})
        result = answer if isinstance(answer, Result) else None
        # The times and the cost are those of a stored reply, which the ledger reads unless it is compressed.
        unread = None if stored.startswith(b"{") else result
        settle = Settle.unchecked(
            session_id=self._request.credential.id,
            request_id=self._request.request_id,
            attempt_id=self._attempt_id,
            outcome=outcome,
            reply=None,
            compressed_reply=None,
            queued_ms=None if unread is None else unread.queued_ms,
            duration_ms=None if unread is None else unread.duration_ms,
            cost_usd=None if unread is None else unread.cost_usd,
            fault=FaultReply.from_fault(answer) if isinstance(answer, Fault) else None,
            token_usage=None if result is None else result.token_usage,
            traceparent=current_traceparent() if settle_span is None else settle_span.traceparent,
        )
        return settle.to_wire_with_reply(stored) if stored else settle.to_wire()

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

"""Processes a delivery: parse, join or admit, call the provider, settle, reply, acknowledge, in this order.

The delivery is acknowledged only after the settle is confirmed into its quorum queue and the reply is confirmed or
returned. If the worker dies before that, the message is redelivered and the ledger knows the state of the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from quintain.bus.base import Delivery
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.headers import ACCEPT_CHUNKS, ACCEPT_GROUPS, ACCEPT_PROGRESS, TRACEPARENT_HEADER
from quintain.contracts.invoke import Result
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.message import LARGE_REPLY_BYTES, Message
from quintain.errors import BudgetUnavailable, Cancelled, Expired, Fault
from quintain.observe import logs
from quintain.observe.semconv import ADMIT, OUTCOME, QUEUE_WAIT, SETTLE, process_span, reply_span
from quintain.observe.spans import Span, current_traceparent, record_finished_span, span, start_span
from quintain.routes import INVOKE
from quintain.rpc.server import request_id_of
from quintain.topology import REPLY, target_queue
from quintain_worker.admissions import admission_attributes
from quintain_worker.attempt import Attempt, AttemptResult, CallTiming, RetryPolicy, response_of
from quintain_worker.completion import OnSettled, Reply, compress_reply, encode_settle, no_action
from quintain_worker.context import WorkerContext
from quintain_worker.inflight import CallIdentity, GateVisit, InflightCall
from quintain_worker.providers.api_conversation import ApiConversation
from quintain_worker.providers.conversation import with_policy
from quintain_worker.providers.provider import CallHolder, Delta, provider_for_call
from quintain_worker.request import IncomingRequest, parse_request
from quintain_worker.streaming import ChunkSender, report_progress, send_progress
from quintain_worker.target import PauseState, WorkerTarget

#: How long admission may take where a request names no deadline, in seconds; the ledger has the session's own.
DEFAULT_DEADLINE_SECONDS = 600.0

#: Deadlines are at most this far ahead (``docs/protocol.md``), in seconds: no delivery is held for longer.
MAX_DEADLINE_AHEAD_SECONDS = 25 * 60.0

#: More tries than any target allows, so that the chunks of a later attempt void those of all earlier tries.
MAX_TRIES_PER_ATTEMPT = 1_000

_REPLY_SPAN = reply_span(REPLY.name)


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
        span_ids = {"request_id": request.request_id, "session_id": request.credential.id, "target": target.name}
        span_start = partial(process_span, INVOKE.exchange.name, target.name, queue, **span_ids)
        with span(span_start, parent=delivery.headers.get(TRACEPARENT_HEADER)), logs.log_context(**span_ids):
            await _DeliveryHandler(target, context, pause, delivery, request).process()

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
        published = request.published_at
        #: Milliseconds between the publish of the request and its receipt; 0 where its publisher gave no time.
        self._queued_ms = 0 if published is None else max(0, context.clock.now_ms() - published)

    async def process(self) -> None:
        """Join the same call if it is in flight here, or else admit and run it; then reply and acknowledge."""
        record_finished_span(QUEUE_WAIT, duration_seconds=self._queued_ms / 1000)
        identity = self._identity()
        try:
            while (other := self._context.inflight.find(identity)) is not None:
                if (result := await self._wait_for_duplicate(other)) is not None:
                    await self._finish(result)
                    return
        except Fault as fault:
            await self._finish(fault)
            return
        run, visit = self._context.inflight.add(identity), GateVisit()
        try:
            await self._admit_and_run(visit, run)
        finally:
            self._context.call_gate.leave(visit)
            self._context.inflight.remove(run)

    def _identity(self) -> CallIdentity:
        problem = self._request.problem
        return CallIdentity(
            credential=self._request.credential.text,
            key=(self._request.credential.id, self._request.request_id),
            target=self._target.name,
            body_sha256=self._request.body_sha256,
            problem=None if problem is None else problem.message,
        )

    async def _wait_for_duplicate(self, other: InflightCall) -> Result | None:
        """Return the result of the same call, already in flight in this worker; None where it ended without one."""
        try:
            seconds = self._remaining_seconds() + self._context.timings.deadline_grace_seconds
            return await self._context.inflight.wait_for_duplicate(other, seconds)
        except TimeoutError:
            raise Expired("The deadline passed while another delivery ran the call", charge_unknown=True) from None

    async def _admit_and_run(self, visit: GateVisit, run: InflightCall) -> None:
        try:
            with run.abort_scope(), span(ADMIT) as admit_span:
                admission = await self._admit(visit)
                if admit_span.is_recording:
                    admit_span.set_attributes(admission_attributes(admission))
        except (Expired, BudgetUnavailable, Cancelled) as fault:
            # A grant may still be on its way: this settle makes it void.
            await self._settle_and_finish(AttemptOutcome.NEVER_SENT, fault)
            return
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

    async def _admit(self, visit: GateVisit) -> Admission | None:
        gate = self._context.call_gate
        await gate.enter(visit, self._remaining_seconds())
        admission = await self._request_admission()
        if admission is None or not admission.must_be_alone:
            return admission
        await gate.enter_alone(visit, self._remaining_seconds())
        return await self._request_admission(alone=True)

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
        attempt_result = await self._attempt_with_streaming(run, grant)
        if attempt_result.is_returned:
            await self._return_to_queue(run, attempt_result.outcome)
            return
        duration_ms = (time.perf_counter() - started_at) * 1000
        if self._request.published_at is not None:
            self._context.metrics.observe_queue_wait(self._target.name, self._queued_ms / 1000)
        fingerprint = self._target.answer_fingerprint(configured, attempt_result.answer)
        timing = CallTiming(self._target.name, duration_ms, self._queued_ms, fingerprint, self._target.price)
        answer, outcome, wire = response_of(attempt_result, grant, timing)
        if (size := len(wire)) <= LARGE_REPLY_BYTES:
            await self._settle_and_finish(outcome, answer, wire, run, stored=wire if grant.store_replies else b"")
            return
        assert isinstance(answer, Result), "a fault has no bytes here"
        wire = b""  # It is encoded again when there is room for it.
        async with self._context.large_replies.hold(size):
            wire = answer.to_wire()
            stored = await asyncio.to_thread(compress_reply, wire) if grant.store_replies else b""
            await self._settle_and_finish(outcome, answer, wire, run, stored=stored)

    async def _attempt_with_streaming(self, run: InflightCall, grant: Admission) -> AttemptResult:
        ends_at = asyncio.get_running_loop().time() + self._context.clock.seconds_until(grant.deadline)
        retry_policy = RetryPolicy(self._target.max_tries, ends_at, self._target.timeout_seconds, grant.unproven)
        if self._request.accepts.isdisjoint({ACCEPT_CHUNKS, ACCEPT_PROGRESS}):
            return await self._attempt(run, grant, retry_policy)
        async with self._stream_chunks(grant) as on_text, self._report_progress(grant):
            return await self._attempt(run, grant, retry_policy, on_text)

    async def _attempt(
        self,
        run: InflightCall,
        grant: Admission,
        retry_policy: RetryPolicy,
        on_text: Callable[[int, Delta], None] | None = None,
    ) -> AttemptResult:
        asked = self._request.request
        assert asked is not None, "the ledger refuses a request with a problem"
        provider = provider_for_call(self._target.provider, self._holder)
        if isinstance(asked, ApiRequest) and self._target.api_provider is None:
            provider = ApiConversation(provider)
        ignores = self._target.ignore_unsupported or grant.ignore_unsupported
        request = with_policy(asked, ignore_unsupported=ignores)
        timeouts = self._context.provider_timeouts
        attempt = Attempt(provider, request, retry_policy, self._pause, on_text, timeouts=timeouts)
        try:
            with run.abort_scope():
                return await attempt.run()
        except Cancelled:
            return attempt.cancelled_result()

    @contextlib.asynccontextmanager
    async def _stream_chunks(self, grant: Admission) -> AsyncIterator[Callable[[int, Delta], None] | None]:
        """Yield the callback that streams text to the caller, or None where the caller did not ask for chunks."""
        if ACCEPT_CHUNKS not in self._request.accepts:
            yield None
            return
        sender = ChunkSender(
            self._context.bus,
            self._delivery,
            self._request.request_id,
            first_attempt=(grant.attempt - 1) * MAX_TRIES_PER_ATTEMPT,
            groups=self._context.chunk_groups if ACCEPT_GROUPS in self._request.accepts else None,
        )
        try:
            yield sender.add
        finally:
            await sender.close()

    @contextlib.asynccontextmanager
    async def _report_progress(self, grant: Admission) -> AsyncIterator[None]:
        """Send progress messages while the context is open, if the caller asked for them."""
        if ACCEPT_PROGRESS not in self._request.accepts:
            yield
            return
        send = partial(send_progress, self._context.bus, self._delivery, self._request.request_id)
        async with report_progress(self._target.progress_seconds, grant.attempt, send):
            yield

    async def _return_to_queue(self, run: InflightCall, outcome: AttemptOutcome) -> None:
        """Settle the attempt and return the call to its queue: no reply is sent, and the call is not charged."""
        settle_span = start_span(SETTLE)
        await self._context.completion.settle(self._encode_settle(outcome, settle_span))
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
        settle_span = start_span(SETTLE)

        def on_settled() -> None:
            settle_span.end()
            if run is not None:
                run.settle(answer if isinstance(answer, Result) else None)

        try:
            settle = self._encode_settle(outcome, settle_span, answer, stored)
            await self._finish(answer, wire, settle, on_settled)
        finally:
            settle_span.end()

    def _encode_settle(
        self, outcome: AttemptOutcome, settle_span: Span, answer: Result | Fault | None = None, stored: bytes = b""
    ) -> bytes:
        """Return the outcome of the attempt as the ledger is told it, with the reply to store, if there is one."""
        self._context.metrics.count_settled(self._target.name, outcome)
        settle_span.set_attributes({OUTCOME: outcome.value})
        return encode_settle(
            self._request, self._attempt_id, outcome, answer, stored, traceparent=settle_span.traceparent
        )

    async def _finish(
        self, answer: Message | Fault, wire: bytes = b"", settle: bytes | None = None, on_settled: OnSettled = no_action
    ) -> None:
        """Reply and acknowledge the delivery, after the settle is confirmed, if there is one."""
        self._context.metrics.count_answered(self._target.name, answer)
        shares_message = ACCEPT_GROUPS in self._request.accepts
        reply = Reply(self._delivery, answer, self._request.request_id, wire=wire, may_share_message=shares_message)
        replying_since = await self._context.completion.finish(reply, settle, on_settled)
        record_finished_span(_REPLY_SPAN, duration_seconds=time.perf_counter() - replying_since)

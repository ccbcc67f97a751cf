"""Processes a delivery: parse, join or admit, call the provider, settle, reply, acknowledge, in this order.

The delivery is acknowledged only after the settle is confirmed into its quorum queue and the reply is confirmed or
returned. If the worker dies before that, or the broker takes the message back, it is redelivered, and the ledger knows
the state of the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from functools import partial

from quintain.bus.base import Delivery
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.headers import ACCEPT_CHUNKS, ACCEPT_GROUPS, ACCEPT_PROGRESS, TRACEPARENT_HEADER
from quintain.contracts.invoke import Result
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.message import LARGE_REPLY_BYTES, Message
from quintain.errors import BudgetUnavailable, Cancelled, Expired, Fault
from quintain.observe import logs
from quintain.observe.semconv import ADMIT, QUEUE_WAIT, SpanStart, process_span, reply_span, settle_span
from quintain.observe.spans import Span, current_traceparent, in_span, record_finished_span, start_span
from quintain.routes import INVOKE
from quintain.rpc.server import request_id_of, truncate_echo
from quintain.topology import REPLY, target_queue
from quintain_worker.admissions import admission_attributes
from quintain_worker.attempt import Attempt, AttemptResult, CallTries
from quintain_worker.completion import CallTiming, OnSettled, Reply, compress_reply, no_action, response_of
from quintain_worker.context import WorkerContext
from quintain_worker.inflight import InflightCall
from quintain_worker.providers.api_conversation import ApiConversation
from quintain_worker.providers.conversation import ignoring_unsupported
from quintain_worker.providers.provider import CallHolder, Delta
from quintain_worker.request import IncomingRequest, parse_request
from quintain_worker.returns import return_copy
from quintain_worker.session_waits import MessageHold
from quintain_worker.streaming import InterimAttempt, interim_messages, progress_after_wait
from quintain_worker.target import GIVEN_BACK, OK, REPLAYED, PauseState, WorkerTarget

log = logging.getLogger(__name__)

_REPLY_SPAN = reply_span(REPLY.name)

#: What an attempt brought that did not begin.
_NOTHING_SENT = AttemptResult(tries=0)


class DeliveryHandler:
    """Processes one delivery, from its receipt to its acknowledgement.

    ``hold`` is None where none waits for a quota or for money.
    """

    def __init__(
        self,
        target: WorkerTarget,
        context: WorkerContext,
        pause: PauseState,
        delivery: Delivery,
        hold: MessageHold | None,
    ) -> None:
        self._target, self._context, self._pause = target, context, pause
        self._delivery, self._hold = delivery, hold
        self._request: IncomingRequest
        self._attempt_id = ""
        self._tries = CallTries()
        #: The request's deadline in the loop's seconds, if it names one, and until when its call may wait.
        self._ends_at, self._waits_until = 0.0, 0.0
        self._is_traced = False

    async def run(self) -> None:
        """Run the call, and answer it."""
        delivery = self._delivery
        if not delivery.reply_to or not delivery.correlation_id:
            await delivery.dead_letter()
            return
        try:
            self._read()
        except Fault as fault:
            echo = str(truncate_echo(request_id_of(delivery)))
            await self._context.completion.finish(Reply(delivery, fault, echo, delivery.ack))
            return
        seconds = self._waits_until - asyncio.get_running_loop().time()
        async with progress_after_wait(self._context.bus, delivery, self._request, seconds, self._context.timings):
            await in_span(self._span_start, self._process, parent=delivery.headers.get(TRACEPARENT_HEADER))

    def _span_start(self) -> SpanStart:
        request, target = self._request, self._target.name
        ids = {"request_id": request.request_id, "session_id": request.credential.id, "target": target}
        return process_span(INVOKE.exchange.name, target, target_queue(target).name, **ids)

    def _read(self) -> None:
        """Parse the delivery, and name its call in the log. Raises `Unauthorized`."""
        self._request = request = parse_request(self._delivery, self._target.name, self._target.check)
        self._attempt_id = self._context.attempt_ids.next()
        self._ends_at, self._waits_until = request.ends(self._context.clock, asyncio.get_running_loop().time())
        target = self._target.name
        logs.log_ids.set({"requestId": request.request_id, "sessionId": request.credential.id, "target": target})

    async def _process(self, process_span: Span | None) -> None:
        """Join the same call if it is in flight here, or else admit and run it; then reply and acknowledge."""
        self._is_traced = process_span is not None
        if self._is_traced:
            queued_ms = self._request.age_ms(self._context.clock.now_ms())
            record_finished_span(QUEUE_WAIT, duration_seconds=queued_ms / 1000)
        context, identity = self._context, self._request.identity
        if await self._take_place():
            return
        try:
            while (other := context.inflight.find(identity)) is not None:
                ends_at = self._ends_at + context.timings.deadline_grace_seconds
                if (result := await context.inflight.wait_for_duplicate(other, ends_at)) is not None:
                    await self._finish(result)
                    return
        except Fault as fault:
            await self._finish(fault)
            return
        call = context.inflight.add(identity, self._delivery)
        try:
            while await self._admit_and_run(call):
                # The same call and message, with another attempt.
                self._attempt_id, call.granted_at = context.attempt_ids.next(), 0.0
        except Exception:
            if call.held is self._delivery:
                raise
            log.exception("The handler of a call failed; its message, which came again meanwhile, is requeued")
            context.inflight.remove(call)
            await call.requeue()
        finally:
            context.inflight.remove(call)

    async def take_place(self) -> bool:
        """Hold a message that was delivered again for its call, if that is in flight here; returns whether it is.

        It needs no slot.
        """
        if not self._delivery.reply_to or not self._delivery.correlation_id:
            return False
        try:
            self._read()
        except Fault:
            return False
        return await self._take_place()

    async def _take_place(self) -> bool:
        call = self._context.inflight.find_same(self._request.identity, self._delivery)
        if call is not None:
            await call.hold(self._delivery)
        return call is not None

    async def _answer_decided(self, admission: Admission, call: InflightCall | None = None) -> None:
        """Answer a call that the ledger refuses, or whose answer it has."""
        if admission.fault is not None:
            await self._finish(self._tries.fault_of(admission.fault), call=call)
        elif admission.replay is not None:
            # Only its size is kept: it is encoded again when there is room for it.
            async with self._context.large_replies.hold(len(admission.replay.to_wire())):
                await self._finish(admission.replay, call=call)

    async def _admit_and_run(self, call: InflightCall) -> bool:
        """Ask for admission and run one attempt; returns whether another one follows."""
        # Where another worker may run the call, the ledger's answer says what a cancellation leaves of it.
        call.task = None if self._request.is_redelivered else asyncio.current_task()
        try:
            admission = await (in_span(ADMIT, self._admit) if self._is_traced else self._admit(None))
        except asyncio.CancelledError:
            if not call.take_cancellation():
                raise
            # Another worker may run the same call too: what is charged is decided elsewhere.
            await self._finish(Cancelled(charge_unknown=True), AttemptOutcome.NEVER_SENT, call)
            return False
        except (Expired, BudgetUnavailable) as fault:
            call.task = None
            # A grant may still be on its way: this settle makes it void.
            await self._finish(fault, AttemptOutcome.NEVER_SENT, call)
            return False
        call.task = None
        if admission is None:
            await self._return_to_queue(call, AttemptResult(tries=0, outcome=AttemptOutcome.NEVER_SENT))
        elif admission.fault is not None or admission.replay is not None:
            await self._answer_decided(admission, call)
        else:
            call.granted_at = asyncio.get_running_loop().time()
            return await self._run_attempt(call, admission)
        return False

    async def _admit(self, admit_span: Span | None) -> Admission | None:
        admission = await self._request_admission()
        if self._hold is not None:
            self._hold.end_waiting()
        if admit_span is not None:
            admit_span.set_attributes(admission_attributes(admission))
        return admission

    def _on_held(self) -> None:
        if self._hold is not None:
            self._hold.begin_waiting(partial(self._context.admission_client.return_call, self._attempt_id))

    async def _request_admission(self) -> Admission | None:
        if self._pause.until > -math.inf and self._pause.exceeds_hold_limit:
            return None
        name, rule, trace = self._target.name, self._target.cost_rule, current_traceparent()
        admit = self._request.admit(self._attempt_id, name, trace, cost_rule=rule)
        self._is_estimate = admit.is_estimate
        return await self._context.admission_client.admit(
            admit, ends_at=self._ends_at, waits_until=self._waits_until, on_held=self._on_held
        )

    async def _run_attempt(self, call: InflightCall, grant: Admission) -> bool:
        """Run an attempt, and end its call unless another one follows, which it returns."""
        target = self._target
        queued_ms, started_at = self._request.age_ms(self._context.clock.now_ms()), time.perf_counter()
        configured = target.fingerprint if target.read_fingerprint is None else target.read_fingerprint()
        attempt_result = await self._ask_provider(call, grant)
        duration_ms = (time.perf_counter() - started_at) * 1000
        if attempt_result.outcome is AttemptOutcome.RETRY:
            wait_seconds = self._tries.add(attempt_result, duration_ms / 1000, grant)
            await self._settle(attempt_result, retry_seconds=wait_seconds)
            return True
        if attempt_result.answer is None and attempt_result.fault is None:
            await self._return_to_queue(call, attempt_result)
            return False
        if self._request.published_at is not None:
            self._context.metrics.queue_seconds(target.name).observe(queued_ms / 1000)
        if target.read_fingerprint is not None or target.hosts is not None:
            configured = target.answer_fingerprint(configured, attempt_result.answer)
        timing = CallTiming(target.name, duration_ms, queued_ms, configured, target.price)
        ended = attempt_result._replace(answer=None)
        tries = self._tries.count + attempt_result.tries
        answer, outcome, wire = response_of(attempt_result._replace(tries=tries), grant, timing)
        if isinstance(answer, Fault):
            answer.duration_ms = round(self._tries.took_ms + duration_ms, 3)
        if len(wire) <= LARGE_REPLY_BYTES:
            await self._finish(answer, outcome, call, wire, wire if grant.store_replies else b"", ended)
            return False
        # Its bytes wait until there is room: as text each character takes four of them if one of all needs four.
        del attempt_result, answer
        async with self._context.large_replies.hold(len(wire)):
            stored = await asyncio.to_thread(compress_reply, wire) if grant.store_replies else b""
            await self._finish(Result.from_wire(wire), outcome, call, wire, stored, ended)
        return False

    async def _ask_provider(self, call: InflightCall, grant: Admission) -> AttemptResult:
        """Ask the provider, and meanwhile send the caller the chunks and progress messages that it asked for."""
        target, request, context = self._target, self._request, self._context
        asked = request.request
        assert asked is not None, "the ledger refuses a request with a problem"
        ends_at = asyncio.get_running_loop().time() + context.clock.seconds_until(grant.deadline)
        provider = target.provider
        if target.for_call is not None:
            holder = CallHolder(request.credential.id, request.request_id, self._attempt_id, context.incarnation)
            provider = target.for_call(holder)
        if isinstance(asked, ApiRequest) and target.api_provider is None:
            provider = ApiConversation(provider)
        if target.ignore_unsupported or grant.ignore_unsupported:
            asked = ignoring_unsupported(asked)
        interim: contextlib.AbstractAsyncContextManager[Callable[[int, Delta], None] | None] = contextlib.nullcontext()
        if not request.accepts.isdisjoint({ACCEPT_CHUNKS, ACCEPT_PROGRESS}):
            number = InterimAttempt(grant.attempt, self._tries.count, target.progress_seconds)
            interim = interim_messages(context.bus, context.chunk_groups, self._delivery, request, number)
        async with interim as on_text:
            policy = self._tries.policy(target, grant, ends_at, self._waits_until)
            attempt = Attempt(provider, asked, policy, self._pause, on_text, context.time_limits)
            call.task = asyncio.current_task()
            try:
                return await attempt.run()
            except asyncio.CancelledError:
                if not call.take_cancellation():
                    raise
                return attempt.cancelled_result()
            finally:
                call.task = None

    async def _requeue(self, call: InflightCall) -> None:
        """Return the message to its queue, or to its target's backlog."""
        seconds = self._ends_at - asyncio.get_running_loop().time()
        if self._hold is None or not await self._hold.move_to_backlog(seconds, call):
            bus = self._context.bus
            await return_copy(bus, self._delivery, self._target.name, remaining_seconds=seconds, holder=call)

    async def _return_to_queue(self, call: InflightCall, result: AttemptResult) -> None:
        """Settle the attempt and return the call to its queue: no reply is sent, and the call is not charged."""
        await self._settle(result)
        # From here on its message may come again as another one.
        self._context.inflight.remove(call)
        self._context.metrics.calls(self._target.name, GIVEN_BACK).inc()
        if call.held is not None:
            await self._requeue(call)

    async def _settle(self, result: AttemptResult, *, retry_seconds: float | None = None) -> None:
        """Settle an attempt whose call goes on; after a try that counts, its next one waits for so many seconds."""
        running = start_span(settle_span(result.outcome.value)) if self._is_traced else None
        self._context.metrics.attempts(self._target.name, result.outcome.value).inc()
        traceparent = current_traceparent() if running is None else running.traceparent
        told = (self._attempt_id, result.outcome, traceparent, result.fault)
        settle = self._request.settle(
            *told,
            **result.settle_fields(),
            retry_after_ms=None if retry_seconds is None else round(retry_seconds * 1000),
            is_counted=retry_seconds is not None or None,
        )
        await self._context.completion.settle(settle)
        if running is not None:
            running.end()

    async def _finish(
        self,
        answer: Message | Fault,
        outcome: AttemptOutcome | None = None,
        call: InflightCall | None = None,
        wire: bytes = b"",
        stored: bytes = b"",
        attempt: AttemptResult = _NOTHING_SENT,
    ) -> None:
        """Settle the attempt, if it has an ``outcome``, then reply and acknowledge the message.

        If the worker died between a reply and its settle, a second attempt would run and produce another reply.
        """
        code = answer.code if isinstance(answer, Fault) else REPLAYED if getattr(answer, "replayed", False) else OK
        self._context.metrics.calls(self._target.name, code).inc()
        on_settled: OnSettled = no_action
        settle, running = None, None
        if outcome is not None:
            self._context.metrics.attempts(self._target.name, outcome.value).inc()
            running = start_span(settle_span(outcome.value)) if self._is_traced else None
            traceparent = current_traceparent() if running is None else running.traceparent
            settle = self._request.settle(
                *(self._attempt_id, outcome, traceparent, answer, stored),
                is_estimate=self._is_estimate,
                **attempt.settle_fields(),
            )
        if call is not None and outcome not in {None, AttemptOutcome.NEVER_SENT}:
            on_settled = partial(call.settle, answer if isinstance(answer, Result) else None)
        if running is not None:
            on_settled = partial(_end_span, running, on_settled)
        ack = self._delivery.ack if call is None else call.ack
        shares_message = ACCEPT_GROUPS in self._request.accepts
        reply = Reply(self._delivery, answer, self._request.request_id, ack, wire, shares_message)
        try:
            replying_since = await self._context.completion.finish(reply, settle, on_settled)
        finally:
            if running is not None:
                running.end()
        if self._is_traced:
            record_finished_span(_REPLY_SPAN, duration_seconds=time.perf_counter() - replying_since)


def _end_span(running: Span, on_settled: OnSettled) -> None:
    running.end()
    on_settled()

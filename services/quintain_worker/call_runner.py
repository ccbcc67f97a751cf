"""The story of a call in a worker: take, admit, ask, settle, answer, acknowledge, in this order.

A message is acknowledged only after the settle is confirmed into its quorum queue and the reply is confirmed or
returned. If the worker dies before that, or the broker takes the message back, it is redelivered, and the ledger knows
the state of the call. If the worker died between a reply and its settle, a second attempt would run and produce another
reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import partial

from quintain.bus.base import Bus, Delivery
from quintain.bus.failure_log import FailureLog
from quintain.contracts.group import GroupItem
from quintain.contracts.headers import (
    ACCEPT_CHUNKS,
    ACCEPT_PROGRESS,
    DEADLINE_HEADER,
    REQUEST_ID_HEADER,
    TRACEPARENT_HEADER,
)
from quintain.contracts.invoke import FaultReply, Result
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.message import LARGE_REPLY_BYTES
from quintain.errors import (
    BadRequest,
    BrokerRefused,
    BrokerUnavailable,
    BudgetUnavailable,
    Cancelled,
    Expired,
    Fault,
    QueueFull,
    Unroutable,
)
from quintain.observe import logs
from quintain.observe.semconv import ADMIT, QUEUE_WAIT, SpanStart, process_span, reply_span, settle_span
from quintain.observe.spans import Span, current_traceparent, in_span, record_finished_span, span
from quintain.routes import INVOKE
from quintain.rpc.server import ReplyGroups, integer_header
from quintain.runtime.concurrency import ByteBudget, RandomIds, TimeLimits
from quintain.timings import Clock, Timings
from quintain.topology import REPLY, target_queue
from quintain_worker.attempt import Attempt, Try, TryLimits, fault_after
from quintain_worker.call import Call, CallsInFlight, CallStage
from quintain_worker.ledger_client import AdmissionClient, LedgerPort, SettleSender, admission_attributes
from quintain_worker.providers.conversation import ignoring_unsupported
from quintain_worker.providers.provider import CallHolder, OnText
from quintain_worker.response import CallFacts, Reply, compress_reply, reply_of, settle_of
from quintain_worker.returns import return_copy
from quintain_worker.streaming import EXPIRATION_SECONDS, InterimAttempt, interim_messages, progress_after_wait
from quintain_worker.target import GIVEN_BACK, OK, REPLAYED, WorkerMetrics

log = logging.getLogger(__name__)

#: How many bytes of replies of more than `LARGE_REPLY_BYTES` are settled and sent at a time. Until its message is
#: confirmed, a reply takes several times its size; others wait as bytes.
LARGE_REPLIES_BYTES = 32 * 1024 * 1024

_REPLY_SPAN = reply_span(REPLY.name)

#: What an attempt brought that did not begin.
_NEVER_SENT = Try(AttemptOutcome.NEVER_SENT)


class CallRunner:
    """Runs the calls of one worker; it is shared by its targets."""

    def __init__(
        self, bus: Bus, ledger: LedgerPort, clock: Clock, incarnation: str, metrics: WorkerMetrics, timings: Timings
    ) -> None:
        self.bus, self.clock, self.metrics, self.timings = bus, clock, metrics, timings
        self.calls = CallsInFlight(bus)
        self.admissions = AdmissionClient(ledger, clock, incarnation, timings)
        self._incarnation = incarnation
        self.settles = SettleSender(bus, ledger, incarnation, timings)
        self._reply_groups = ReplyGroups(bus)
        self._not_replied = FailureLog(log, "Replies could not be sent, and are repeated", "Replies are sent", bus)
        self._attempt_ids, self._time_limits = RandomIds(), TimeLimits()
        self._chunk_groups = ReplyGroups(bus, int(EXPIRATION_SECONDS * 1000))
        self._large_replies = ByteBudget(LARGE_REPLIES_BYTES)

    async def run(self, call: Call) -> None:
        """Run a call, unless its message is that of one which is in flight here; it waits for its place before."""
        delivery, place = call.message.delivery, call.place
        if await self.calls.take_again(call.target.name, delivery):
            return
        try:
            if place is None or place.try_acquire() or await place.wait(self._remaining_seconds(delivery)):
                await self._read(call)
        finally:
            if place is not None:
                place.release()

    def _remaining_seconds(self, delivery: Delivery) -> float | None:
        """Return the time to a call's deadline; None where it names none, or none that can be read."""
        try:
            deadline = integer_header(delivery.headers, DEADLINE_HEADER)
        except BadRequest:
            return None
        return None if deadline is None else max(0.0, self.clock.seconds_until(deadline))

    async def _read(self, call: Call) -> None:
        """Read what a call says, and answer it."""
        delivery, target = call.message.delivery, call.target.name
        if not delivery.reply_to or not delivery.correlation_id:
            await delivery.dead_letter()
            return
        try:
            call.read(self.clock)
        except Fault as fault:
            await self.answer(call, Reply(fault))
            await call.message.ack()
            return
        logs.log_ids.set({"requestId": call.request_id, "sessionId": call.request.credential.id, "target": target})
        progress: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
        if call.request.wait_until is not None and ACCEPT_PROGRESS in call.request.accepts:
            seconds = call.waits_until - asyncio.get_running_loop().time()
            progress = progress_after_wait(self.bus, delivery, call.request.request_id, seconds, self.timings)
        async with progress:
            parent = delivery.headers.get(TRACEPARENT_HEADER)
            await in_span(partial(_span_start, call), partial(self._take, call), parent=parent)

    async def _take(self, call: Call, process_span: Span | None) -> None:
        """Run a call, unless its message came again while it waited for its place, and has another one."""
        call.is_traced = process_span is not None
        if call.is_traced:
            queued_ms = call.request.age_ms(self.clock.now_ms())
            record_finished_span(QUEUE_WAIT, duration_seconds=queued_ms / 1000)
        if await self.calls.take_again(call.target.name, call.message.delivery):
            return
        self.calls.add(call)
        try:
            await self._run_to_end(call)
        except Exception:
            if call.message.held is call.message.delivery:
                raise
            log.exception("The handler of a call failed; its message, which came again meanwhile, is requeued")
            self.calls.remove(call)
            await call.message.requeue()
        finally:
            self.calls.remove(call)

    async def _run_to_end(self, call: Call) -> None:
        """Ask the ledger for attempts at a call, and run them, until one of them ends it."""
        while True:
            admission = await self._admit(call)
            if admission is None:
                await self._return(call)
            elif isinstance(admission, Fault):
                # A grant may still be on its way: this settle makes it void.
                await self._finish(call, Reply(admission, AttemptOutcome.NEVER_SENT))
            elif admission.fault is not None:
                await self._finish(call, Reply(fault_after(call.tries, admission.fault)))
            elif admission.replay is not None:
                # Only its size is kept: it is encoded again when there is room for it.
                async with self._large_replies.hold(len(admission.replay.to_wire())):
                    await self._finish(call, Reply(admission.replay))
            elif (failed := await self._run_attempt(call, admission)) is not None:
                call.tries.append(failed)
                continue
            return

    async def _admit(self, call: Call) -> Admission | Fault | None:
        """Wait for the ledger's decision on an attempt: a fault where there is none, and None where the call returns to
        its queue."""
        target, place, attempt_id = call.target, call.place, self._attempt_ids.next()
        call.stage = CallStage.WAITING
        on_held = None
        if place is not None:
            on_held = partial(place.begin_waiting, partial(self.admissions.return_call, attempt_id))
        times = {"ends_at": call.ends_at, "waits_until": call.waits_until}
        try:
            with span(ADMIT) if call.is_traced else contextlib.nullcontext() as admit_span:
                call.admit = call.request.admit(
                    *(attempt_id, target.name, current_traceparent()),
                    cost_rule=target.cost_rule,
                    is_tried=bool(call.tries),
                )
                admission = await self.admissions.admit(call.admit, **times, on_held=on_held)
                if place is not None:
                    place.end_waiting()
                if admit_span is not None:
                    admit_span.set_attributes(admission_attributes(admission))
                return admission
        except asyncio.CancelledError:
            if not call.take_cancellation():
                raise
            # Another worker may run the same call too: what is charged is decided elsewhere.
            return Cancelled(charge_unknown=True)
        except (Expired, BudgetUnavailable) as fault:
            return fault
        finally:
            call.stage = CallStage.ENDING

    async def _run_attempt(self, call: Call, grant: Admission) -> Try | None:
        """Run an attempt, and end its call; returns the try after which that asks for another attempt."""
        target = call.target
        queued_ms, configured = call.request.age_ms(self.clock.now_ms()), target.configured_fingerprint()
        ended = await self._ask(call, grant)
        if ended.outcome is AttemptOutcome.RETRY:
            await self._settle(call, ended)
            return ended
        if call.request.published_at is not None:
            self.metrics.queue_seconds(target.name).observe(queued_ms / 1000)
        fingerprint = target.answer_fingerprint(configured, ended.answer)
        reply = reply_of(ended, grant, CallFacts(target.name, queued_ms, fingerprint, target.price, call.tries))
        ended = ended._replace(answer=None)
        if len(reply.wire) <= LARGE_REPLY_BYTES:
            await self._finish(call, reply._replace(stored=reply.wire if grant.store_replies else b""), ended)
            return None
        # Its bytes wait until there is room: as text each character takes four of them if one of all needs four.
        outcome, wire = reply.outcome, reply.wire
        del reply
        async with self._large_replies.hold(len(wire)):
            stored = await asyncio.to_thread(compress_reply, wire) if grant.store_replies else b""
            await self._finish(call, Reply(Result.from_wire(wire), outcome, wire, stored), ended)
        return None

    async def _ask(self, call: Call, grant: Admission) -> Try:
        """Ask the provider, and meanwhile send the caller the chunks and progress messages that it asked for."""
        target, request = call.target, call.request
        asked = request.request
        assert asked is not None, "the ledger refuses a request with a problem"
        if target.ignore_unsupported or grant.ignore_unsupported:
            asked = ignoring_unsupported(asked)
        call.granted_at = asyncio.get_running_loop().time()
        ends_at = call.granted_at + self.clock.seconds_until(grant.deadline)
        limits = TryLimits.of(target, call.tries, ends_at, call.waits_until)
        holder = CallHolder(request.credential.id, request.request_id, call.admit.attempt_id, self._incarnation)
        interim: contextlib.AbstractAsyncContextManager[OnText | None] = contextlib.nullcontext()
        if not request.accepts.isdisjoint({ACCEPT_CHUNKS, ACCEPT_PROGRESS}):
            number = InterimAttempt(grant.attempt, len(call.tries), target.progress_seconds)
            interim = interim_messages(self.bus, self._chunk_groups, call.message.delivery, request, number)
        async with interim as on_text:
            attempt = Attempt(*(target, asked, grant, holder, limits, self.metrics, self._time_limits, on_text))
            call.stage = CallStage.RUNNING
            try:
                return await attempt.run()
            except asyncio.CancelledError:
                if not call.take_cancellation():
                    raise
                return attempt.cancelled()
            finally:
                call.stage = CallStage.ENDING

    async def _settle(self, call: Call, ended: Try, reply: Reply | None = None) -> None:
        """Tell the ledger how an attempt ended; without a reply its call goes on."""
        outcome = ended.outcome if reply is None or reply.outcome is None else reply.outcome
        self.metrics.attempts(call.target.name, outcome.value).inc()
        with span(settle_span(outcome.value)) if call.is_traced else contextlib.nullcontext():
            settle = settle_of(call.request.credential.id, call.admit, ended, reply, current_traceparent())
            await self.settles.settle(settle)

    async def _finish(self, call: Call, reply: Reply, ended: Try = _NEVER_SENT) -> None:
        """Settle the attempt, if there is one; then answer the call, and acknowledge its message."""
        answer = reply.answer
        code = answer.code if isinstance(answer, Fault) else REPLAYED if answer.replayed else OK
        self.metrics.calls(call.target.name, code).inc()
        if reply.outcome is not None:
            await self._settle(call, ended, reply)
        replying_since = time.perf_counter()
        await self.answer(call, reply)
        await call.message.ack()
        if call.is_traced:
            record_finished_span(_REPLY_SPAN, duration_seconds=time.perf_counter() - replying_since)

    async def answer(self, call: Call, reply: Reply) -> None:
        """Send the reply to a call until it is confirmed, or returned because its caller is gone."""
        delivery, answer = call.message.delivery, reply.answer
        kind, message = ("fault", FaultReply.from_fault(answer)) if isinstance(answer, Fault) else ("result", answer)
        headers = {REQUEST_ID_HEADER: call.request_id}
        item = GroupItem(delivery.correlation_id or "", reply.wire or message.to_wire(), headers, kind)
        while True:
            sent: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
            on_sent = partial(_note_sent, sent)
            self._reply_groups.add(delivery.reply_to or "", item, on_sent, alone=not call.reads_groups)
            error = await sent
            if not isinstance(error, BrokerUnavailable | BrokerRefused):
                break
            self._not_replied.failed(error)
            await asyncio.sleep(self.timings.publish_pause_seconds)
        self._not_replied.worked()
        if isinstance(error, Unroutable | QueueFull):
            log.info("A reply was dropped: the client's reply queue is gone or full")
        elif error is not None:
            raise error

    async def _return(self, call: Call) -> None:
        """Return a call to its queue, or to its target's backlog: no reply is sent, and it is not charged."""
        target, message = call.target.name, call.message
        await self._settle(call, _NEVER_SENT)
        # From here on its message may come again as another one.
        self.calls.remove(call)
        self.metrics.calls(target, GIVEN_BACK).inc()
        if message.held is None:
            return
        seconds = call.ends_at - asyncio.get_running_loop().time()
        if call.place is None or not await call.place.move_to_backlog(seconds, message):
            await return_copy(self.bus, message.delivery, target, remaining_seconds=seconds, holder=message)


def _note_sent(sent: asyncio.Future[Exception | None], error: Exception | None) -> None:
    if not sent.done():  # of a call that was cancelled
        sent.set_result(error)


def _span_start(call: Call) -> SpanStart:
    target = call.target.name
    ids = {"request_id": call.request_id, "session_id": call.request.credential.id, "target": target}
    return process_span(INVOKE.exchange.name, target, target_queue(target).name, **ids)

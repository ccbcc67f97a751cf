"""One leased instance: executes its controller's requests in order, each once.

The lease ends with the teardown, or when its controller stops renewing it.

Requests are acknowledged on receipt and answered by request id: a repeated request gets the stored answer. An
unreadable request is answered when it names a reply queue, and dropped otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from quintain.bus.base import Bus, Delivery
from quintain.contracts.headers import TRACEPARENT_HEADER
from quintain.contracts.message import MAX_BODY_BYTES
from quintain.contracts.remote_target import (
    RUN_INPUT_TYPE,
    BareLeaseRequest,
    CancelRun,
    LeaseRequest,
    LeaseResult,
    Query,
    RunInput,
    SetConfig,
    StartRun,
    Teardown,
)
from quintain.contracts.values import replace_surrogates
from quintain.errors import BadRequest, BusError, Fault
from quintain.observe.semconv import lease_request_span
from quintain.observe.spans import Span, span_in_trace
from quintain.remote.lease import SilenceMeter
from quintain.routes import CANCEL_RUN, DESCRIBE, QUERY, RENEW, RESET, SET_CONFIG, START_RUN, TEARDOWN
from quintain.rpc.private_queues import PrivateQueue
from quintain.rpc.server import AckBatcher, log_defect, send_reply
from quintain.target.codec import Codec
from quintain.target.exceptions import to_failure
from quintain.target.type_registry import require_size
from quintain.timings import Timings
from quintain_host.counters import HostCounters
from quintain_host.instances import InstanceThread
from quintain_host.run import EventSender, HostedRun

log = logging.getLogger(__name__)

#: How many answers are kept for repeated requests. A controller sends one request after another.
MAX_STORED_ANSWERS = 32

#: How many run messages are acknowledged together. A run message that is redelivered has no second effect.
ACK_BATCH_SIZE = 16


class HostedLease:
    """One instance on its own thread, leased to one controller; ``queue`` is the one of its requests."""

    def __init__(  # noqa: PLR0913 -- one lease with all its collaborators
        self,
        bus: Bus,
        queue: PrivateQueue,
        target: Any,
        instance_thread: InstanceThread,
        codec: Codec,
        *,
        counters: HostCounters,
        timings: Timings,
    ) -> None:
        self._bus, self._target, self._instance_thread, self._codec = bus, target, instance_thread, codec
        self._counters, self._timings = counters, timings
        self._queue, self.key = queue, queue.key
        self.lease_id = queue.key.rpartition("/")[2]
        self._answers: OrderedDict[str, asyncio.Task[LeaseResult]] = OrderedDict()
        self._request_lock = asyncio.Lock()
        self._run: HostedRun | None = None
        self._teardown_task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._silence = SilenceMeter(timings.host_heartbeat_seconds / 2)
        self._ack_batcher = AckBatcher(ACK_BATCH_SIZE)

    async def open(self) -> None:
        """Answer the controller's requests from now on."""
        await self._queue.open(self._on_message)

    async def wait_closed(self) -> None:
        """Wait until the instance was torn down, or no message came for `Timings.host_lost_seconds`."""
        silent_seconds = 0.0
        while not self._ended.is_set() and silent_seconds < self._timings.host_lost_seconds:
            silent_seconds = await self._silence.wait_interval(self._ended)
        if not self._ended.is_set():
            log.warning("Lease %s was not renewed for %.0f s: it ends", self.lease_id[:8], silent_seconds)

    def end_if_unused(self) -> None:
        """End the lease soon if its controller has sent no request.

        Such a lease was prefetched, and another host can give another one. The method waits
        `Timings.host_first_question_seconds`, because the first request of a new lease may be on its way.
        """
        asyncio.get_running_loop().call_later(self._timings.host_first_question_seconds, self._end_if_unused)

    def _end_if_unused(self) -> None:
        if not self._answers:
            self._ended.set()

    async def close(self) -> bool:
        """Stop the run and tear the instance down; `close_queue` is still to be called.

        Returns whether the instance's thread ended: False where it is blocked and was left behind.
        """
        try:
            if self._teardown_task is not None:
                # The controller requested this teardown: let it finish within the limit.
                await asyncio.wait([self._teardown_task], timeout=self._timings.host_lost_seconds)
            self._cancel_requests()
            await self._stop_run()
            if self._teardown_task is None:
                try:
                    async with asyncio.timeout(2 * self._timings.host_lost_seconds):
                        await self._teardown(reset=True)
                except Exception:
                    # There is no controller any more that could get the error.
                    log.exception("A target failed while its lapsed lease was ended")
        finally:
            if self._teardown_task is not None:
                self._teardown_task.cancel()
            is_thread_ended = await self._instance_thread.close()
            # Nothing else refers to the instance: its memory is free before the next lease.
            self._target = self._run = None
        return is_thread_ended

    async def close_queue(self) -> None:
        """Stop consuming requests. Raises nothing but a cancellation."""
        await self._queue.close(handler_seconds=1.0)

    async def _stop_run(self) -> None:
        if self._run is not None:
            self._run.cancel()
            await self._run.wait_ended()

    async def _on_message(self, delivery: Delivery) -> None:
        self._silence.record()
        if delivery.type == RUN_INPUT_TYPE:
            self._on_run_message(delivery)
            await self._ack_batcher.add(delivery)
            return
        await delivery.ack()
        answer: LeaseResult | Fault
        try:
            with self._span_for(delivery):
                answer = await self._answer(delivery)
        except Fault as fault:
            answer = fault
        except Exception as error:
            # The controller must get an answer even after a defect.
            answer = log_defect(error, f"answering {delivery.type}")
        if delivery.type == TEARDOWN.key:
            # The slot is free from now on; the reply is on its way meanwhile.
            self._ended.set()
        await self._reply(delivery, answer)

    def _span_for(self, delivery: Delivery) -> AbstractContextManager[Span]:
        """Open a span in the controller's trace; heartbeats get none."""
        if delivery.type == RENEW.key:
            return nullcontext(Span())
        span_start = lease_request_span(delivery.type if delivery.type in LEASE_OPERATIONS else "unknown")
        return span_in_trace(span_start, delivery.headers.get(TRACEPARENT_HEADER))

    async def _reply(self, delivery: Delivery, answer: LeaseResult | Fault) -> None:
        try:
            await send_reply(self._bus, delivery, answer)
        except BadRequest as bad_request:
            # A name or a description of the target holds a lone surrogate, which cannot be encoded as UTF-8.
            await send_reply(self._bus, delivery, bad_request)
        except BusError as error:
            log.warning(
                "The answer to a %s could not be sent; the controller repeats its request: %s",
                delivery.type,
                error.message,
            )

    def _on_run_message(self, delivery: Delivery) -> None:
        try:
            message = RunInput.from_wire(delivery.body)
        except BadRequest as error:
            log.warning("An unreadable run message was dropped: %s", error.message)
            return
        if self._run is not None and self._run.run_id == message.run_id:
            self._run.on_message(message)

    async def _answer(self, delivery: Delivery) -> LeaseResult:
        if delivery.type == RENEW.key:
            return LeaseResult()
        if delivery.type not in LEASE_OPERATIONS:
            raise BadRequest(f"{delivery.type!r} is not an operation of a lease")
        request_class, operation = LEASE_OPERATIONS[delivery.type]
        request = request_class.from_wire(delivery.body)
        if request.request_id not in self._answers:
            if delivery.type == TEARDOWN.key:
                # It does not wait for a request that may never end.
                self._cancel_requests()
            execution = self._execute(lambda: operation(self, request))
            self._answers[request.request_id] = asyncio.get_running_loop().create_task(execution)
            if len(self._answers) > MAX_STORED_ANSWERS:
                self._answers.popitem(last=False)
        return await asyncio.shield(self._answers[request.request_id])

    async def _execute(self, operation: Callable[[], Awaitable[LeaseResult]]) -> LeaseResult:
        try:
            async with self._request_lock:
                return _require_sendable(await operation())
        except asyncio.CancelledError:
            return LeaseResult(failure=to_failure(RuntimeError("The request was ended: its instance is torn down")))
        except Exception as error:
            # A target's exception is sent with its class, so that the controller can raise the same.
            return LeaseResult(failure=to_failure(error))

    def _cancel_requests(self) -> None:
        for answer in self._answers.values():
            answer.cancel()

    async def describe(self, _: LeaseRequest) -> LeaseResult:
        """Return what the target exposes in its current configuration."""
        return LeaseResult(descriptor=await self._instance_thread.call(lambda: self._codec.describe(self._target)))

    async def set_config(self, request: SetConfig) -> LeaseResult:
        """Set configuration slots of the target; the first one that fails ends it."""
        for name, value in request.values.items():
            await self._instance_thread.call(partial(self._target.set_config, name, value))
        if request.described:
            # A description that fails is asked for again, and then its error is raised.
            with contextlib.suppress(Exception):
                return _require_sendable(await self.describe(request))
        return LeaseResult()

    async def query(self, request: Query) -> LeaseResult:
        """Query the target. Raises `TypeError` where its answer is not a string."""
        value = await self._instance_thread.call(lambda: self._target.query(request.name, **request.params))
        if not isinstance(value, str):
            raise TypeError(
                f"The query {request.name!r} was answered with a {type(value).__name__}: a target's values are text"
            )
        return LeaseResult(value=replace_surrogates(value))

    async def start_run(self, request: StartRun) -> LeaseResult:
        """Start a run; its events go to the controller in a stream of their own (`EventSender`)."""
        await self._stop_run()
        event_sender = EventSender(self._bus, request.run_id, request.run_key, self._timings)
        self._run = HostedRun(self._target, self._instance_thread, self._codec, request, event_sender)
        self._run.on_ended(self._counters.count)
        return LeaseResult()

    async def cancel_run(self, request: CancelRun) -> LeaseResult:
        """Stop this run, because the controller no longer waits for it; another run is left alone."""
        if self._run is not None and self._run.run_id == request.run_id:
            await self._stop_run()
        return LeaseResult()

    async def reset(self, _: BareLeaseRequest) -> LeaseResult:
        """Reset the target's state of the last run (``reset_ephemeral_state``)."""
        await self._instance_thread.run(_await(self._target.reset_ephemeral_state))
        return LeaseResult()

    async def teardown(self, request: Teardown) -> LeaseResult:
        """Tear the target down; the lease ends afterwards, even where the teardown fails.

        Raises `TimeoutError` where the target blocks its thread.
        """
        await self._teardown(reset=request.reset)
        return LeaseResult()

    async def _teardown(self, *, reset: bool) -> None:
        """Run the target's teardown once; later callers wait for the same one."""
        if self._teardown_task is None:
            self._teardown_task = asyncio.get_running_loop().create_task(self._run_teardown(reset=reset))
        await asyncio.shield(self._teardown_task)

    async def _run_teardown(self, *, reset: bool) -> None:
        try:
            async with asyncio.timeout(self._timings.host_lost_seconds):
                await self._instance_thread.call(lambda: None)
        except TimeoutError:
            raise TimeoutError(
                "The target blocks its thread: its teardown did not run, and its slot is replaced"
            ) from None
        if reset:
            try:
                async with asyncio.timeout(self._timings.host_lost_seconds):
                    await self._instance_thread.run(_await(self._target.reset_ephemeral_state))
            except Exception:
                # The outcome of the run is known; the teardown goes on.
                log.exception("A target was not reset before its teardown")
        await self._instance_thread.run(_await(self._target.teardown))


LeaseOperation = Callable[[HostedLease, Any], Awaitable[LeaseResult]]

#: The operations of a lease: message type → request class and the method that executes it.
LEASE_OPERATIONS: dict[str, tuple[type[LeaseRequest], LeaseOperation]] = {
    DESCRIBE.key: (BareLeaseRequest, HostedLease.describe),
    SET_CONFIG.key: (SetConfig, HostedLease.set_config),
    QUERY.key: (Query, HostedLease.query),
    START_RUN.key: (StartRun, HostedLease.start_run),
    CANCEL_RUN.key: (CancelRun, HostedLease.cancel_run),
    RESET.key: (BareLeaseRequest, HostedLease.reset),
    TEARDOWN.key: (Teardown, HostedLease.teardown),
}


def _require_sendable(result: LeaseResult) -> LeaseResult:
    """Return the result. Raises `ValueError` if it is too large for the broker."""
    with contextlib.suppress(BadRequest):  # text that cannot be encoded is refused when it is sent
        require_size(len(result.to_wire()), MAX_BODY_BYTES, "The answer")
    return result


async def _await(function: Callable[[], Awaitable[None]]) -> None:
    await function()

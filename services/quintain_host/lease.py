"""One leased instance: carries out its driver's requests in order, each once.

The lease ends with the teardown, or when nothing is heard of its driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from quintain.bus.base import Bus, Delivery
from quintain.contracts.hosting import (
    LEASE_TYPE,
    CancelRun,
    DescribeTarget,
    DriverItem,
    DriverMessage,
    EventReply,
    LeaseEnded,
    LeaseOffered,
    LeaseRequest,
    LeaseResult,
    OpenLease,
    QueryTarget,
    ResetTarget,
    RunTarget,
    SetConfig,
    Teardown,
)
from quintain.contracts.values import replace_surrogates
from quintain.errors import BadRequest
from quintain.observe.semconv import lease_request_span
from quintain.observe.spans import span_in_trace
from quintain.remote.stream import MAX_ITEM_BYTES, LeaseStream
from quintain.rpc.private_queues import PrivateQueue
from quintain.target.codec import Codec
from quintain.target.exceptions import to_failure
from quintain.target.type_registry import require_size
from quintain.timings import Timings
from quintain.topology import REPLY
from quintain_host.instances import InstanceThread
from quintain_host.run import HostedRun

log = logging.getLogger(__name__)

#: How long the last messages of a lease may take, in seconds.
CLOSE_SECONDS = 1.0


class HostedLease:
    """One instance on its own thread, leased to one driver; ``queue`` is that of this lease.

    ``on_address`` is called with the lease's id and its driver's routing key when that changes, ``on_run_ended`` with
    how each run ended.
    """

    def __init__(  # noqa: PLR0913 -- one lease with all its collaborators
        self,
        bus: Bus,
        queue: PrivateQueue,
        lease_id: str,
        instance_thread: InstanceThread,
        *,
        on_address: Callable[[str, str], None],
        on_run_ended: Callable[[str], None],
        timings: Timings,
    ) -> None:
        self._queue, self.instance_thread, self._timings = queue, instance_thread, timings
        self._on_address, self._on_run_ended = on_address, on_run_ended
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stream = LeaseStream(
            *(bus, REPLY, lease_id, DriverMessage, self._on_items),
            get_own_key=lambda: queue.key,
            on_broken=self._on_broken,
            ended=self._ended,
            timings=timings,
        )
        #: That of the request for the lease.
        self.traceparent: str | None = None
        self._target: Any = None
        self._codec: Codec | None = None
        self._requests: set[asyncio.Task[None]] = set()
        #: Held by the request that is carried out, and until there is an instance.
        self._request_lock = asyncio.Lock()
        self._run: HostedRun | None = None
        self._teardown_task: asyncio.Task[None] | None = None

    async def offer(self, request: Delivery, host_id: str) -> None:
        """Tell the driver that its request was taken, and receive its messages. Raises `Unroutable`, `BusError`."""
        await self._request_lock.acquire()
        await self._queue.open(self._on_delivery)
        self._receive(request)
        await self._stream.send_now(LeaseOffered(host_id=host_id))
        self._stream.start_beating()

    async def open(self, result: LeaseResult, target: Any = None, codec: Codec | None = None) -> None:
        """Tell the driver of its instance, and carry out its requests. Raises `Unroutable`, `BusError`."""
        self._target, self._codec = target, codec
        await self._stream.send_now(result)
        self._request_lock.release()

    async def wait_closed(self) -> None:
        """Wait until the instance was torn down, or no message came for `Timings.host_lost_seconds`."""
        if silent_seconds := await self._stream.wait_silent():
            log.warning(
                "Nothing was heard of the driver of lease %s for %.0f s: it ends",
                self._stream.lease_id[:8],
                silent_seconds,
            )

    def end_if_unused(self) -> None:
        """End the lease soon if its driver has sent no request.

        Such a lease was prefetched, and another host can give another one. The method waits
        `Timings.host_first_question_seconds`, because the first request of a new lease may be on its way.
        """
        asyncio.get_running_loop().call_later(self._timings.host_first_question_seconds, self._end_if_unused)

    def _end_if_unused(self) -> None:
        if self._stream.received <= 1:
            self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def close(self) -> bool:
        """Stop the run and tear the instance down; `close_queue` is still to be called.

        Returns whether the instance's thread ended: False where it is blocked and was left behind.
        """
        try:
            if self._teardown_task is not None:
                # The driver requested this teardown: let it finish within the limit.
                await asyncio.wait([self._teardown_task], timeout=self._timings.host_lost_seconds)
            self._cancel_requests()
            await self._stop_run()
            if self._teardown_task is None and self._target is not None:
                try:
                    async with asyncio.timeout(2 * self._timings.host_lost_seconds):
                        await self._tear_down(reset=True)
                except Exception:
                    # There is no driver any more that could get the error.
                    log.exception("A target failed while its lapsed lease was ended")
        finally:
            if self._teardown_task is not None:
                self._teardown_task.cancel()
            is_thread_ended = await self.instance_thread.close()
            # Nothing else refers to the instance: its memory is free before the next lease.
            self._target = self._run = None
        return is_thread_ended

    async def close_queue(self) -> None:
        """Send what is left, and delete the queue, which tells the driver of the end. Raises only a cancellation."""
        self._end()
        await self._stream.close(CLOSE_SECONDS)
        await self._queue.close()

    async def _on_delivery(self, delivery: Delivery) -> None:
        if delivery.type == LEASE_TYPE and delivery.correlation_id == self._stream.lease_id:
            self._receive(delivery)
        await delivery.ack()

    def _receive(self, delivery: Delivery) -> None:
        address = self._stream.key
        self._stream.on_delivery(delivery)
        if self._stream.key != address:
            self._on_address(self._stream.lease_id, self._stream.key)

    def _on_broken(self, reason: str) -> None:
        log.error("Lease %s ends: %s", self._stream.lease_id[:8], reason)
        self._stream.send(LeaseEnded(reason=reason).to_wire())
        self._end()

    def _on_items(self, first: int, items: Sequence[DriverItem]) -> None:
        replies: list[EventReply] = []
        for number, item in enumerate(items, first):
            if isinstance(item, EventReply):
                replies.append(item)
            elif isinstance(item, OpenLease):
                # The slot answers it.
                self.traceparent = item.traceparent
            else:
                if isinstance(item, Teardown):
                    # It does not wait for a request that may never end.
                    self._cancel_requests()
                task = asyncio.get_running_loop().create_task(self._carry_out(number, item))
                self._requests.add(task)
                task.add_done_callback(partial(self._on_carried_out, number))
        if replies and self._run is not None:
            self._run.on_replies(replies)

    def _cancel_requests(self) -> None:
        for request in self._requests:
            request.cancel()

    async def _carry_out(self, number: int, request: LeaseRequest) -> None:
        try:
            with span_in_trace(lease_request_span(request.type), request.traceparent):
                async with self._request_lock:
                    body = await self._result(number, request)
        except Exception as error:
            # A target's exception is sent with its class, so that the driver can raise the same.
            body = _failed(number, error)
        if body:
            self._stream.send(body)
        if isinstance(request, Teardown):
            self._end()

    def _on_carried_out(self, number: int, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        if task.cancelled():
            # Perhaps before it began.
            self._stream.send(_failed(number, RuntimeError("The request was ended: its instance is torn down")))

    async def _result(self, number: int, request: LeaseRequest) -> bytes:
        """Carry a request out, and return its result; that of a run comes when it ends."""
        match request:
            case SetConfig():
                return await self._set_config(number, request)
            case DescribeTarget():
                return await self._describe(number)
            case QueryTarget():
                return _result_body(number, value=await self._query(request))
            case RunTarget():
                await self._stop_run()
                assert self._codec is not None, "requests wait for the instance"
                self._run = HostedRun(
                    *(self._target, self.instance_thread, self._codec, number, request, self._stream),
                    self._on_run_ended,
                )
                return b""
            case CancelRun() if self._run is not None and self._run.number == request.to:
                await self._stop_run()
            case ResetTarget():
                await self.instance_thread.run(_await(self._target.reset_ephemeral_state))
            case Teardown():
                await self._tear_down(reset=request.reset)
        return _result_body(number)

    async def _stop_run(self) -> None:
        if self._run is not None:
            await self._run.stop()

    async def _describe(self, number: int) -> bytes:
        codec = self._codec
        assert codec is not None, "requests wait for the instance"
        descriptor = await self.instance_thread.call(lambda: codec.describe(self._target))
        return _result_body(number, descriptor=descriptor)

    async def _set_config(self, number: int, request: SetConfig) -> bytes:
        for name, value in request.values.items():
            await self.instance_thread.call(partial(self._target.set_config, name, value))
        if request.described:
            # A description that fails is asked for again, and then its error is raised.
            with contextlib.suppress(Exception):
                return await self._describe(number)
        return _result_body(number)

    async def _query(self, request: QueryTarget) -> str:
        value = await self.instance_thread.call(lambda: self._target.query(request.name, **request.params))
        if not isinstance(value, str):
            raise TypeError(
                f"The query {request.name!r} was answered with a {type(value).__name__}: a target's values are text"
            )
        return replace_surrogates(value)

    async def _tear_down(self, *, reset: bool) -> None:
        """Run the target's teardown once; later callers wait for the same one.

        Raises `TimeoutError` where the target blocks its thread.
        """
        await self._stop_run()
        if self._teardown_task is None:
            self._teardown_task = asyncio.get_running_loop().create_task(self._run_teardown(reset=reset))
        await asyncio.shield(self._teardown_task)

    async def _run_teardown(self, *, reset: bool) -> None:
        try:
            async with asyncio.timeout(self._timings.host_lost_seconds):
                await self.instance_thread.call(lambda: None)
        except TimeoutError:
            raise TimeoutError(
                "The target blocks its thread: its teardown did not run, and its slot is replaced"
            ) from None
        if reset:
            try:
                async with asyncio.timeout(self._timings.host_lost_seconds):
                    await self.instance_thread.run(_await(self._target.reset_ephemeral_state))
            except Exception:
                # The outcome of the run is known; the teardown goes on.
                log.exception("A target was not reset before its teardown")
        await self.instance_thread.run(_await(self._target.teardown))


def _result_body(number: int, **fields: Any) -> bytes:
    """Return a result as JSON. Raises `ValueError` if it is too large for the broker."""
    body = LeaseResult(to=number, **fields).to_wire()
    require_size(len(body), MAX_ITEM_BYTES, "The answer")
    return body


def _failed(number: int, error: Exception) -> bytes:
    if isinstance(error, BadRequest):
        # A name or a description of the target holds a lone surrogate, which cannot be encoded as UTF-8.
        error = ValueError(error.message)
    return LeaseResult(to=number, failure=to_failure(error)).to_wire()


async def _await(function: Callable[[], Awaitable[None]]) -> None:
    await function()

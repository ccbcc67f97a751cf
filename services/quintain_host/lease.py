"""One leased instance: carries out its driver's requests in order, each once.

The lease ends with the teardown, or when nothing is heard of its driver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from quintain.bus.base import Bus, Delivery
from quintain.config.python_imports import OWN_SECRETS
from quintain.contracts import hosting
from quintain.contracts.values import replace_surrogates
from quintain.errors import BadRequest
from quintain.observe import logs
from quintain.observe.semconv import lease_request_span
from quintain.observe.spans import span_in_trace
from quintain.remote.stream import LeaseStream, encode_item
from quintain.rpc.own_queues import OwnQueue
from quintain.target.codec import Codec
from quintain.target.exceptions import to_failure
from quintain.timings import Timings
from quintain.topology import REPLY
from quintain_host.counters import HostCounters
from quintain_host.instances import InstanceThread
from quintain_host.run import HostedRun

log = logging.getLogger(__name__)

#: How long the last messages of a lease may take, in seconds.
CLOSE_SECONDS = 1.0


class HostedLease:
    """One instance on its own thread, leased to one driver; ``queue`` is that of this lease."""

    def __init__(
        self,
        bus: Bus,
        queue: OwnQueue,
        lease_id: str,
        instance_thread: InstanceThread,
        *,
        counters: HostCounters,
        timings: Timings,
    ) -> None:
        self._queue, self.instance_thread, self._timings = queue, instance_thread, timings
        self._counters = counters
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stream = LeaseStream(
            *(bus, REPLY, lease_id, self._on_items),
            get_own_key=lambda: queue.key,
            on_broken=self._on_broken,
            ended=self._ended,
            timings=timings,
        )
        #: Those of the request for the lease.
        self.traceparent: str | None = None
        self.request_id: str | None = None
        self._target: Any = None
        self._codec: Any = None
        self._requests: set[asyncio.Task[None]] = set()
        #: Held by the request that is carried out, and until there is an instance.
        self._request_lock = asyncio.Lock()
        self._run: HostedRun | None = None
        #: The driver's request for the teardown.
        self._teardown: asyncio.Task[None] | None = None

    async def offer(self, request: Delivery, host_id: str) -> None:
        """Tell the driver that its request was taken, and receive its messages. Raises `Unroutable`, `BusError`."""
        await self._request_lock.acquire()
        self._queue.handler = self._on_delivery
        await self._queue.open()
        self._receive(request)
        await self._stream.send_now(hosting.LeaseOffered(host_id=host_id))
        self._stream.start_beating()

    async def open(self, result: hosting.LeaseResult, target: Any = None, codec: Codec | None = None) -> None:
        """Tell the driver of its instance, and carry out its requests. Raises `Unroutable`, `BusError`."""
        self._target, self._codec = target, codec
        self._request_lock.release()
        await self._stream.send_now(result)

    async def wait_closed(self) -> None:
        """Wait until the instance was torn down, or no message came for `Timings.host_lost_seconds`."""
        await asyncio.wait([self._ended])

    def end_if_unused(self) -> None:
        """End the lease soon if its driver has sent no request.

        Such a lease was prefetched, and another host can give another one. The method waits
        `Timings.host_first_question_seconds`, because the first request of a new lease may be on its way.
        """

        def end() -> None:
            if self._stream.received <= 1:
                self._end()

        asyncio.get_running_loop().call_later(self._timings.host_first_question_seconds, end)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def close(self) -> bool:
        """Stop the run and tear the instance down; `close_queue` is still to be called.

        Returns whether the instance's thread ended: False where it is blocked and was left behind.
        """
        if self._teardown is None:
            self._cancel_requests()
        teardown = self._teardown or asyncio.create_task(self._tear_down(reset=True))
        await asyncio.wait([teardown], timeout=2 * self._timings.host_lost_seconds)
        teardown.cancel()
        (error,) = await asyncio.gather(teardown, return_exceptions=True)
        if isinstance(error, Exception):
            # There is no driver any more that could get it.
            log.error("A target failed while its lapsed lease was ended", exc_info=error)
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
        if delivery.type == hosting.LEASE_TYPE and delivery.correlation_id == self._stream.lease_id:
            self._receive(delivery)
        await delivery.ack()

    def _receive(self, delivery: Delivery) -> None:
        address = self._stream.key
        self._stream.on_delivery(delivery)
        if self._stream.key != address:
            self._counters.on_address(self._stream.lease_id, self._stream.key)

    def _on_broken(self, reason: str) -> None:
        log.warning("The lease %s of a driver ends: %s", self._stream.lease_id[:8], reason)
        self._stream.send(encode_item(hosting.LeaseEnded(reason=reason)))
        self._end()

    def _on_items(self, first: int, items: Sequence[hosting.DriverItem]) -> None:
        replies: list[hosting.EventReply] = []
        for number, item in enumerate(items, first):
            match item:
                case hosting.EventReply():
                    replies.append(item)
                case hosting.OpenLease():
                    # The slot answers it.
                    self.traceparent, self.request_id = item.traceparent, item.request_id
                case hosting.Teardown():
                    # It does not wait for a request that may never end.
                    self._cancel_requests()
                    self._teardown = asyncio.create_task(self._carry_out(number, item))
                case _:
                    task = asyncio.create_task(self._carry_out(number, item))
                    self._requests.add(task)
                    task.add_done_callback(partial(self._on_carried_out, number))
        if replies and self._run is not None:
            self._run.on_replies(replies)

    def _cancel_requests(self) -> None:
        for request in self._requests:
            request.cancel()

    async def _carry_out(self, number: int, request: hosting.LeaseRequest) -> None:
        try:
            trace = span_in_trace(lease_request_span(request.type), request.traceparent)
            with trace, logs.log_context(request_id=self.request_id):
                async with self._request_lock:
                    log.debug("A lease carries out %s", request.type)
                    fields = await self._result(number, request)
            if fields is not None:
                self._stream.send(encode_item(hosting.LeaseResult(to=number, **fields)))
        except Exception as error:
            # A target's exception is sent with its class, so that the driver can raise the same.
            self._fail(number, error)
        if isinstance(request, hosting.Teardown):
            self._end()

    def _on_carried_out(self, number: int, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        if task.cancelled():
            # Perhaps before it began.
            self._fail(number, RuntimeError("The request was ended: its instance is torn down"))

    def _fail(self, number: int, error: Exception) -> None:
        if isinstance(error, BadRequest):
            # A name or a description of the target holds a lone surrogate, which cannot be encoded as UTF-8.
            error = ValueError(error.message)
        self._stream.send(encode_item(hosting.LeaseResult(to=number, failure=to_failure(error, OWN_SECRETS))))

    async def _result(self, number: int, request: hosting.LeaseRequest) -> dict[str, Any] | None:
        """Carry a request out, and return what its result has; None for a run, whose result comes when it ends."""
        thread, target, codec = self.instance_thread, self._target, self._codec
        match request:
            case hosting.SetConfig():
                for name, value in request.values.items():
                    await thread.call(partial(target.set_config, name, value))
            case hosting.DescribeTarget():
                return {"descriptor": await thread.call(lambda: codec.describe(target))}
            case hosting.QueryTarget():
                value = await thread.call(lambda: target.query(request.name, **request.params))
                return {"value": replace_surrogates(_require_text(value, request.name))}
            case hosting.RunTarget():
                await self._stop_run()
                self._run = HostedRun(target, thread, codec, number, request, self._stream, self._counters.count)
                return None
            case hosting.CancelRun() if self._run is not None and self._run.number == request.to:
                await self._stop_run()
            case hosting.ResetTarget():
                await thread.run(_await(target.reset_ephemeral_state))
            case hosting.Teardown():
                await self._tear_down(reset=request.reset)
        return {}

    async def _stop_run(self) -> None:
        if self._run is not None:
            await self._run.stop()

    async def _tear_down(self, *, reset: bool) -> None:
        """Run the target's teardown. Raises what that raises, and `TimeoutError` where the target blocks its thread."""
        await self._stop_run()
        if self._target is None:
            return
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


def _require_text(value: Any, query: str) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"The query {query!r} returned {type(value).__name__}, not str: return its text, as with str(...)")


async def _await(function: Callable[[], Awaitable[None]]) -> None:
    await function()

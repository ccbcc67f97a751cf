"""Drives one run of a leased instance on the application's event loop: items in order, one task per event.

It uses callbacks instead of a task that awaits items, because each await would delay a reply by one loop iteration.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from quintain.contracts.hosting import CancelRun, EmitEvent, EventReply, LeaseResult, LogLine, SendEvent
from quintain.contracts.remote_target import WireResponse
from quintain.errors import HostLost
from quintain.remote.connection_thread import Executor
from quintain.remote.lease import DEFAULT_TIMEOUTS, RemoteLease, RunItems, TargetTimeouts
from quintain.remote.stream import encode_item
from quintain.remote.trajectory_recorder import TrajectoryRecorder
from quintain.runtime.concurrency import cancel_and_wait, start_task
from quintain.target.codec import Codec, write_response
from quintain.target.types import local_now

#: How long items are processed before other tasks of the application's loop run, in seconds.
MAX_HOLD_SECONDS = 0.01


def forward_log_line(line: LogLine) -> None:
    """Write a log record of the hosted target to this process's log."""
    logging.getLogger(line.logger).log(line.level, "%s", line.text)


class RunDriver:
    """One run, from its start until its end or the loss of its host."""

    def __init__(  # noqa: PLR0913 -- one run with all its collaborators
        self,
        executor: Executor,
        lease: RemoteLease,
        codec: Codec,
        emit: Callable[[Any], None],
        send_event: Callable[[Any], Any],
        *,
        timeouts: TargetTimeouts = DEFAULT_TIMEOUTS,
        forward_log: Callable[[LogLine], None] = forward_log_line,
        recorder: TrajectoryRecorder | None = None,
    ) -> None:
        self._executor, self._lease, self._codec = executor, lease, codec
        self._emit, self._send_event, self._forward_log = emit, send_event, forward_log
        self._timeouts, self._recorder = timeouts, recorder
        self._loop = asyncio.get_running_loop()
        # Events and log lines are handled in the context of the task that runs the target.
        self._context = contextvars.copy_context()
        self._items: deque[tuple[int, EmitEvent | SendEvent | LogLine | LeaseResult]] = deque()
        self._draining = self._end_received = False
        #: Replies as JSON that are sent together.
        self._replies: list[bytes] = []
        self._send_tasks: set[asyncio.Task[None]] = set()
        #: The number of the run in its lease; 0 before it was started.
        self._number = 0
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Run the target once.

        Raises the target's exception, `HostLost`, what the caller's ``emit`` raised, and `TimeoutError` after
        ``run_seconds``.
        """
        try:
            await self._executor.run(self._start())
            await self._wait_ended()
        except BaseException:
            if self._number and not self._end_received:
                with contextlib.suppress(HostLost, TimeoutError):
                    await self._executor.run(self._lease.call(CancelRun(to=self._number)))
            raise
        finally:
            self._items.clear()
            self._draining = True
            if not self._ended.cancel() and not self._ended.cancelled():
                self._ended.exception()  # marks it retrieved: it was raised already, or its waiter is cancelled
            await cancel_and_wait(*self._send_tasks)
            self._executor.call_soon(self._leave)

    async def _wait_ended(self) -> None:
        await asyncio.wait([self._ended], timeout=self._timeouts.run_seconds)
        if not self._ended.done():
            raise TimeoutError(
                f"The run did not end within {self._timeouts.run_seconds:g} s, and was cancelled: run_seconds of "
                "TargetTimeouts is its limit"
            )
        await self._ended

    # The following methods run on the connection's loop.

    async def _start(self) -> None:
        event_types = sorted(self._codec.type_registry.events)
        self._number = self._lease.start_run(event_types, partial(self._call_in_application, self._enqueue))
        self._lease.ended_future.add_done_callback(self._on_lease_ended)

    def _leave(self) -> None:
        self._lease.ended_future.remove_done_callback(self._on_lease_ended)
        self._lease.leave_run(self._number)

    def _on_lease_ended(self, _: asyncio.Future[None]) -> None:
        self._call_in_application(self._end, self._lease.host_lost_error(self._number))

    def _call_in_application(self, callback: Callable[..., None], *args: Any) -> None:
        # An application that has ended has no running loop.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args, context=self._context)

    # The following methods run on the application's loop.

    def _enqueue(self, items: RunItems) -> None:
        self._items.extend(items)
        if not self._draining:
            self._process_items()

    def _process_items(self) -> None:
        self._draining = is_sending = False
        began, stream = self._loop.time(), self._lease.stream
        while self._items and not self._ended.done():
            is_next_sent = isinstance(self._items[0][1], SendEvent)
            if (is_sending and not is_next_sent) or self._loop.time() - began > MAX_HOLD_SECONDS:
                break
            number, item = self._items.popleft()
            try:
                is_sending = self._process_item(number, item)
            except Exception as error:
                # From the application's emit, or from an event that cannot be decoded here: either ends the run.
                self._end(error)
                return
            stream.released = number
        if (is_sending or self._items) and not self._ended.done():
            # The tasks of events run until their first await, which records them, before another item is processed; and
            # other tasks of the application run.
            self._draining = True
            self._loop.call_soon(self._process_items)
        if stream.is_acknowledgement_due:
            self._executor.call_soon(stream.acknowledge)

    def _process_item(self, number: int, item: EmitEvent | SendEvent | LogLine | LeaseResult) -> bool:
        """Process one item; returns True if it is an event whose response is being awaited."""
        if self._recorder is not None:
            self._recorder.record_item(number, item)
        match item:
            case EmitEvent():
                # The timestamp is that of its arrival: the host's clock may differ, and recorded events must be in
                # order.
                self._emit(self._codec.event(item.event, timestamp=local_now()))
            case SendEvent():
                start_task(self._send_tasks, self._answer_event(number, item))
                return True
            case LogLine():
                self._forward_log(item)
            case LeaseResult():
                self._end_received = True
                self._end(None if item.failure is None else self._lease.exceptions.from_failure(item.failure))
        return False

    def _end(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def _answer_event(self, number: int, item: SendEvent) -> None:
        try:
            event = self._codec.event(item.event, timestamp=local_now())
            response = write_response(await self._wait_response(event))
            body = encode_item(EventReply(to=number, response=response))
        except (Exception, asyncio.CancelledError) as error:
            if self._ended.done():
                # The run has ended, and its tasks are cancelled.
                raise
            # Whatever the handler raises is raised in the target, and comes back from there as the same object.
            response = WireResponse(failure=self._lease.exceptions.to_failure(error))
            body = EventReply(to=number, response=response).to_wire()
        if self._recorder is not None:
            self._recorder.record_response(number, response)
        self._replies.append(body)
        if len(self._replies) == 1:
            # Those of the other tasks that are ready now go with it.
            self._loop.call_soon(self._send_replies)

    def _send_replies(self) -> None:
        replies, self._replies = self._replies, []
        self._lease.stream.send(*replies)

    async def _wait_response(self, event: Any) -> Any:
        limit = asyncio.timeout(self._timeouts.event_seconds)
        try:
            async with limit:
                response = await self._send_event(event)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(
                f"The controller did not respond to an event within {self._timeouts.event_seconds:g} s: event_seconds "
                "of TargetTimeouts is its limit"
            ) from None
        answered = getattr(response, "event", event)
        if getattr(answered, "event_id", None) != event.event_id:
            raise ValueError(f"This {type(response).__name__} is for another event: pass the event that it answers")
        return response

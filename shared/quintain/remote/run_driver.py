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
from datetime import datetime
from functools import partial
from typing import Any

from quintain.contracts.remote_target import LogLine, RunItem, WireResponse
from quintain.errors import HostLost
from quintain.remote.connection_thread import Executor
from quintain.remote.lease import DEFAULT_TIMEOUTS, RemoteLease, TargetTimeouts
from quintain.remote.run_channel import RunChannel, RunOutputQueue, response_size
from quintain.remote.trajectory_recorder import TrajectoryRecorder
from quintain.routes import CANCEL_RUN, START_RUN
from quintain.target.codec import Codec, write_response
from quintain.target.type_registry import require_item_size

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
        output_queue: RunOutputQueue,
        codec: Codec,
        emit: Callable[[Any], None],
        send_event: Callable[[Any], Any],
        *,
        timeouts: TargetTimeouts = DEFAULT_TIMEOUTS,
        forward_log: Callable[[LogLine], None] = forward_log_line,
        recorder: TrajectoryRecorder | None = None,
    ) -> None:
        self._executor, self._lease, self._output_queue, self._codec = executor, lease, output_queue, codec
        self._emit, self._send_event, self._forward_log = emit, send_event, forward_log
        self._timeouts, self._recorder = timeouts, recorder
        self._loop = asyncio.get_running_loop()
        # Events and log lines are handled in the context of the task that runs the target.
        self._context = contextvars.copy_context()
        self._items: deque[RunItem] = deque()
        self._draining = self._end_received = False
        #: Responses that are handed to the connection's loop together.
        self._responses: list[tuple[int, WireResponse]] = []
        self._send_tasks: set[asyncio.Task[None]] = set()
        self._channel: RunChannel | None = None
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
            if not self._end_received:
                with contextlib.suppress(HostLost, TimeoutError):
                    await self._executor.run(self._cancel())
            raise
        finally:
            self._items.clear()
            self._draining = True
            if not self._ended.cancel() and not self._ended.cancelled():
                self._ended.exception()  # marks it retrieved: it was raised already, or its waiter is cancelled
            for task in self._send_tasks:
                task.cancel()
            await asyncio.gather(*self._send_tasks, return_exceptions=True)
            with contextlib.suppress(HostLost):
                await self._executor.run(self._finish())

    async def _wait_ended(self) -> None:
        await asyncio.wait([self._ended], timeout=self._timeouts.run_seconds)
        if not self._ended.done():
            raise TimeoutError(
                f"The run did not end within {self._timeouts.run_seconds:g} s, and was cancelled: run_seconds of "
                "TargetTimeouts is its limit"
            )
        await self._ended

    def supersede(self) -> None:
        """End the run with a `RuntimeError`, because another run is started on its lease."""
        self._call_in_application(self._end, RuntimeError("The run was ended: another run was started on its lease"))

    # The following methods run on the connection's loop.

    async def _start(self) -> None:
        """Consume the run's output first, then start the run."""
        channel = self._channel = RunChannel(self._lease, partial(self._call_in_application, self._enqueue))
        await self._output_queue.open(channel)
        self._lease.ended_future.add_done_callback(self._on_lease_ended)
        event_types = sorted(self._codec.type_registry.events)
        await self._lease.call(START_RUN, run_id=channel.run_id, run_key=self._output_queue.key, kinds=event_types)

    async def _cancel(self) -> None:
        if self._channel is not None:
            await self._lease.call(CANCEL_RUN, run_id=self._channel.run_id)

    async def _finish(self) -> None:
        self._lease.ended_future.remove_done_callback(self._on_lease_ended)
        if self._channel is not None:
            await self._channel.close()

    def _on_lease_ended(self, _: asyncio.Future[None]) -> None:
        self._call_in_application(self._end, self._lease.host_lost_error())

    def _call_in_application(self, callback: Callable[..., None], *args: Any) -> None:
        # An application that has ended has no running loop.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args, context=self._context)

    # The following methods run on the application's loop.

    def _enqueue(self, items: list[RunItem]) -> None:
        self._items.extend(items)
        if not self._draining:
            self._process_items()

    def _process_items(self) -> None:
        self._draining = is_sending = False
        began = self._loop.time()
        while self._items and not self._ended.done():
            if (is_sending and self._items[0].what != "send") or self._loop.time() - began > MAX_HOLD_SECONDS:
                break
            item = self._items.popleft()
            try:
                is_sending = self._process_item(item)
            except Exception as error:
                # From the application's emit, or from an event that cannot be decoded here: either ends the run.
                self._end(error)
                return
            assert self._channel is not None, "a running run has a channel"
            self._channel.last_processed = item.seq
        if (is_sending or self._items) and not self._ended.done():
            # The tasks of events run until their first await, which records them, before another item is processed; and
            # other tasks of the application run.
            self._draining = True
            self._loop.call_soon(self._process_items)
        if self._channel is not None and self._channel.is_acknowledgement_due:
            self._executor.call_soon(self._channel.send_acknowledgement)

    def _process_item(self, item: RunItem) -> bool:
        """Process one item; returns True if it is an event whose response is being awaited."""
        if self._recorder is not None:
            self._recorder.record_item(item)
        if item.what == "end":
            self._end_received = True
            self._end(None if item.failure is None else self._lease.exceptions.from_failure(item.failure))
        elif item.log is not None:
            self._forward_log(item.log)
        elif item.event is not None and item.what == "emit":
            # The timestamp is that of its arrival: the host's clock may differ, and recorded events must be in order.
            self._emit(self._codec.event(item.event, timestamp=local_now()))
        elif item.event is not None:
            task = self._loop.create_task(self._answer_event(item))
            self._send_tasks.add(task)
            task.add_done_callback(self._send_tasks.discard)
            return True
        return False

    def _end(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def _answer_event(self, item: RunItem) -> None:
        assert item.event is not None, "an item of kind send has an event"
        assert self._channel is not None, "a running run has a channel"
        try:
            event = self._codec.event(item.event, timestamp=local_now())
            response = write_response(await self._wait_response(event))
            require_item_size(response, response_size(response), f"The response {response.kind}")
        except (Exception, asyncio.CancelledError) as error:
            if self._ended.done():
                # The run has ended, and its tasks are cancelled.
                raise
            # Whatever the handler raises is raised in the target, and comes back from there as the same object.
            response = WireResponse(failure=self._lease.exceptions.to_failure(error))
        if self._recorder is not None:
            self._recorder.record_response(item.seq, response)
        self._responses.append((item.seq, response))
        if len(self._responses) == 1:
            # Those of the other tasks that are ready now go with it.
            self._loop.call_soon(self._hand_over_responses)

    def _hand_over_responses(self) -> None:
        responses, self._responses = self._responses, []
        assert self._channel is not None, "a running run has a channel"
        self._executor.call_soon(self._channel.respond, responses)

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


def local_now() -> datetime:
    """Return the current time as a naive local datetime, as superred uses it."""
    return datetime.now()  # noqa: DTZ005 -- superred's events carry naive local time, and files compare them

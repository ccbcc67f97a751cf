"""One run of a leased instance: the functions that the target is given, and the sending of its events and log records.

Events are numbered, batched, kept until acknowledged, and resent when lost. `emit` and `send_event` may be called from
the target's event loop and from its own threads; both write to one ordered stream. Errors that superred raises at the
call are raised at the call: an event without a security domain, an event class that is not registered, a run that is
over.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from quintain.bus.base import Bus, Envelope
from quintain.contracts.remote_target import (
    RUN_OUTPUT_TYPE,
    LogLine,
    RemoteFailure,
    RunInput,
    RunItem,
    RunOutput,
    StartRun,
    WireEvent,
    WireResponse,
)
from quintain.contracts.values import replace_surrogates
from quintain.errors import BusError
from quintain.observe import logs
from quintain.observe.semconv import lease_request_span, send_event_span
from quintain.observe.spans import current_traceparent, span_in_trace
from quintain.target.codec import Codec, write_event
from quintain.target.exceptions import from_failure, to_failure
from quintain.target.interface import Outbox
from quintain.target.type_registry import require_item_size
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import RUN
from quintain_host.instances import InstanceThread

log = logging.getLogger(__name__)

#: Limits of one message, in items and in characters. A target that emits without a pause holds its interpreter's lock,
#: and each message needs it several times: few large messages are sent much sooner than many small ones.
MAX_ITEMS_PER_MESSAGE = 1024
MAX_CHARACTERS_PER_MESSAGE = 1_000_000

#: The number of publishes that run at the same time; what is added meanwhile goes into the next message.
MAX_CONCURRENT_SENDS = 2

#: Limits of what the controller has not acknowledged yet, in items and in characters. At either limit
#: `EventSender.send` blocks, so that a fast target cannot fill the memory of the host or of the controller.
MAX_UNACKNOWLEDGED_ITEMS = 10_000
MAX_UNACKNOWLEDGED_CHARACTERS = 64_000_000

#: Message of the `RuntimeError` that a target gets when it emits after the end of its run.
RUN_OVER_MESSAGE = "Cannot emit to a closed trajectory: the run is over"


class EventSender:
    """Ordered, reliable stream of one run's events to its controller.

    Items are numbered from 1. The controller acknowledges the highest number up to which it has everything; items that
    stay unacknowledged for `Timings.host_resend_seconds` are sent again.
    """

    def __init__(self, bus: Bus, run_id: str, run_key: str, timings: Timings = DEFAULT_TIMINGS) -> None:
        self._bus, self._run_id, self._run_key, self._timings = bus, run_id, run_key, timings
        self._loop = asyncio.get_running_loop()
        # `send` runs in the target's context (trace, log context). The flush must run in the host's context instead, so
        # that the host's own log records are not taken for the target's.
        self._context = contextvars.copy_context()
        self._outbox: Outbox[RunItem] = Outbox()
        self._characters = 0
        self._room_available = threading.Condition()
        self._flush_scheduled = self._is_stopped = False
        self._send_tasks: set[asyncio.Task[None]] = set()
        self._acknowledged_at = self._loop.time()
        self._all_acknowledged = asyncio.Event()
        self._heartbeat_task = self._loop.create_task(self._send_heartbeats())

    def send(
        self,
        kind: Literal["emit", "send", "log"],
        *,
        event: WireEvent | None = None,
        line: LogLine | None = None,
        on_numbered: Callable[[int], None] | None = None,
    ) -> None:
        """Add an item to the stream, from any thread except the host's own; block while too much is unacknowledged.

        ``event`` is set for the kinds ``emit`` and ``send``, ``line`` for ``log``. ``on_numbered`` is called with the
        item's number before the item can be sent. Raises `RuntimeError` once the run is over, and `ValueError` for an
        event of more than `MAX_RUN_ITEM_BYTES`.
        """
        size = event_size(event)
        if event is not None:
            require_item_size(event, size, event.kind)
        with self._room_available:
            self._room_available.wait_for(self._has_room)
            if self._is_stopped:
                raise RuntimeError(RUN_OVER_MESSAGE)
            number = self._outbox.last_number + 1
            self._outbox.put(RunItem.unchecked(seq=number, what=kind, event=event, log=line, failure=None))
            self._characters += size
            if on_numbered is not None:
                on_numbered(number)
            self._schedule_flush()

    def send_end(self, failure: RemoteFailure | None) -> None:
        """Add the item that ends the run; called on the host's loop, never blocks.

        ``failure`` is the target's exception, None where the run succeeded.
        """
        with self._room_available:
            self._outbox.put(RunItem(seq=self._outbox.last_number + 1, what="end", failure=failure))
            self._schedule_flush()

    def acknowledge(self, sequence_number: int, *, resend: bool) -> None:
        """Drop all items up to this number, which the controller has received.

        With ``resend``, send all later items again.
        """
        self._acknowledged_at = self._loop.time()
        with self._room_available:
            self._characters -= sum(event_size(item.event) for item in self._outbox.acknowledge(sequence_number))
            if resend:
                self._outbox.requeue_unacknowledged()
            self._room_available.notify_all()
        self._flush()
        if self._outbox.unacknowledged_count == 0:
            self._all_acknowledged.set()

    async def wait_acknowledged(self) -> None:
        """Wait until the controller has acknowledged every item."""
        while self._outbox.unacknowledged_count:
            self._all_acknowledged.clear()
            await self._all_acknowledged.wait()

    def stop(self) -> None:
        """Refuse further items and wake the threads that are blocked in `send`; these raise `RuntimeError`."""
        with self._room_available:
            self._is_stopped = True
            self._room_available.notify_all()

    async def close(self) -> None:
        """Stop, and cancel the heartbeats and the publishes that still run."""
        self.stop()
        tasks = (self._heartbeat_task, *self._send_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _has_room(self) -> bool:
        has_space = (
            self._outbox.unacknowledged_count < MAX_UNACKNOWLEDGED_ITEMS
            and self._characters < MAX_UNACKNOWLEDGED_CHARACTERS
        )
        return has_space or self._is_stopped

    def _schedule_flush(self) -> None:
        """Schedule one flush on the host's loop, unless one is scheduled already. The caller holds the lock."""
        if not self._flush_scheduled and not self._is_stopped:
            self._flush_scheduled = True
            self._loop.call_soon_threadsafe(self._flush, context=self._context)

    def _flush(self) -> None:
        while len(self._send_tasks) < MAX_CONCURRENT_SENDS and (batch := self._take_batch()):
            task = self._loop.create_task(self._publish(batch))
            self._send_tasks.add(task)
            task.add_done_callback(self._on_sent)

    def _take_batch(self) -> list[RunItem]:
        with self._room_available:
            self._flush_scheduled = False
            batch: list[RunItem] = []
            size = 0
            while not self._is_stopped and len(batch) < MAX_ITEMS_PER_MESSAGE and size < MAX_CHARACTERS_PER_MESSAGE:
                item = self._outbox.take(1)
                if not item:
                    break
                batch.append(item[0][1])
                size += event_size(item[0][1].event)
            return batch

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._send_tasks.discard(task)
        if self._outbox.has_unsent:
            self._flush()

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._timings.host_heartbeat_seconds)
            await self._publish([])
            silent_seconds = self._loop.time() - self._acknowledged_at
            if self._outbox.unacknowledged_count and silent_seconds > self._timings.host_resend_seconds:
                with self._room_available:
                    self._outbox.requeue_unacknowledged()
                self._flush()

    async def _publish(self, items: Sequence[RunItem]) -> None:
        body = RunOutput(run_id=self._run_id, said=self._outbox.last_sent, items=list(items)).to_wire()
        # Not persistent: a run ends with its host, and items that the broker loses are resent.
        envelope = Envelope(body=body, type=RUN_OUTPUT_TYPE, persistent=False)
        try:
            await self._bus.publish(RUN, self._run_key, envelope, timeout_seconds=self._timings.host_lost_seconds)
        except BusError as error:
            # The items stay in the outbox and are resent: either the controller's queue comes back or the lease ends.
            log.warning("The events of a run could not be sent and will be resent: %s", error.message)


def event_size(event: WireEvent | None) -> int:
    """Return the approximate size of an event on the wire, in characters; 0 for None."""
    if event is None:
        return 0
    extra = sum(map(len, event.extra.values())) if event.extra else 0
    return len(event.content or "") + len(event.request or "") + len(event.answer or "") + extra


#: The run that the current context belongs to; `RunLogHandler` sends log records to it.
current_run: contextvars.ContextVar[HostedRun | None] = contextvars.ContextVar("current_run", default=None)

#: A `send_event` that waits for its response: the event loop, the future on that loop, and the event that was sent.
PendingResponse = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Any]

#: What a `send_event` returns, or the exception that it raises.
ResponseOutcome = tuple["asyncio.Future[Any]", Any, BaseException | None]


class HostedRun:
    """One run, from its start until the controller has acknowledged its end."""

    def __init__(
        self, target: Any, instance_thread: InstanceThread, codec: Codec, request: StartRun, event_sender: EventSender
    ) -> None:
        self._target, self._instance_thread, self._codec = target, instance_thread, codec
        self._event_types = frozenset(request.kinds)
        self._event_sender = event_sender
        self._pending_responses: dict[int, PendingResponse] = {}
        self._is_over = False
        self._outcome = "cancelled"
        self.run_id = request.run_id
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"run {request.run_id}")

    # Passed to the target.

    def emit(self, event: Any) -> None:
        """Send an event to the controller without waiting for a response."""
        self._require_sendable(event)
        self._event_sender.send("emit", event=write_event(event))

    async def send_event(self, event: Any) -> Any:
        """Send an event to the controller and return its response."""
        self._require_sendable(event)
        loop = asyncio.get_running_loop()
        response: asyncio.Future[Any] = loop.create_future()
        sequence_number = 0

        def on_numbered(number: int) -> None:
            nonlocal sequence_number
            sequence_number = number
            self._pending_responses[number] = (loop, response, event)

        self._event_sender.send("send", event=write_event(event), on_numbered=on_numbered)
        try:
            with span_in_trace(send_event_span(type(event).__name__), current_traceparent()):
                return await response
        finally:
            self._pending_responses.pop(sequence_number, None)

    def _require_sendable(self, event: Any) -> None:
        if self._is_over:
            raise RuntimeError(RUN_OVER_MESSAGE)
        if event.security_domain is None:
            raise ValueError(
                f"{type(event).__name__} has no security_domain: set one, it decides who may see the event"
            )
        if type(event).__name__ not in self._event_types:
            raise TypeError(
                f"Event type {type(event).__name__!r} is not registered with the controller: "
                "pass it to remote_factory(events=[...])"
            )

    def log(self, line: LogLine) -> None:
        """Send a log record to the controller; after the end of the run it is dropped."""
        if not self._is_over:
            with contextlib.suppress(RuntimeError):
                self._event_sender.send("log", line=line)

    # Called by the host.

    def on_message(self, message: RunInput) -> None:
        """Deliver the responses in a message of the controller, and apply its acknowledgement."""
        outcomes: dict[asyncio.AbstractEventLoop, list[ResponseOutcome]] = {}
        for answered in message.answers:
            pending = self._pending_responses.pop(answered.seq, None)
            if pending is not None:
                loop, future, event = pending
                outcomes.setdefault(loop, []).append((future, *self._read_response(answered.response, event)))
        for loop, for_loop in outcomes.items():
            # The loop may belong to a thread of the target, and may be closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_set_responses, for_loop)
        self._event_sender.acknowledge(message.heard, resend=message.again)

    def _read_response(self, wire_response: WireResponse, event: Any) -> tuple[Any, BaseException | None]:
        """Return the response, or the exception that `send_event` raises."""
        response: Any = None
        error: BaseException | None = None
        try:
            if wire_response.failure is None:
                response = self._codec.response(wire_response, event)
            else:
                error = from_failure(wire_response.failure, "the controller")
        except Exception as decode_error:
            # A response that cannot be decoded is raised in the target, by the `send_event` that waits for it.
            error = decode_error
        return response, error

    def cancel(self) -> None:
        """Cancel the run, because its controller no longer waits for it."""
        self._is_over = True
        self._event_sender.stop()
        self._task.cancel()

    def on_ended(self, callback: Callable[[str], None]) -> None:
        """Call ``callback`` with the outcome when the run has ended: ``ended``, ``failed`` or ``cancelled``."""
        self._task.add_done_callback(lambda _: callback(self._outcome))

    async def wait_ended(self) -> None:
        """Wait until the run has ended and its end was acknowledged; never raises the run's error."""
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            failure = None
            try:
                with (
                    span_in_trace(lease_request_span("run", self.run_id), current_traceparent()),
                    logs.log_context(run_id=self.run_id),
                ):
                    await self._instance_thread.run(self._run_target())
                self._outcome = "ended"
            except Exception as error:
                # Any exception of the target ends the run, and is sent to the controller with its class.
                failure, self._outcome = to_failure(error), "failed"
            self._is_over = True
            self._event_sender.send_end(failure)
            await self._event_sender.wait_acknowledged()
        finally:
            self._is_over = True
            await self._event_sender.close()

    async def _run_target(self) -> None:
        current_run.set(self)
        await self._target.run(self.emit, self.send_event)


def _set_responses(outcomes: list[ResponseOutcome]) -> None:
    for future, response, error in outcomes:
        if future.done():
            continue
        if error is None:
            future.set_result(response)
        else:
            future.set_exception(error)


#: A log record's text is cut to this length, in characters.
MAX_TEXT_LENGTH = 4_000


class RunLogHandler(logging.Handler):
    """Logging handler that sends records logged in a run's context to the run's controller.

    Records logged outside a run, and records of quintain itself, are not sent.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record to the controller of the current run, if there is one."""
        run = current_run.get()
        if run is None or record.name.startswith("quintain"):
            return
        try:
            text = replace_surrogates(self.format(record)[:MAX_TEXT_LENGTH])
        except Exception:
            # A record that cannot be formatted must not fail the run; logging reports the error.
            self.handleError(record)
            return
        run.log(LogLine(logger=record.name, level=record.levelno, text=text, at=record.created))

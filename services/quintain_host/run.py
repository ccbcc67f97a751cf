"""One run of a leased instance: the functions that the target is given, and its log records, sent to the controller.

`emit` and `send_event` may be called from the target's event loop and from its own threads; both write to one
ordered stream. Errors that superred raises at the call are raised at the call: an event without a security
domain, an event class that is not registered, a run that is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable
from typing import Any

from quintain import logs
from quintain.contracts.remote_target import LogLine, RunInput, StartRun, WireResponse
from quintain.contracts.strings import replace_surrogates
from quintain.target.codec import Codec, write_event
from quintain.target.exceptions import from_failure, to_failure
from quintain.telemetry.semconv import lease_request_span, send_event_span
from quintain.telemetry.spans import current_traceparent, span_in_trace
from quintain_host.event_sender import RUN_OVER_MESSAGE, EventSender
from quintain_host.instance_thread import InstanceThread

#: The run whose target is speaking, for its log records.
current_run: contextvars.ContextVar[HostedRun | None] = contextvars.ContextVar("current_run", default=None)

#: Who waits for a response: the loop, its future, and the event that was sent.
PendingResponse = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Any]


class HostedRun:
    """A run, from its start to the moment its end was heard."""

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

    # What the target is given.

    def emit(self, event: Any) -> None:
        """Record an event, one way."""
        self._require_sendable(event)
        self._event_sender.send("emit", event=write_event(event))

    async def send_event(self, event: Any) -> Any:
        """Send an event and wait for its response."""
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
            raise ValueError(f"{type(event).__name__} has no security_domain: nobody could say who may see it")
        if type(event).__name__ not in self._event_types:
            raise TypeError(
                f"Event type {type(event).__name__!r} is not registered with the controller: "
                "pass it to remote_factory(events=[...])"
            )

    def log(self, line: LogLine) -> None:
        """Say a log record, where the run still speaks."""
        if not self._is_over:
            with contextlib.suppress(RuntimeError):
                self._event_sender.send("log", line=line)

    # What the host does with it.

    def on_message(self, message: RunInput) -> None:
        """Take in responses, and how far the controller has come."""
        for answered in message.answers:
            pending = self._pending_responses.pop(answered.seq, None)
            if pending is not None:
                self._deliver_response(pending, answered.response)
        self._event_sender.acknowledge(message.heard, resend=message.again)

    def _deliver_response(self, pending: PendingResponse, wire_response: WireResponse) -> None:
        loop, future, event = pending
        response: Any = None
        error: BaseException | None = None
        try:
            if wire_response.failure is None:
                response = self._codec.response(wire_response, event)
            else:
                error = from_failure(wire_response.failure)
        except Exception as decode_error:
            # A response nobody can read is the target's to hear, as an error of this send.
            error = decode_error
        # The loop may be one of the target's own, and may have ended.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_set_response, future, response, error)

    def cancel(self) -> None:
        """Whoever awaited this run has gone."""
        self._is_over = True
        self._event_sender.stop()
        self._task.cancel()

    def on_ended(self, callback: Callable[[str], None]) -> None:
        """Tell how it ended, once it has: ``wait_ended``, ``failed`` or ``cancelled``."""
        self._task.add_done_callback(lambda _: callback(self._outcome))

    async def wait_ended(self) -> None:
        """Wait for the run's end, and until it was heard; never raises."""
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
                # Whatever a target raises is its run's end, and crosses with its class.
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


def _set_response(future: asyncio.Future[Any], response: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(response)
    else:
        future.set_exception(error)


#: The longest text of one record, in characters.
MAX_TEXT_LENGTH = 4_000


class RunLogHandler(logging.Handler):
    """Sends what is logged in a run's context along with what the run says; everything else is the host's own."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say the record, where a run is speaking."""
        run = current_run.get()
        if run is None or record.name.startswith("quintain"):
            return
        try:
            text = replace_surrogates(self.format(record)[:MAX_TEXT_LENGTH])
        except Exception:
            # A record that cannot be formatted is that record's loss, and logging's to report.
            self.handleError(record)
            return
        run.log(LogLine(logger=record.name, level=record.levelno, text=text, at=record.created))

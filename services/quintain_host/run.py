"""One run of a leased instance: the functions that the target is given, and its log records, sent to the controller.

`emit` and `send_event` may be called from the target's event loop and from its own threads; both write to one ordered
stream. Errors that superred raises at the call are raised at the call: an event without a security domain, an event
class that is not registered, a run that is over.
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

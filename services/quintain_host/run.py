"""One run of a leased instance: the functions that the target is given, and the responses to its events.

`emit` and `send_event` may be called from the target's event loop and from its own threads; both write to one ordered
stream, and wait while the driver has too much to process. Errors that superred raises at the call are raised at the
call: an event without a security domain, an event class that is not registered, a run that is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable, Iterable
from typing import Any

from quintain.config.python_imports import OWN_SECRETS
from quintain.contracts.credentials import mask_secrets
from quintain.contracts.hosting import EmitEvent, EventReply, LeaseResult, LogLine, RunTarget, SendEvent
from quintain.contracts.remote_target import RemoteFailure, WireResponse
from quintain.contracts.values import replace_surrogates
from quintain.observe import logs
from quintain.observe.semconv import lease_request_span, send_event_span
from quintain.observe.spans import current_traceparent, span_in_trace
from quintain.remote.stream import LeaseStream, encode_item
from quintain.runtime.concurrency import cancel_and_wait
from quintain.target.codec import Codec, write_event
from quintain.target.exceptions import from_failure, to_failure
from quintain_host.instances import InstanceThread

log = logging.getLogger(__name__)

#: Message of the `RuntimeError` that a target gets when it emits after the end of its run.
RUN_OVER_MESSAGE = "Cannot emit to a closed trajectory: the run is over"

#: The run that the current context belongs to; `RunLogHandler` sends log records to it.
current_run: contextvars.ContextVar[HostedRun | None] = contextvars.ContextVar("current_run", default=None)


class HostedRun:
    """One run, from its start to its result; ``number`` is that of its request."""

    def __init__(  # noqa: PLR0913, PLR0917 -- one run with all its collaborators
        self,
        target: Any,
        instance_thread: InstanceThread,
        codec: Codec,
        number: int,
        request: RunTarget,
        stream: LeaseStream,
        on_ended: Callable[[str], None],
    ) -> None:
        self._target, self._instance_thread, self._codec = target, instance_thread, codec
        self._event_types, self._stream, self.number = frozenset(request.events), stream, number
        self._on_ended = on_ended
        #: What each `send_event` that waits is resumed by, and the event that it sent.
        self._pending_responses: dict[int, tuple[asyncio.Future[Any], Any]] = {}
        self._is_over = False
        self._outcome = "cancelled"
        self._failure: RemoteFailure | None = to_failure(RuntimeError("The run was cancelled"))
        self._task = asyncio.get_running_loop().create_task(self._run(request), name=f"run {number}")
        self._task.add_done_callback(self._on_done)

    # Passed to the target.

    def emit(self, event: Any) -> None:
        """Send an event to the driver without waiting for a response."""
        self._require_sendable(event)
        self._send(EmitEvent.unchecked(type="emit", event=write_event(event)))

    async def send_event(self, event: Any) -> Any:
        """Send an event to the driver and return its response."""
        self._require_sendable(event)
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number = self._send(
            SendEvent.unchecked(type="send", event=write_event(event)),
            lambda number: self._pending_responses.update({number: (response, event)}),
        )
        try:
            with span_in_trace(send_event_span(type(event).__name__), current_traceparent()):
                return await response
        finally:
            self._pending_responses.pop(number, None)

    def log(self, line: LogLine) -> None:
        """Send a log record to the driver; after the end of the run it is dropped."""
        with contextlib.suppress(RuntimeError):
            self._send(line)

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

    def _send(
        self,
        item: EmitEvent | SendEvent | LogLine,
        on_numbered: Callable[[int], None] = lambda number: None,
    ) -> int:
        def require_running(number: int) -> None:
            if self._is_over:
                raise RuntimeError(RUN_OVER_MESSAGE)
            on_numbered(number)

        return self._stream.send(encode_item(item), on_numbered=require_running, is_given_up=lambda: self._is_over)

    # Called by the host.

    def on_replies(self, replies: Iterable[EventReply]) -> None:
        """Resume the target's `send_event` calls that wait for these."""
        for reply in replies:
            if (pending := self._pending_responses.pop(reply.to, None)) is not None:
                future, event = pending
                # Its loop may belong to a thread of the target, and may be closed.
                with contextlib.suppress(RuntimeError):
                    outcome = self._read_response(reply.response, event)
                    future.get_loop().call_soon_threadsafe(_set_response, future, *outcome)

    def _read_response(self, wire_response: WireResponse, event: Any) -> tuple[Any, BaseException | None]:
        """Return the response, or the exception that `send_event` raises."""
        try:
            if wire_response.failure is None:
                return self._codec.response(wire_response, event), None
            return None, from_failure(wire_response.failure, "the controller")
        except Exception as decode_error:
            # A response that cannot be decoded is raised in the target, by the `send_event` that waits for it.
            return None, decode_error

    async def stop(self) -> None:
        """Cancel the run, because nobody waits for it any more, and wait until it has ended. Raises no error of it."""
        self._end()
        await cancel_and_wait(self._task)

    def _end(self) -> None:
        """Let nothing of the target follow; its threads that wait in `emit` raise."""
        self._is_over = True
        self._stream.wake()

    async def _run(self, request: RunTarget) -> None:
        span_start = lease_request_span("run", f"{self._stream.lease_id[:8]}/{self.number}")
        try:
            with span_in_trace(span_start, request.traceparent), logs.log_context(run_id=f"{self.number}"):
                await self._instance_thread.run(self._run_target())
            self._outcome, self._failure = "ended", None
        except Exception as error:
            # Any exception of the target ends the run, and is sent to the driver with its class.
            self._outcome, self._failure = "failed", to_failure(error, OWN_SECRETS)
        log.debug("A run has ended: %s", self._outcome)

    def _on_done(self, _: asyncio.Task[None]) -> None:
        self._end()
        self._stream.send(encode_item(LeaseResult(to=self.number, failure=self._failure)))
        self._on_ended(self._outcome)

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


#: A log record's text is cut to this length, in characters.
MAX_TEXT_LENGTH = 4_000


class RunLogHandler(logging.Handler):
    """Logging handler that sends records logged in a run's context to the run's driver.

    Records logged outside a run, and records of quintain itself, are not sent.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record to the driver of the current run, if there is one."""
        run = current_run.get()
        if run is None or record.name.startswith("quintain"):
            return
        try:
            text = replace_surrogates(mask_secrets(self.format(record), OWN_SECRETS)[:MAX_TEXT_LENGTH])
        except Exception:
            # A record that cannot be formatted must not fail the run; logging reports the error.
            self.handleError(record)
            return
        run.log(LogLine(logger=record.name, level=record.levelno, text=text, at=record.created))

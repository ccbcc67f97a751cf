"""The access log: gives each HTTP request an id, writes a log line, counts metrics and records a span.

Bodies and tokens are never logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quintain.contracts.headers import TRACEPARENT_HEADER
from quintain.observe import logs
from quintain.observe.semconv import http_response_attributes, http_server_span
from quintain.observe.spans import Span, span
from quintain.rpc.server import log_defect
from quintain_gateway.endpoint import HTTP_METHODS, RequestContext, error_response_of, header_in_scope, valid_or_new_id
from quintain_gateway.errors import GatewayStopping, HeadersTooLarge
from quintain_gateway.metrics import GatewayMetrics
from quintain_gateway.settings import GatewayLimits

log = logging.getLogger(__name__)

#: Paths of health probes and metrics scrapes: logged at DEBUG and not traced.
PROBE_PATHS = frozenset({"/health/live", "/health/ready", "/metrics"})


class AccessLog:
    """The outermost ASGI application, which logs and measures every HTTP request of the application inside."""

    def __init__(self, app: ASGIApp, limits: GatewayLimits, metrics: GatewayMetrics) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; connections that are not HTTP are ignored."""
        if scope["type"] != "http":
            return
        context = RequestContext(valid_or_new_id(header_in_scope(scope, b"x-request-id")))
        method = scope["method"] if scope["method"] in HTTP_METHODS else "other"
        scope.setdefault("state", {})["context"] = context
        recorder = _ResponseRecorder(send, context)
        started_at = time.perf_counter()
        self._metrics.in_flight.inc()
        with logs.log_context(http_request_id=context.id), self._request_span(scope, method) as request_span:
            try:
                await self._respond(scope, receive, recorder)
            finally:
                for end in context.on_end:
                    end()
                self._metrics.in_flight.dec()
                duration_seconds = time.perf_counter() - started_at
                self._metrics.count_request(context.route, method, recorder.status, duration_seconds)
                _log_request(context, method, recorder.status, duration_seconds)
                _record_on_span(request_span, context, method, recorder.status)

    def _request_span(self, scope: Scope, method: str) -> AbstractContextManager[Span]:
        """Return the server span of a request, as a child of the client's span if it sent one; probes get no span."""
        if scope["path"] in PROBE_PATHS:
            return nullcontext(Span())
        start = partial(http_server_span, method, scope["path"])
        return span(start, parent=header_in_scope(scope, TRACEPARENT_HEADER.encode()))

    async def _respond(self, scope: Scope, receive: Receive, recorder: _ResponseRecorder) -> None:
        if _header_size(scope) > self._limits.max_header_bytes:
            too_large = HeadersTooLarge(
                f"The request line and headers are larger than {self._limits.max_header_bytes} bytes"
            )
            await error_response_of(scope, too_large)(scope, receive, recorder.send)
            return
        try:
            await self._app(scope, receive, recorder.send)
        except asyncio.CancelledError:
            # The server's grace period is over; nothing else cancels this task.
            if not recorder.status:
                recorder.context.code = GatewayStopping.code
                await error_response_of(scope, GatewayStopping())(scope, receive, recorder.send)
        except Exception as error:
            fault = log_defect(error, f"answering {recorder.context.route}, x-request-id {recorder.context.id}")
            if recorder.status:
                raise  # the response has begun, so the connection can only be closed
            await error_response_of(scope, fault)(scope, receive, recorder.send)


class _ResponseRecorder:
    """Wraps the ASGI ``send`` of one request: adds ``x-request-id`` to the response and records its status."""

    def __init__(self, send: Send, context: RequestContext) -> None:
        self._send, self.context = send, context
        self.status = 0

    async def send(self, message: Message) -> None:
        """Send one ASGI message to the client."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self.context.id.encode())]
        await self._send(message)


def _record_on_span(request_span: Span, context: RequestContext, method: str, status: int) -> None:
    request_span.rename(f"{method} {context.route}")
    request_span.set_attributes(http_response_attributes(context.route, status))
    # By OpenTelemetry's conventions a 4xx status is not an error of the server span.
    if status >= 500:
        request_span.set_error(context.code or str(status))


def _header_size(scope: Scope) -> int:
    headers = sum(len(name) + len(value) for name, value in scope["headers"])
    return headers + len(scope["raw_path"]) + len(scope["query_string"])


def _log_request(context: RequestContext, method: str, status: int, duration_seconds: float) -> None:
    level = logging.DEBUG if context.route in PROBE_PATHS and status == 200 else logging.INFO
    if not log.isEnabledFor(level):
        return
    line = f"request id={context.id} method={method} route={context.route} status={status}"
    line += f" ms={duration_seconds * 1000:.0f}"
    if context.session_id:
        line += f" session={context.session_id}"
    if context.code:
        line += f" code={context.code}"
    with logs.log_context(request_id=context.request_id, session_id=context.session_id):
        # The place in the code is in no log line, and the logger's methods walk the stack for it.
        log.handle(logging.LogRecord(log.name, level, __file__, 0, line, None, None))

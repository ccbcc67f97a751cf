"""What is kept of every request: its id in the answer, a line in the log, its numbers. Never a body, never a token."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AbstractContextManager, nullcontext

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quintain import logs
from quintain.service import defect
from quintain.telemetry.context import TRACEPARENT_HEADER
from quintain.telemetry.conventions import routed, served
from quintain.telemetry.spans import Span, span
from quintain_gateway.limits import Limits
from quintain_gateway.methods import METHODS
from quintain_gateway.metrics import GatewayMetrics
from quintain_gateway.refusals import HeadTooLarge, Stopping, plain_refusal
from quintain_gateway.visit import Visit, visit_id

log = logging.getLogger(__name__)

#: Probes come every few seconds from every side; they are no news.
QUIET = frozenset({"/health/live", "/health/ready", "/metrics"})


class Journal:
    """The outermost ASGI application: the APIs, with every request written down."""

    def __init__(self, app: ASGIApp, limits: Limits, metrics: GatewayMetrics) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        visit = Visit(visit_id(Headers(scope=scope).get("x-request-id")))
        method = scope["method"] if scope["method"] in METHODS else "other"
        scope.setdefault("state", {})["visit"] = visit
        answer = _Answer(send, visit)
        began = time.perf_counter()
        self._metrics.in_flight.inc()
        with self._span(scope, method) as visiting:
            try:
                await self._respond(scope, receive, answer)
            finally:
                self._metrics.in_flight.dec()
                seconds = time.perf_counter() - began
                self._metrics.answered(visit.route, method, answer.status, seconds)
                _write(visit, method, answer.status, seconds)
                _tell(visiting, visit, method, answer.status)

    def _span(self, scope: Scope, method: str) -> AbstractContextManager[Span]:
        """Part of the client's trace, where it has one; probes are in none."""
        if scope["path"] in QUIET:
            return nullcontext(Span())
        return span(served(method, scope["path"]), parent=Headers(scope=scope).get(TRACEPARENT_HEADER))

    async def _respond(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        if _head_bytes(scope) > self._limits.most_head_bytes:
            fault = HeadTooLarge(f"The request's line and headers are larger than {self._limits.most_head_bytes} bytes")
            await plain_refusal(fault)(scope, receive, answer.send)
            return
        try:
            await self._app(scope, receive, answer.send)
        except asyncio.CancelledError:
            # The server's grace is over; nobody else cancels this task.
            if not answer.status:
                answer.visit.code = Stopping.code
                await plain_refusal(Stopping())(scope, receive, answer.send)
        except Exception as error:
            refusal = plain_refusal(defect(error, f"answering {answer.visit.route}, x-request-id {answer.visit.id}"))
            if answer.status:
                raise  # it has begun: all that is left is to break it off
            await refusal(scope, receive, answer.send)


class _Answer:
    """The way back to the client: puts the visit's id on the answer, and sees its status."""

    def __init__(self, send: Send, visit: Visit) -> None:
        self._send, self.visit = send, visit
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self.visit.id
        await self._send(message)


def _tell(visiting: Span, visit: Visit, method: str, status: int) -> None:
    visiting.rename(f"{method} {visit.route}")
    visiting.tell(routed(visit.route, status))
    # A refusal is the client's error, and no error of the server's span.
    if status >= 500:
        visiting.fail(visit.code or str(status))


def _head_bytes(scope: Scope) -> int:
    headers = sum(len(name) + len(value) for name, value in scope["headers"])
    return headers + len(scope["raw_path"]) + len(scope["query_string"])


def _write(visit: Visit, method: str, status: int, seconds: float) -> None:
    facts = {
        "id": visit.id,
        "method": method,
        "route": visit.route,
        "status": status,
        "ms": f"{seconds * 1000:.0f}",
        "session": visit.session_id,
        "code": visit.code,
    }
    level = logging.DEBUG if visit.route in QUIET and status == 200 else logging.INFO
    with logs.about(session_id=visit.session_id):
        log.log(level, "visit %s", " ".join(f"{name}={value}" for name, value in facts.items() if value != ""))

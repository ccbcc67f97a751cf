"""What comes before there is a request: how many connections there may be, and how long a head or a body may take.

uvicorn bounds neither. This is its own h11 protocol with a timer around it; h11 rather than httptools, because it
refuses what is no HTTP instead of guessing, and bounds what it buffers (docs/decisions/0008).
"""

from __future__ import annotations

import asyncio
import http
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from quintain.contracts.invoke import FaultReply
from quintain.errors import BadRequest, Fault
from quintain_gateway.limits import Limits
from quintain_gateway.metrics import GatewayMetrics
from quintain_gateway.refusals import JSON, HeadTooLarge, RequestTimeout, TooManyConnections
from quintain_gateway.visit import visit_id

#: A connection that was turned away, or whose request was answered before its body had come, stays open for so long
#: at most: closed at once, TCP would take the answer back from a client that still sends.
LINGER_SECONDS = 2.0

#: So many of those turned away linger; more are cut without a word.
MOST_LINGERING = 64


class Guard:
    """What the connections of one server have in common."""

    def __init__(self, limits: Limits, metrics: GatewayMetrics) -> None:
        self.limits, self.metrics = limits, metrics
        self.lingering = 0


class GuardedProtocol(H11Protocol):
    """One connection."""

    def __init__(self, guard: Guard, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self.access_log = False  # it would show paths, which are a stranger's words: the journal writes for it
        self._guard = guard
        self._turned_away = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        if len(self.connections) >= self._guard.limits.most_connections:
            self._turn_away(transport)
            return
        super().connection_made(transport)
        self._guard.metrics.connections.inc()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self._turned_away:
            self._guard.lingering -= 1
            return
        self._head_came()
        self._guard.metrics.connections.dec()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """It sent something."""
        if self._turned_away:
            self.transport.close()
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_came()
        elif self._head_timer is None and not self.transport.is_closing():
            self._await_head()

    def on_response_complete(self) -> None:
        """Its request is answered; what it still sends of it is thrown away for a while, then it is closed."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self.loop.call_later(LINGER_SECONDS, self._stop_lingering, self.cycle)

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        error = sys.exception()
        too_large = isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == HeadTooLarge.status
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()  # an answer has begun: there is no place for another
        elif too_large:
            most = self._guard.limits.most_head_bytes
            self._refuse(HeadTooLarge(f"The request's line and headers are larger than {most} bytes"), "head too large")
        else:
            self._refuse(BadRequest(msg), "no HTTP")

    def _turn_away(self, transport: asyncio.Transport) -> None:
        self._turned_away = True
        self.transport = transport
        self._guard.lingering += 1
        if self._guard.lingering > MOST_LINGERING:
            self._guard.metrics.turned_away("too many connections")
            transport.abort()
            return
        self._say(TooManyConnections(), "too many connections")
        self.loop.call_later(LINGER_SECONDS, transport.close)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._guard.limits.head_seconds, self._head_is_late)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.conn.trailing_data[0]:
            self.transport.close()  # it never asked anything
            return
        self._refuse(
            RequestTimeout(f"The headers did not arrive within {self._guard.limits.head_seconds:g} s"), "slow head"
        )

    def _stop_lingering(self, cycle: object) -> None:
        if self.cycle is cycle and self.conn.their_state is h11.SEND_BODY:
            self.transport.close()

    def _refuse(self, fault: Fault, reason: str) -> None:
        self._say(fault, reason)
        self.transport.close()

    def _say(self, fault: Fault, reason: str) -> None:
        self._guard.metrics.turned_away(reason)
        body = FaultReply.of(fault).to_wire()
        head = (
            f"HTTP/1.1 {fault.status} {http.HTTPStatus(fault.status).phrase}\r\ncontent-type: {JSON}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\nx-request-id: {visit_id(None)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)

"""Limits on connections: their number, and the time in which headers must arrive.

uvicorn has neither limit. This subclasses its h11 protocol; h11 rather than httptools because it rejects malformed
HTTP instead of guessing and limits its buffers (docs/decisions/0008).
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
from quintain_gateway.http.context import valid_or_new_id
from quintain_gateway.http.errors import JSON_MEDIA_TYPE, HeadersTooLarge, RequestTimeout, TooManyConnections
from quintain_gateway.http.limits import GatewayLimits
from quintain_gateway.metrics import GatewayMetrics

#: A connection that was turned away, or whose request was answered before its body had come, stays open for so long
#: at most: closed at once, TCP would take the answer back from a client that still sends.
LINGER_SECONDS = 2.0

#: So many of those turned away linger; more are cut without a word.
MAX_LINGERING = 64


class SharedConnectionState:
    """What the connections of one server have in common."""

    def __init__(self, limits: GatewayLimits, metrics: GatewayMetrics) -> None:
        self.limits, self.metrics = limits, metrics
        self.lingering_count = 0


class LimitedH11Protocol(H11Protocol):
    """One connection."""

    def __init__(self, shared: SharedConnectionState, **protocol_options: Any) -> None:
        super().__init__(**protocol_options)
        self.access_log = False  # it would show paths, which are a stranger's words: the journal writes for it
        self._shared = shared
        self._is_rejected = False
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        if len(self.connections) >= self._shared.limits.max_connections:
            self._reject(transport)
            return
        super().connection_made(transport)
        self._shared.metrics.connections.inc()
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self._is_rejected:
            self._shared.lingering_count -= 1
            return
        self._stop_header_timer()
        self._shared.metrics.connections.dec()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """It sent something."""
        if self._is_rejected:
            self.transport.close()
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_header_timer()
        elif self._header_timer is None and not self.transport.is_closing():
            self._start_header_timer()

    def on_response_complete(self) -> None:
        """Its request is answered; what it still sends of it is thrown away for a while, then it is closed."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self.loop.call_later(LINGER_SECONDS, self._close_after_linger, self.cycle)

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        error = sys.exception()
        too_large = isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == HeadersTooLarge.status
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()  # an answer has begun: there is no place for another
        elif too_large:
            max_bytes = self._shared.limits.max_header_bytes
            self._respond_and_close(
                HeadersTooLarge(f"The request's line and headers are larger than {max_bytes} bytes"), "head too large"
            )
        else:
            self._respond_and_close(BadRequest(msg), "no HTTP")

    def _reject(self, transport: asyncio.Transport) -> None:
        self._is_rejected = True
        self.transport = transport
        self._shared.lingering_count += 1
        if self._shared.lingering_count > MAX_LINGERING:
            self._shared.metrics.count_rejected_connection("too many connections")
            transport.abort()
            return
        self._write_fault(TooManyConnections(), "too many connections")
        self.loop.call_later(LINGER_SECONDS, transport.close)

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self._shared.limits.header_timeout_seconds, self._on_header_timeout)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        if not self.conn.trailing_data[0]:
            self.transport.close()  # it never asked anything
            return
        self._respond_and_close(
            RequestTimeout(f"The headers did not arrive within {self._shared.limits.header_timeout_seconds:g} s"),
            "slow head",
        )

    def _close_after_linger(self, cycle: object) -> None:
        if self.cycle is cycle and self.conn.their_state is h11.SEND_BODY:
            self.transport.close()

    def _respond_and_close(self, fault: Fault, reason: str) -> None:
        self._write_fault(fault, reason)
        self.transport.close()

    def _write_fault(self, fault: Fault, reason: str) -> None:
        self._shared.metrics.count_rejected_connection(reason)
        body = FaultReply.from_fault(fault).to_wire()
        header_block = (
            f"HTTP/1.1 {fault.status} {http.HTTPStatus(fault.status).phrase}\r\ncontent-type: {JSON_MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\nx-request-id: {valid_or_new_id(None)}\r\n\r\n"
        )
        self.transport.write(header_block.encode() + body)

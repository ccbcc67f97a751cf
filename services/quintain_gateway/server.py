"""Runs a gateway: its application in uvicorn, with limits on connections and strict heads of requests.

uvicorn has no limit on the number of connections and on the time in which headers must arrive. This subclasses its
h11 protocol; h11 rather than httptools because it rejects malformed HTTP instead of guessing and limits its buffers
(docs/decisions/0008).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http
import math
import re
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import h11
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from quintain.bus.base import Bus
from quintain.contracts.invoke import FaultReply
from quintain.contracts.service_card import ServiceCard
from quintain.errors import BadRequest, Fault
from quintain.fleet.beats import ServiceIdentity, send_beats
from quintain.observe.health import OpsEndpoints
from quintain.programs.agent_gateway import AgentUrlApp
from quintain.programs.agent_urls import AgentUrls
from quintain.rpc.broker_probe import report_ready
from quintain.rpc.requests import RpcClient
from quintain.runtime.concurrency import running_task
from quintain.runtime.http_server import open_listener, serve_uvicorn, url_of
from quintain.timings import DEFAULT_TIMINGS, Clock, Timings
from quintain_gateway.apis.health import MetadataHealthCheck
from quintain_gateway.app import build_app
from quintain_gateway.auth import FleetGateway
from quintain_gateway.endpoint import context_in_scope, error_response_of, valid_or_new_id
from quintain_gateway.errors import JSON_MEDIA_TYPE, HeadersTooLarge, RequestTimeout, TooManyConnections
from quintain_gateway.fleet_page import FleetAccess
from quintain_gateway.metrics import GatewayMetrics
from quintain_gateway.settings import BindAddress, GatewayLimits


@contextlib.asynccontextmanager
async def run_gateway(
    bus: Bus,
    address: BindAddress,
    limits: GatewayLimits,
    *,
    metrics: GatewayMetrics | None = None,
    ops_endpoints: OpsEndpoints | None = None,
    timings: Timings = DEFAULT_TIMINGS,
) -> AsyncIterator[str]:
    """Run a gateway; yields its base URL, without a trailing slash. Raises `ConfigError` for a bad address.

    With ``ops_endpoints``, these report ready when the gateway is.
    """
    rpc_client, metrics = RpcClient(bus), metrics or GatewayMetrics()
    metrics.set_broker(bus)
    identity = ServiceIdentity("gateway")

    def card() -> ServiceCard:
        return identity.card(in_flight=rpc_client.in_flight, broker_reconnects=bus.reconnects)

    metrics.set_service_card(card)
    check = MetadataHealthCheck(rpc_client).check
    async with (
        _serve_gateway(bus, rpc_client, address, limits, metrics) as url,
        running_task(send_beats(bus, card, timings), "heartbeats"),
        contextlib.nullcontext() if ops_endpoints is None else report_ready(ops_endpoints, bus, check, card),
    ):
        yield url


@contextlib.asynccontextmanager
async def run_agent_gateway(bus: Bus, urls: AgentUrls) -> AsyncIterator[None]:
    """Run a gateway on loopback for the agents' URLs of this process, and tell them where it is."""
    options = bus, RpcClient(bus), BindAddress(), GatewayLimits(), GatewayMetrics()
    async with _serve_gateway(*options, lambda app: AgentUrlApp(app, urls, error_response_of)) as urls.base_url:
        yield


@contextlib.asynccontextmanager
async def _serve_gateway(
    bus: Bus,
    rpc_client: RpcClient,
    address: BindAddress,
    limits: GatewayLimits,
    metrics: GatewayMetrics,
    wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> AsyncIterator[str]:
    """Serve all endpoints, inside of ``wrap``; yields the base URL."""
    async with rpc_client:
        fleet_gateway, access = FleetGateway(rpc_client, Clock(), limits, metrics), FleetAccess(bus)
        try:
            app = wrap(build_app(fleet_gateway, access, address.host_names()))
            async with serve_app(app, address, limits, metrics) as url:
                yield url
        finally:
            await access.close()
            await fleet_gateway.close()


@contextlib.asynccontextmanager
async def serve_app(
    app: ASGIApp, address: BindAddress, limits: GatewayLimits, metrics: GatewayMetrics
) -> AsyncIterator[str]:
    """Serve the application; yields its base URL, without a trailing slash.

    On exit, no connection is accepted any more, and running requests may take up to ``limits.grace_seconds``. Raises
    `ConfigError` if the address must not or cannot be opened.
    """
    tls = address.ssl_context()
    protocol: Any = functools.partial(LimitedH11Protocol, SharedConnectionState(limits, metrics))
    listener = open_listener(address.host, address.port)
    async with serve_uvicorn(
        listener,
        app,
        "gateway",
        http=protocol,
        h11_max_incomplete_event_size=limits.max_header_bytes,
        timeout_keep_alive=limits.idle_timeout_seconds,
        timeout_graceful_shutdown=math.ceil(limits.grace_seconds),
        ssl_context_factory=None if tls is None else lambda *_: tls,
    ):
        yield url_of("http" if tls is None else "https", address.host, listener)


#: How long a connection whose client still sends stays open after its answer, in seconds, and how much is read of it
#: meanwhile, in bytes. If it were closed at once, a TCP reset could discard the answer.
LINGER_SECONDS, LINGER_BYTES = 5.0, 64 * 1024 * 1024

#: The maximum number of rejected connections that stay open; further ones are reset without a response.
MAX_LINGERING = 64

#: How much is read from a connection at once, in bytes. asyncio's 256 KiB are a block that the C library maps for each
#: read and gives back: that takes several times as long as the read itself.
READ_BYTES = 32 * 1024


class SharedConnectionState:
    """State shared by all connections of one server: limits, metrics, and the lingering connections."""

    def __init__(self, limits: GatewayLimits, metrics: GatewayMetrics) -> None:
        self.limits, self.metrics = limits, metrics
        self.lingering_count = 0


class LimitedH11Protocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol for one connection, with a connection limit and a header timeout."""

    def __init__(self, shared: SharedConnectionState, **protocol_options: Any) -> None:
        super().__init__(**protocol_options)
        self.conn = StrictConnection(shared.limits.max_header_bytes)
        self.access_log = False  # uvicorn's log would contain paths chosen by clients; see `access_log`
        self._shared = shared
        self._is_rejected = False
        self._discarded_bytes: int | None = None
        self._received_cycle: object = None
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a new connection, or answer it with 503 if there are too many."""
        if len(self.connections) >= self._shared.limits.max_connections:
            self._reject(transport)
            return
        super().connection_made(ClosedAfterBody(transport, self))  # type: ignore[arg-type]
        if hasattr(transport, "max_size"):  # of asyncio's sockets; other loops' and TLS's transports have none
            transport.max_size = READ_BYTES
        self._shared.metrics.connections.inc()
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection was closed."""
        if self._is_rejected:
            self._shared.lingering_count -= 1
            return
        self._stop_header_timer()
        self._shared.metrics.connections.dec()
        super().connection_lost(exc)
        cycle: Any = self.cycle
        if cycle is not None and cycle.disconnected:
            context_in_scope(cycle.scope).disconnect()

    def data_received(self, data: bytes) -> None:
        """Process received bytes; the header timer stops when the headers are complete."""
        if self._discarded_bytes is not None:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > LINGER_BYTES:
                self.transport.close()
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_header_timer()
        elif self._header_timer is None and not self.transport.is_closing():
            self._start_header_timer()

    def handle_events(self) -> None:
        """Process what was received; once for each complete request, read on to learn that the client disconnects.

        A large body, or the next request behind it, stops the reading. What a client sends before its answer stops it
        again.
        """
        super().handle_events()
        if self.conn.their_state in {h11.DONE, h11.MUST_CLOSE} and self._received_cycle is not self.cycle:
            self._received_cycle = self.cycle
            self.flow.resume_reading()

    def linger(self, transport: asyncio.Transport) -> None:
        """Close a connection once its client has, or after `LINGER_SECONDS`; discard what it sends until then."""
        self._discarded_bytes = 0
        self._stop_header_timer()
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()
        self.loop.call_later(LINGER_SECONDS, transport.close)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not valid HTTP with 400, or with 431 if the headers are too large."""
        error = sys.exception()
        too_large = isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == HeadersTooLarge.status
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()  # a response has begun, so no error can be sent
        elif too_large:
            max_bytes = self._shared.limits.max_header_bytes
            self._respond_and_close(
                HeadersTooLarge(f"The request line and headers are larger than {max_bytes} bytes"), "head too large"
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
        self.linger(transport)

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self._shared.limits.header_timeout_seconds, self._on_header_timeout)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        if not self.conn.trailing_data[0]:
            self.transport.close()  # it sent no byte of a request
            return
        self._respond_and_close(
            RequestTimeout(f"The headers did not arrive within {self._shared.limits.header_timeout_seconds:g} s"),
            "slow head",
        )

    def _respond_and_close(self, fault: Fault, reason: str) -> None:
        self._write_fault(fault, reason)
        self.linger(self.transport)

    def _write_fault(self, fault: Fault, reason: str) -> None:
        self._shared.metrics.count_rejected_connection(reason)
        body = FaultReply.from_fault(fault).to_wire()
        header_block = (
            f"HTTP/1.1 {fault.status} {http.HTTPStatus(fault.status).phrase}\r\ncontent-type: {JSON_MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\nx-request-id: {valid_or_new_id(None)}\r\n\r\n"
        )
        self.transport.write(header_block.encode() + body)


class ClosedAfterBody:
    """A transport that lingers where it is to be closed while the body of a request still arrives."""

    def __init__(self, transport: asyncio.Transport, protocol: LimitedH11Protocol) -> None:
        self._transport, self._protocol = transport, protocol
        self._is_lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more is sent."""
        return self._is_lingering or self._transport.is_closing()

    def close(self) -> None:
        """Close the connection, now or once its body has arrived."""
        if self.is_closing() or self._protocol.conn.their_state is not h11.SEND_BODY:
            self._transport.close()
        else:
            self._is_lingering = True
            self._protocol.linger(self._transport)


_ABSOLUTE_FORM = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE)

#: The line break before a folded line, or a line break without its CR.
_AMBIGUOUS_LINES = re.compile(rb"\n[ \t]|(?<!\r)\n")

_LENGTH_HEADERS = {b"content-length", b"transfer-encoding"}


class StrictConnection(h11.Connection):
    """The server's side of a connection, which refuses ambiguous heads and sends a head together with its body.

    ``max_head_bytes`` is the size up to which it waits for the end of a head. Other programs on the way may read
    ambiguous heads differently: the ways of request smuggling. h11 accepts three forms that RFC 9112 lets a server
    refuse: lines that end with a bare LF, header lines that are folded, and a request with both Content-Length and
    Transfer-Encoding. A target in absolute form, as clients write it to proxies, is read as RFC 9112 §3.2.2 says: its
    path is the request's, and its host takes the place of the header's.
    """

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self._unsent_head = b""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event of what was received. Raises `RemoteProtocolError` for an ambiguous head."""
        received = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        _check_head(received[: len(received) - len(self.trailing_data[0])], event)
        absolute = _ABSOLUTE_FORM.fullmatch(event.target)
        return event if absolute is None else _to_origin_form(event, *absolute.groups())

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]
        """Return the bytes of an event; those of a head with a Content-Length come with what follows it.

        uvicorn writes the bytes of each event at once. A body of known length follows its head immediately, so both
        leave in one system call and mostly one packet. An answer before the end of its request's body closes the
        connection: what is still to come is no other request.
        """
        if isinstance(event, h11.Response) and self.their_state is h11.SEND_BODY:
            headers = [*event.headers, (b"connection", b"close")]
            event = h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
        sent = super().send(event)
        if sent is None:
            return None
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            self._unsent_head = sent
            return b""
        head, self._unsent_head = self._unsent_head, b""
        return head + sent


def _to_origin_form(request: h11.Request, host: bytes, path: bytes) -> h11.Request:
    return h11.Request(
        method=request.method,
        target=path if path.startswith(b"/") else b"/" + path,
        headers=[(b"host", host), *((name, value) for name, value in request.headers if name != b"host")],
        http_version=request.http_version,
    )


def _check_head(head: bytes, request: h11.Request) -> None:
    if _AMBIGUOUS_LINES.search(head):
        raise h11.RemoteProtocolError("a line of the head ends with a bare LF, or is folded")
    if _LENGTH_HEADERS.issubset(name for name, _ in request.headers):
        raise h11.RemoteProtocolError("the request has both Content-Length and Transfer-Encoding")

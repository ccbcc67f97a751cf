"""The transport over HTTP, for programs that reach a gateway but no broker: each call is one request.

No request is retried automatically: the call of a lost connection may have been charged, and only the caller knows
whether its request has an id to repeat. When the task of a call is cancelled, its connection is closed, and the gateway
cancels the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from urllib.parse import quote, urlencode

import httpx2
from pydantic import JsonValue

from quintain.client.transport import REPLY_GRACE_SECONDS, BatchItem, InvokeCall, expired_fault
from quintain.clock import Clock
from quintain.contracts import session as session_messages
from quintain.contracts.invoke import FaultReply, InvokeRequest, JsonObject, Result
from quintain.contracts.message import Message
from quintain.contracts.token import public_id
from quintain.errors import (
    FAULTS,
    BadRequest,
    BudgetUnavailable,
    ConfigError,
    Fault,
    GatewayUnavailable,
    InternalFault,
    NoAnswer,
)
from quintain.routes import DEADLINE_HEADER, REQUEST_ID_HEADER, ReplyT, RequestT, Route
from quintain.telemetry.semconv import http_client_span
from quintain.telemetry.spans import context_headers, current_traceparent, span

#: Timeout for opening a connection, in seconds; after that only the call's deadline applies.
CONNECT_TIMEOUT_SECONDS = 10.0

#: Maximum number of connections; further calls wait for a free one. A gateway accepts 1000 in total.
MAX_CONNECTIONS = 256

#: How long an idle connection is kept, in seconds: shorter than the gateway's own limit, so that no request is sent on
#: a connection that the gateway has just closed.
KEEPALIVE_SECONDS = 15.0

MAX_PORT = 65535


class _BatchReply(Message):
    """The reply to a batch: results, and faults next to an empty ``output``."""

    responses: list[JsonObject]


class HttpConnection:
    """A connection pool to one gateway, for any number of tokens; create it with `open_http_connection`."""

    def __init__(self, http: httpx2.AsyncClient, address: str) -> None:
        self._http = http
        #: The gateway's address without credentials, for messages.
        self.address = address

    async def request(
        self,
        method: str,
        path: str,
        reply_type: type[ReplyT],
        *,
        timeout_seconds: float,
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> ReplyT:
        """Send a request and return its reply. Raises the gateway's `Fault`, `NoAnswer`, or `GatewayUnavailable`."""
        try:
            async with asyncio.timeout(timeout_seconds):
                response = await self._http.request(method, path, content=body, headers=headers)
        except TimeoutError:
            raise NoAnswer(f"{self.address} did not answer within {timeout_seconds:.1f} s") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            raise GatewayUnavailable(
                f"No gateway answers at {self.address} ({_error_reason(error)}): does `quintain serve gateway` run "
                "there?"
            ) from None
        except httpx2.TransportError as error:
            raise GatewayUnavailable(
                f"The connection to {self.address} was lost before the answer came ({_error_reason(error)}): `info` "
                "shows whether a call was charged, and a retry with the same request id is the same call"
            ) from None
        if not response.is_success:
            raise self._fault(response)
        try:
            return reply_type.from_wire(response.content)
        except BadRequest as decode_error:
            raise InternalFault(
                f"The answer of {self.address} cannot be read ({decode_error.message})", charge_unknown=True
            ) from None

    def _fault(self, response: httpx2.Response) -> Fault | GatewayUnavailable:
        try:
            reply = FaultReply.from_wire(response.content)
        except BadRequest:
            return GatewayUnavailable(
                f"{self.address} answered {response.status_code}, and not as a gateway does: is it one? "
                "(QUINTAIN_GATEWAY_URL)"
            )
        if reply.code not in FAULTS and reply.status < InternalFault.status:
            # Errors of HTTP itself (an unknown path, a wrong method) are mistakes of the request as well.
            reply = reply.model_copy(update={"code": BadRequest.code})
        return reply.to_fault()


class HttpTransport:
    """Implements `Transport` with one token over a gateway's connections.

    ``traceparent`` is the trace context of calls made outside of any span. Raises `ConfigError` if the token is not
    ASCII.
    """

    def __init__(self, connection: HttpConnection, token: str, *, traceparent: str | None = None) -> None:
        self.clock = Clock()
        if not token.isascii():
            raise ConfigError("The token cannot be used: it is not ASCII")
        self._connection, self._traceparent = connection, traceparent
        self._authorization = {"Authorization": f"Bearer {token}"}
        self._session_id = public_id(token)

    async def close(self) -> None:
        """Do nothing: the gateway cancels calls of closed connections."""

    def cancel_later(self, request_ids: Sequence[str]) -> None:
        """Do nothing: the gateway cancels calls of closed connections."""

    async def invoke(self, call: InvokeCall) -> Result:
        """Implements `Transport.invoke`.

        Raises `BadRequest` if the request id is no valid header value, and `ConfigError` if a callback is given.
        """
        if call.on_chunk is not None or call.on_progress is not None:
            raise ConfigError("Over HTTP there are no pieces of an answer and no progress: connect to the broker")
        headers = {}
        if call.request_id:
            if not call.request_id.isascii() or not call.request_id.isprintable():
                raise BadRequest("request_id: over HTTP it is printable ASCII")
            headers[REQUEST_ID_HEADER] = call.request_id
        return await self._post("/invoke", call.request.to_wire(), Result, headers, call.deadline_seconds)

    async def invoke_batch(self, items: Sequence[InvokeRequest | Fault], *, deadline_seconds: float) -> list[BatchItem]:
        """Implements `Transport.invoke_batch` with one request, whose body is limited (`PayloadTooLarge`)."""
        # An invalid item keeps its place in the batch and its reservation, as over AMQP.
        body = b",".join(b"null" if isinstance(item, Fault) else item.to_wire() for item in items)
        answer = await self._post("/invokeBatch", b'{"requests":[%s]}' % body, _BatchReply, {}, deadline_seconds)
        return [
            BatchItem(None, item) if isinstance(item, Fault) else _batch_item(response)
            for item, response in zip(items, answer.responses, strict=True)
        ]

    async def call_route(self, route: Route[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float) -> ReplyT:
        """Implements `Transport.call_route`. Raises `BudgetUnavailable` if the gateway does not answer in time."""
        method, path = _method_and_path(request, self._session_id)
        body = request.to_wire() if method in {"POST", "PATCH"} else None
        try:
            return await self._connection.request(
                method, path, route.reply_type, timeout_seconds=timeout_seconds, headers=self._authorization, body=body
            )
        except NoAnswer as error:
            raise BudgetUnavailable(error.message) from None

    async def _post(
        self, path: str, body: bytes, reply_type: type[ReplyT], headers: dict[str, str], deadline_seconds: float
    ) -> ReplyT:
        deadline = self.clock.deadline_ms(deadline_seconds)
        try:
            span_start = http_client_span("POST", path, request_id=headers.get(REQUEST_ID_HEADER))
            with span(span_start, parent=self._traceparent if current_traceparent() is None else None):
                return await self._connection.request(
                    "POST",
                    path,
                    reply_type,
                    # The client waits a little longer than the deadline for the fleet's own `Expired`.
                    timeout_seconds=deadline_seconds + REPLY_GRACE_SECONDS,
                    headers={**self._authorization, **headers, DEADLINE_HEADER: str(deadline), **context_headers()},
                    body=body,
                )
        except NoAnswer:
            raise expired_fault(deadline_seconds) from None


@contextlib.asynccontextmanager
async def open_http_transport(url: str, token: str, *, traceparent: str | None = None) -> AsyncIterator[HttpTransport]:
    """Open a transport on connections of its own. Raises `ConfigError` if the URL or the token cannot be used."""
    async with open_http_connection(url) as connection:
        yield HttpTransport(connection, token, traceparent=traceparent)


@contextlib.asynccontextmanager
async def open_http_connection(url: str) -> AsyncIterator[HttpConnection]:
    """Open a connection pool to the gateway at this base URL; TLS certificates are always verified.

    Raises `ConfigError` if the URL is not a gateway's base URL.
    """
    try:
        base_url = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ConfigError(f"QUINTAIN_GATEWAY_URL cannot be used: {error}") from None
    if base_url.scheme not in {"http", "https"} or not base_url.host or (base_url.port or 0) > MAX_PORT:
        raise ConfigError("QUINTAIN_GATEWAY_URL is no address of a gateway: give one such as http://127.0.0.1:8787")
    if base_url.query or base_url.fragment:
        raise ConfigError("QUINTAIN_GATEWAY_URL has more than an address and a path: give it without ? and #")
    async with httpx2.AsyncClient(
        base_url=base_url,
        verify=_tls_context(base_url),
        headers={"User-Agent": f"quintain/{importlib.metadata.version('quintain')}"},
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_SECONDS),
        limits=httpx2.Limits(
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_SECONDS,
        ),
        # A redirect would send the token to another server.
        follow_redirects=False,
    ) as http:
        yield HttpConnection(http, _without_userinfo(base_url))


def _tls_context(base_url: httpx2.URL) -> ssl.SSLContext:
    """Return the TLS context of a client. Without TLS it trusts no server: reading the certificates takes 50 ms."""
    return httpx2.create_ssl_context() if base_url.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _without_userinfo(url: httpx2.URL) -> str:
    """Return the URL without user name and password, for messages."""
    return str(url.copy_with(userinfo=b"")).rstrip("/")


def _error_reason(error: httpx2.TransportError) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _method_and_path(request: Message, own_session_id: str | None) -> tuple[str, str]:
    """Return the HTTP method and path of an operation. Raises `ConfigError` if the gateway does not offer it.

    ``own_session_id`` is the id of the session whose token is used, None for the admin token.
    """
    match request:
        case session_messages.GetInfo():
            return "GET", "/info?perTarget=true" if request.per_target else "/info"
        case session_messages.OpenSession():
            return "POST", "/sessions"
        case session_messages.AmendSession():
            return "PATCH", _session_path(request.session_id)
        case session_messages.CloseSession() | session_messages.CloseChildren():
            suffix = "/children" if isinstance(request, session_messages.CloseChildren) else ""
            return "DELETE", f"{_session_path(own_session_id or '')}{suffix}"
        case session_messages.ShowSession():
            return "GET", _session_path(request.session_id)
        case session_messages.ListSessions():
            query = urlencode(json.loads(request.to_wire()))
            return "GET", f"/sessions?{query}" if query else "/sessions"
    raise ConfigError(
        f"A gateway has no operation {type(request).__name__}: connect to the broker (QUINTAIN_BROKER_URL)"
    )


def _session_path(session_id: str) -> str:
    # A slash or dots would change the path; no session id contains them.
    if not re.fullmatch(r"[\w-]+", session_id):
        raise BadRequest(f"sessionId: there is no session {session_id!r}; `quintain session list` shows them")
    return f"/sessions/{quote(session_id)}"


def _batch_item(answer: dict[str, JsonValue]) -> BatchItem:
    body = json.dumps(answer)
    if "error" in answer:
        return BatchItem(None, FaultReply.from_wire(body).to_fault())
    return BatchItem(Result.from_wire(body), None)

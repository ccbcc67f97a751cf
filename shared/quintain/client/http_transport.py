"""The transport over HTTP, for programs that reach a gateway but no broker: each call is one request.

No call is retried automatically: that of a lost connection may have been charged, and only the caller knows whether its
request has an id to repeat. When the task of a call is cancelled, its connection is closed, and the gateway
cancels the call.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from urllib.parse import quote, urlencode, urlsplit

from pydantic import JsonValue

from quintain import errors
from quintain.client.transport import REPLY_GRACE_SECONDS, BatchItem, InvokeCall, expired_fault
from quintain.contracts import session as session_messages
from quintain.contracts.credentials import public_id
from quintain.contracts.fleet import ListQuotas
from quintain.contracts.headers import DEADLINE_HEADER, REQUEST_ID_HEADER
from quintain.contracts.invoke import FaultReply, InvokeRequest, JsonObject, Result
from quintain.contracts.message import Message
from quintain.observe.semconv import http_client_span
from quintain.observe.spans import context_headers, current_traceparent, span
from quintain.routes import ReplyT, RequestT, Route
from quintain.runtime.http_client import ConnectionLost, HttpClient, NotSent
from quintain.settings import environment
from quintain.timings import Clock

#: Maximum number of connections; further calls wait for a free one. A gateway accepts 1000 in total.
MAX_CONNECTIONS = 256

#: How long an idle connection is kept, in seconds: shorter than the gateway's own limit, so that no request is sent on
#: a connection that the gateway has just closed.
KEEPALIVE_SECONDS = 15.0


class _BatchReply(Message):
    """The reply to a batch: results, and faults next to an empty ``output``."""

    responses: list[JsonObject]


class HttpConnection:
    """A connection pool to one gateway, for any number of tokens; create it with `open_http_connection`."""

    def __init__(self, http: HttpClient, address: str) -> None:
        self._http = http
        #: The gateway's address, for messages.
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
            async with self._http.request(method, path, body, headers, timeout_seconds) as response:
                content = await response.read()
        except TimeoutError:
            raise errors.NoAnswer(f"{self.address} did not answer within {timeout_seconds:.1f} s") from None
        except NotSent as error:
            raise errors.GatewayUnavailable(
                f"No gateway answers at {self.address}{_reason(error)}: does `quintain serve gateway` run there?"
            ) from None
        except ConnectionLost as error:
            raise errors.GatewayUnavailable(
                f"The connection to {self.address} was lost before the answer came{_reason(error)}: `info` shows "
                "whether a call was charged, and a retry with the same request id is the same call"
            ) from None
        if not 200 <= response.status < 300:
            raise self._fault(response.status, content)
        try:
            return reply_type.from_wire(content)
        except errors.BadRequest as decode_error:
            raise errors.InternalFault(
                f"The answer of {self.address} cannot be read ({decode_error.message})", charge_unknown=True
            ) from None

    def _fault(self, status: int, content: bytes) -> errors.Fault | errors.GatewayUnavailable:
        try:
            reply = FaultReply.from_wire(content)
        except errors.BadRequest:
            return errors.GatewayUnavailable(
                f"{self.address} answered {status}, and not as a gateway does: is it one? (QUINTAIN_GATEWAY_URL)"
            )
        if reply.code not in errors.FAULTS and reply.status < errors.InternalFault.status:
            # Errors of HTTP itself (an unknown path, a wrong method) are mistakes of the request as well.
            reply = reply.model_copy(update={"code": errors.BadRequest.code})
        return reply.to_fault()


class HttpTransport:
    """Implements `Transport` with one token over a gateway's connections.

    ``traceparent`` is the trace context of calls made outside of any span. Raises `ConfigError` if the token is not
    printable ASCII.
    """

    def __init__(self, connection: HttpConnection, token: str, *, traceparent: str | None = None) -> None:
        self.clock = Clock()
        if not (token.isascii() and token.isprintable()):
            raise errors.ConfigError("The token cannot be used: it is not printable ASCII")
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
            raise errors.ConfigError(
                "Over HTTP there are no pieces of an answer and no progress: connect to the broker"
            )
        headers = {}
        if call.request_id:
            if not call.request_id.isascii() or not call.request_id.isprintable():
                raise errors.BadRequest("request_id: over HTTP it is printable ASCII")
            headers[REQUEST_ID_HEADER] = call.request_id
        return await self._post("/invoke", call.request.to_wire(), Result, headers, call.deadline_seconds)

    async def invoke_batch(
        self, items: Sequence[InvokeRequest | errors.Fault], *, deadline_seconds: float
    ) -> list[BatchItem]:
        """Implements `Transport.invoke_batch` with one request, whose body is limited (`PayloadTooLarge`)."""
        # An invalid item keeps its place in the batch and its reservation, as over AMQP.
        body = b",".join(b"null" if isinstance(item, errors.Fault) else item.to_wire() for item in items)
        answer = await self._post("/invokeBatch", b'{"requests":[%s]}' % body, _BatchReply, {}, deadline_seconds)
        return [
            BatchItem(None, item) if isinstance(item, errors.Fault) else _batch_item(response)
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
        except errors.NoAnswer as error:
            raise errors.BudgetUnavailable(error.message) from None

    async def _post(
        self, path: str, body: bytes, reply_type: type[ReplyT], headers: dict[str, str], deadline_seconds: float
    ) -> ReplyT:
        deadline = self.clock.now_ms() + int(deadline_seconds * 1000)
        try:
            span_start = http_client_span("POST", path, request_id=headers.get(REQUEST_ID_HEADER))
            with span(span_start, parent=self._traceparent if current_traceparent() is None else None):
                return await self._connection.request(
                    "POST",
                    path,
                    reply_type,
                    # The gateway waits that much longer than the deadline for the fleet's own `Expired`, and the
                    # client for the gateway's.
                    timeout_seconds=deadline_seconds + 2 * REPLY_GRACE_SECONDS,
                    headers={**self._authorization, **headers, DEADLINE_HEADER: str(deadline), **context_headers()},
                    body=body,
                )
        except errors.NoAnswer:
            raise expired_fault(deadline_seconds) from None


@contextlib.asynccontextmanager
async def open_http_transport(url: str, token: str, *, traceparent: str | None = None) -> AsyncIterator[HttpTransport]:
    """Open a transport on connections of its own. Raises `ConfigError` if the URL or the token cannot be used."""
    async with open_http_connection(url) as connection:
        yield HttpTransport(connection, token, traceparent=traceparent)


def check_gateway_url(url: str, setting: str = "QUINTAIN_GATEWAY_URL") -> None:
    """Raise `ConfigError`, which names the setting, if a URL is not the base URL of a gateway."""
    try:
        base = urlsplit(url)
        is_address = base.scheme in {"http", "https"} and bool(base.hostname) and base.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise errors.ConfigError(f"{setting} is no address of a gateway: give one such as http://127.0.0.1:8787")
    if base.query or base.fragment:
        raise errors.ConfigError(f"{setting} has more than an address and a path: give it without ? and #")
    if base.username is not None:
        raise errors.ConfigError(f"{setting} has a user name: a gateway reads only the token, give it without")


@contextlib.asynccontextmanager
async def open_http_connection(url: str) -> AsyncIterator[HttpConnection]:
    """Open a connection pool to the gateway at this base URL; TLS certificates are always verified.

    Raises `ConfigError` if the URL is not a gateway's base URL.
    """
    check_gateway_url(url)
    http = HttpClient(
        url,
        {"content-type": "application/json"},
        environment(),
        keepalive_seconds=KEEPALIVE_SECONDS,
        max_connections=MAX_CONNECTIONS,
    )
    try:
        yield HttpConnection(http, url.rstrip("/"))
    finally:
        await http.close()


def _reason(error: NotSent | ConnectionLost) -> str:
    """Return what is known of a failed connection, in parentheses; empty where nothing is."""
    return f" ({error})" if str(error) else ""


def _method_and_path(  # noqa: PLR0911 -- one for each operation
    request: Message, own_session_id: str | None
) -> tuple[str, str]:
    """Return the HTTP method and path of an operation. Raises `ConfigError` if the gateway does not offer it.

    ``own_session_id`` is the id of the session whose token is used, None for the admin token.
    """
    match request:
        case session_messages.GetInfo():
            return "GET", "/info?usage=true" if request.usage else "/info"
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
        case ListQuotas():
            return "GET", "/quotas"
    raise errors.ConfigError(
        f"A gateway has no operation {type(request).__name__}: connect to the broker (QUINTAIN_BROKER_URL)"
    )


def _session_path(session_id: str) -> str:
    # A slash or dots would change the path; no session id contains them.
    if not re.fullmatch(r"[\w-]+", session_id):
        raise errors.BadRequest(f"sessionId: there is no session {session_id!r}; `quintain session list` shows them")
    return f"/sessions/{quote(session_id)}"


def _batch_item(answer: dict[str, JsonValue]) -> BatchItem:
    body = json.dumps(answer)
    if "error" in answer:
        return BatchItem(None, FaultReply.from_wire(body).to_fault())
    return BatchItem(Result.from_wire(body), None)

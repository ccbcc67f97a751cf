"""What all endpoints share: routes by method, session clients by token, request bodies, and errors as responses.

Endpoints authenticate requests themselves. `Api.to_endpoint` wraps a handler so that any exception becomes an error
response in the format of that API.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.client.sessions import AnsweredCalls, CallGroups, DefaultTargets
from quintain.clock import Clock
from quintain.contracts.proof import SessionToken
from quintain.contracts.session import Info
from quintain.errors import (
    BadRequest,
    BudgetExhausted,
    BudgetUnavailable,
    BusError,
    Cancelled,
    Fault,
    NoAnswer,
    PayloadTooLarge,
    Unauthorized,
)
from quintain.rpc.requests import RpcClient
from quintain.rpc.server import log_defect
from quintain.runtime.concurrency import Timeouts
from quintain_gateway.http.context import context_of
from quintain_gateway.http.errors import MethodNotAllowed, RequestTimeout
from quintain_gateway.http.large_bodies import LargeBodies
from quintain_gateway.http.limits import GatewayLimits
from quintain_gateway.http.retries import RetryWindow
from quintain_gateway.http.session_requests import SessionRequests
from quintain_gateway.metrics import GatewayMetrics, InstrumentedTransport

Handler = Callable[[Request], Awaitable[Response]]

#: The HTTP methods that may become label values.
HTTP_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


def method_route(
    path: str, handlers: Mapping[str, Handler], to_endpoint: Callable[[Handler], Handler], *, any_prefix: bool = False
) -> Route:
    """Return a route that dispatches a path by HTTP method and answers any other method with 405.

    ``handlers`` maps methods to handlers; HEAD uses the handler of GET, and OPTIONS is not matched here.
    ``to_endpoint`` wraps the handler with the error format of an API, see `Api.to_endpoint`. With ``any_prefix`` the
    path also matches behind any prefix; the route's path, which is a metric label, remains the one without it.
    """
    handlers_by_method = {**handlers, **({"HEAD": handlers["GET"]} if "GET" in handlers else {})}
    allowed = ", ".join(sorted(handlers_by_method))

    async def handle(request: Request) -> Response:
        if request.method not in handlers_by_method:
            raise MethodNotAllowed(f"{path} does not allow {request.method}; it allows {allowed}")
        return await handlers_by_method[request.method](request)

    async def respond(request: Request) -> Response:
        response = await endpoint(request)
        if response.status_code == MethodNotAllowed.status:
            response.headers["Allow"] = allowed
        return response

    endpoint = to_endpoint(handle)
    route = Route(path, respond, methods=[method for method in HTTP_METHODS if method != "OPTIONS"])
    if any_prefix:
        route.path_regex = re.compile("^(?:/.*)?" + route.path_regex.pattern.removeprefix("^"), re.DOTALL)
    return route


ResultT = TypeVar("ResultT")

#: The age, in seconds, at which the time of the metadata service is requested again.
CLOCK_MAX_AGE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """What all endpoints of one HTTP API have in common.

    ``error_response`` writes a fault in the format of the API, and ``headers`` are sent with every response.
    ``request_id_header`` is a header in which clients of this API expect the request's id in addition to
    ``x-request-id``.
    """

    error_response: Callable[[Fault], Response]
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id_header: str | None = None

    def to_endpoint(self, handler: Handler) -> Handler:
        """Wrap a handler so that every exception becomes an error response in the format of this API."""
        raw_headers = Headers(self.headers).raw

        async def respond(request: Request) -> Response:
            context = context_of(request)
            context.route = getattr(request.scope.get("route"), "path", context.route)
            try:
                response = await handler(request)
            except Fault as fault:
                response = self._error_response(request, fault)
            except (BusError, NoAnswer) as bus_error:
                response = self._error_response(request, unreachable_fault(bus_error))
            except Exception as error:
                # The client gets a response whatever the exception is.
                response = self._error_response(
                    request, log_defect(error, f"answering {context.route}, x-request-id {context.id}")
                )
            response.raw_headers += raw_headers
            if self.request_id_header is not None:
                response.headers[self.request_id_header] = context.id
            return response

        return respond

    def _error_response(self, request: Request, fault: Fault) -> Response:
        context_of(request).code = fault.code
        response = self.error_response(fault)
        if response.status_code == Unauthorized.status:
            response.headers["WWW-Authenticate"] = "Bearer"
        if fault.retry_after_ms is not None:
            response.headers["Retry-After"] = str(math.ceil(fault.retry_after_ms / 1000))
        return response


def bearer_token(request: Request) -> str:
    """Return the token of ``Authorization: Bearer <token>``. Raises `Unauthorized` if there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme != "Bearer" or not token:
        raise Unauthorized
    return token


class FleetGateway:
    """The connection of all endpoints to the fleet: creates the clients that call the metadata service and the workers.

    Stateless except for one RPC client and the time of the metadata service, by which deadlines are set.
    """

    def __init__(self, rpc_client: RpcClient, clock: Clock, limits: GatewayLimits, metrics: GatewayMetrics) -> None:
        self.rpc_client, self.clock, self.limits, self.metrics = rpc_client, clock, limits, metrics
        metrics.watch_rpc_client(rpc_client)
        self._session_requests = SessionRequests(limits.max_session_requests)
        self._large_bodies = LargeBodies(limits.max_large_bodies_bytes)
        #: The calls that go on for the retries of clients that disconnected.
        self.retry_window: RetryWindow[Any] = RetryWindow(limits.retry_window_seconds)
        self._info_received_at = -math.inf
        self._timeouts = Timeouts()
        self._answered, self._default_targets = AnsweredCalls(), DefaultTargets()
        self._groups = CallGroups(rpc_client)
        #: Token → the transport of the session's requests; it is garbage-collected after them and their cancellations.
        self._transports: weakref.WeakValueDictionary[str, AmqpTransport] = weakref.WeakValueDictionary()

    async def close(self) -> None:
        """Finish cancelling the calls of disconnected clients, for a few seconds at most. No request may follow."""
        await self.retry_window.close()
        await asyncio.gather(*(transport.close() for transport in list(self._transports.values())))

    async def session_client(self, request: Request, read_token: Callable[[Request], str] = bearer_token) -> Client:
        """Return a client for the session whose token the request carries.

        ``read_token`` finds the token in the request; by default it is the bearer token. Format and checksum of the
        token are checked without I/O; whether the token is valid is decided by the metadata service when a call is
        made. If the time of the metadata service is older than `CLOCK_MAX_AGE_SECONDS`, it is requested first.

        Raises `Unauthorized`, and `SessionBusy` if the session makes too many requests at once.
        """
        token = SessionToken.parse(read_token(request))
        context = context_of(request)
        context.session_id, context.session_key = token.id, token.sha256.hex()
        self._session_requests.enter(context)
        transport = self._transports.get(token.text)
        if transport is None:
            transport = self._transports[token.text] = AmqpTransport(
                self.rpc_client, token.text, self.clock, self._answered, self._default_targets, self._groups
            )
        client = Client(InstrumentedTransport(transport, self.metrics, self._on_info))
        if asyncio.get_running_loop().time() - self._info_received_at > CLOCK_MAX_AGE_SECONDS:
            await client.get_info()
        return client

    def admin_client(self, request: Request) -> Admin:
        """Return an admin client with the bearer token of the request; the metadata service checks the token.

        Raises `Unauthorized` if there is no bearer token.
        """
        return Admin(AmqpTransport(self.rpc_client, bearer_token(request), self.clock))

    async def read_body(self, request: Request, client: Client | None = None) -> bytes:
        """Read the whole body, limited in size and time by `GatewayLimits`.

        With ``client``, its session may allow a larger body: it is asked before such a body is read.

        Raises `PayloadTooLarge`, `LargeBodiesBusy`, `RequestTimeout`, or `Cancelled` if the client disconnects.
        """
        max_bytes, timeout_seconds = self.limits.max_body_bytes, self.limits.body_timeout_seconds
        size, is_asked = int(request.headers.get("content-length", 0)), False
        body = bytearray()
        try:
            with self._timeouts.limit(timeout_seconds):
                if size > max_bytes:
                    max_bytes, is_asked = await self._allow_large_body(request, client, size), True
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > max_bytes and not is_asked:
                        max_bytes, is_asked = await self._allow_large_body(request, client, len(body)), True
                    if len(body) > max_bytes:
                        raise _too_large(max_bytes)
        except TimeoutError:
            raise RequestTimeout(f"The body did not arrive within {timeout_seconds:g} s") from None
        except ClientDisconnect:
            raise Cancelled("The client disconnected before its body had arrived") from None
        return bytes(body)

    async def _allow_large_body(self, request: Request, client: Client | None, size: int) -> int:
        """Return the limit of the session's bodies, once there is memory for one. Raises `PayloadTooLarge`."""
        max_bytes = self.limits.max_body_bytes
        if client is not None:
            max_bytes = max(max_bytes, (await client.get_info()).max_body_bytes or 0)
        if size > max_bytes:
            raise _too_large(max_bytes)
        # A body without a declared size may grow up to the limit.
        self._large_bodies.take(context_of(request), size if "content-length" in request.headers else max_bytes)
        return max_bytes

    def _on_info(self, info: Info) -> None:
        self.clock.synchronize(info.now)
        self.metrics.allow_target_labels(info.available_targets)
        self._info_received_at = asyncio.get_running_loop().time()


def _too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is larger than {max_bytes} bytes")


@contextlib.asynccontextmanager
async def verify_token_on_body_error(client: Client, *, budget_first: bool = False) -> AsyncIterator[None]:
    """Check the session's token before an error in the request body is reported: read and parse the body inside.

    Raises `Unauthorized` in place of `BadRequest` or `PayloadTooLarge` if the token is not valid; with
    ``budget_first`` also `BudgetExhausted` if the session has no calls left.
    """
    try:
        yield
    except (BadRequest, PayloadTooLarge):
        info = await client.get_info()
        if budget_first and info.call_count >= info.max_calls:
            raise BudgetExhausted(f"Max calls exceeded (limit: {info.max_calls})") from None
        raise


async def cancel_on_disconnect(request: Request, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine and return its result; cancel it if the client disconnects, and raise `Cancelled`."""
    context, task = context_of(request), asyncio.current_task()
    assert task is not None, "a request is answered by a task"
    cancelling_before = task.cancelling()
    context.on_disconnect = task.cancel
    if context.is_disconnected:
        task.cancel()
    try:
        return await coroutine
    except asyncio.CancelledError:
        if not context.is_disconnected or task.uncancel() > cancelling_before:
            raise
        raise Cancelled("The client disconnected before the response", charge_unknown=True) from None
    finally:
        context.on_disconnect = None


def unreachable_fault(error: BusError | NoAnswer) -> Fault:
    """Return the fault for an error of the broker connection or for a request that got no reply."""
    return BudgetUnavailable(f"The fleet cannot be reached: {error.message}")

"""What all endpoints share: routes by method, session clients by token, request bodies, and errors as responses.

Endpoints authenticate requests themselves. `Api.to_endpoint` wraps a handler so that any exception becomes an error
response in the format of that API.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.clock import Clock
from quintain.contracts.session import Info
from quintain.contracts.token import SessionToken
from quintain.errors import (
    BadRequest,
    BudgetUnavailable,
    BusError,
    Cancelled,
    Fault,
    NoAnswer,
    PayloadTooLarge,
    Unauthorized,
)
from quintain.rpc.client import RpcClient
from quintain.rpc.server import log_defect
from quintain_gateway.http.context import context_of
from quintain_gateway.http.errors import MethodNotAllowed, RequestTimeout
from quintain_gateway.http.limits import GatewayLimits
from quintain_gateway.metrics import GatewayMetrics, InstrumentedTransport

Handler = Callable[[Request], Awaitable[Response]]

#: Every method there is a name for; a label's value is one of these.
HTTP_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


def method_route(
    path: str, handlers: Mapping[str, Handler], to_endpoint: Callable[[Handler], Handler], *, any_prefix: bool = False
) -> Route:
    """A path and what answers each of its methods; any other one is 405. OPTIONS is answered for every path alike.

    ``to_endpoint`` is the API's own: what turns a fault into its words. ``any_prefix``: behind any prefix, too; the
    route's own path, which is a label, has none.
    """
    handlers_by_method = {**handlers, **({"HEAD": handlers["GET"]} if "GET" in handlers else {})}
    allowed = ", ".join(sorted(handlers_by_method))

    async def handle(request: Request) -> Response:
        if request.method not in handlers_by_method:
            raise MethodNotAllowed(f"{path} does not know {request.method}: there is {allowed}")
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

#: The metadata service's time is asked for again when it was heard this long ago.
CLOCK_MAX_AGE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One HTTP dialect: how its refusals are written, what headers every answer carries, and under which name its
    clients look for the request's id, where that is not ``x-request-id``."""

    error_response: Callable[[Fault], Response]
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id_header: str | None = None

    def to_endpoint(self, handler: Handler) -> Handler:
        """An endpoint that always answers: what goes wrong becomes a refusal in this dialect."""

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
                # Whatever went wrong, the client gets its one answer.
                response = self._error_response(
                    request, log_defect(error, f"answering {context.route}, x-request-id {context.id}")
                )
            response.headers.update(self.headers)
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
    """The token of ``Authorization: Bearer <token>``. Raises `Unauthorized`."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme != "Bearer" or not token:
        raise Unauthorized
    return token


class FleetGateway:
    """The gateway's way to the fleet: stateless but for one connection to the bus, and the time it heard there."""

    def __init__(self, rpc_client: RpcClient, clock: Clock, limits: GatewayLimits, metrics: GatewayMetrics) -> None:
        self.rpc_client, self.clock, self.limits, self.metrics = rpc_client, clock, limits, metrics
        metrics.watch_rpc_client(rpc_client)
        self._info_received_at = -math.inf
        # One for each request, gone with it; one that still cancels calls lives as long as that.
        self._transports: weakref.WeakSet[AmqpTransport] = weakref.WeakSet()

    async def close(self) -> None:
        """Finish taking back the calls of clients that left: a few seconds at most. Nothing is asked after it."""
        await asyncio.gather(*(transport.close() for transport in list(self._transports)))

    async def session_client(self, request: Request, read_token: Callable[[Request], str] = bearer_token) -> Client:
        """The session's client by the request's bearer token, or by what else ``read_token`` finds. Raises
        `Unauthorized`.

        Its shape and checksum are looked at without any I/O; whether it opens anything the ledger says with the
        call. The client knows the metadata service's time, by which deadlines are set: where that was not heard
        lately, it asks first.
        """
        token = SessionToken.parse(read_token(request))
        context_of(request).session_id = token.id
        transport = AmqpTransport(self.rpc_client, token.text, self.clock)
        self._transports.add(transport)
        client = Client(InstrumentedTransport(transport, self.metrics, self._on_info))
        if asyncio.get_running_loop().time() - self._info_received_at > CLOCK_MAX_AGE_SECONDS:
            await client.get_info()
        return client

    def admin_client(self, request: Request) -> Admin:
        """The administrator's client by the request's bearer token; the metadata service says whether it is one."""
        return Admin(AmqpTransport(self.rpc_client, bearer_token(request), self.clock))

    async def read_body(self, request: Request) -> bytes:
        """The body, up to the limit and within its time. Raises `PayloadTooLarge`, `RequestTimeout`, `Cancelled`."""
        max_bytes, timeout_seconds = self.limits.max_body_bytes, self.limits.body_timeout_seconds
        too_large = PayloadTooLarge(f"The body is larger than {max_bytes} bytes")
        if int(request.headers.get("content-length", 0)) > max_bytes:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(timeout_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > max_bytes:
                        raise too_large
        except TimeoutError:
            raise RequestTimeout(f"The body did not arrive within {timeout_seconds:g} s") from None
        except ClientDisconnect:
            raise Cancelled("The client left before its body had arrived") from None
        return bytes(body)

    def _on_info(self, info: Info) -> None:
        self.clock.synchronize(info.now)
        self.metrics.allow_target_labels(info.available_targets)
        self._info_received_at = asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def verify_token_on_body_error(client: Client) -> AsyncIterator[None]:
    """Read a body inside: what is wrong with it hears a token that opens something; any other is `Unauthorized`."""
    try:
        yield
    except (BadRequest, PayloadTooLarge):
        await client.get_info()
        raise


async def cancel_on_disconnect(request: Request, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Work for as long as the client is there: one that leaves has it cancelled, and this raises `Cancelled`.

    The request's body must have been read: what comes after it is the client's leaving, and nothing else.
    """
    loop = asyncio.get_running_loop()
    work_task, disconnect_task = loop.create_task(coroutine), loop.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait({work_task, disconnect_task}, return_when=asyncio.FIRST_COMPLETED)
        if not work_task.done():
            raise Cancelled("The client left before its answer")
        return work_task.result()
    finally:
        for task in (work_task, disconnect_task):
            task.cancel()
        await asyncio.gather(work_task, disconnect_task, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def parse_json(body: bytes) -> object:
    """The value of a JSON body. Raises `BadRequest`, also for a number that JSON, or no computer, has."""
    try:
        return json.loads(body, parse_constant=_reject_not_finite, parse_float=_parse_finite_float)
    except RecursionError:
        raise BadRequest("The body is not JSON that anybody nests so deep") from None
    except ValueError as error:
        raise BadRequest(f"The body is not JSON: {error}") from None


def _reject_not_finite(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is no number")


def _parse_finite_float(literal: str) -> float:
    number = float(literal)
    return number if math.isfinite(number) else _reject_not_finite(literal)


def unreachable_fault(error: BusError | NoAnswer) -> Fault:
    """What a caller is told where the bus, or whoever answers on it, is out of reach."""
    return BudgetUnavailable(f"The fleet cannot be reached: {error.message}")

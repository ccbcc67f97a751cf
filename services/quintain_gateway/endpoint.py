"""What all endpoints share: the context of a request, routes by method, and errors as responses of an API.

`Api.to_endpoint` wraps a handler so that any exception becomes an error response in the format of that API.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from quintain.contracts.credentials import mask_tokens
from quintain.errors import BudgetUnavailable, BusError, Cancelled, Fault, NoAnswer, Unauthorized
from quintain.rpc.server import log_defect
from quintain_gateway.errors import (
    MethodNotAllowed,
    RefusedInHttp,
    anthropic_response,
    fault_response,
    openai_response,
)

#: The route of requests that match no API: their paths must not become label values or log fields.
UNMATCHED_ROUTE = "elsewhere"

_VALID_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(slots=True)
class RequestContext:
    """The facts about one HTTP request that the access log, the metrics and the span show.

    ``id`` is the value of ``x-request-id``; it is not an idempotency key, as ``request_id`` of its call is. ``route``
    is a path template and ``session_id`` the public id of the session; ``code`` is the code of the error response.
    ``session_key`` tells sessions apart by their whole tokens, which may not be valid; it is never shown. ``on_end``
    are called when the response has ended, ``on_disconnect`` when the client disconnects before. The last six may be
    empty.
    """

    id: str
    route: str = UNMATCHED_ROUTE
    session_id: str = ""
    request_id: str = ""
    code: str = ""
    session_key: str = ""
    on_end: list[Callable[[], object]] = field(default_factory=list)
    on_disconnect: Callable[[], object] | None = None
    is_disconnected: bool = False

    def disconnect(self) -> None:
        """Note that the client disconnected before its response had ended."""
        self.is_disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()


def valid_or_new_id(client_value: str | None) -> str:
    """Return the client's id for its request if it is safe to log and to send back, else a new random id.

    ``client_value`` is the ``x-request-id`` header. A value that contains a token is not safe.
    """
    if client_value is not None and _VALID_ID.fullmatch(client_value) and mask_tokens(client_value) == client_value:
        return client_value
    return secrets.token_hex(8)


def header_in_scope(scope: Scope, name: bytes) -> str | None:
    """Return the first header of this name, in lower case; None if there is none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def context_of(request: Request) -> RequestContext:
    """Return the context of this request."""
    return context_in_scope(request.scope)


def context_in_scope(scope: Scope) -> RequestContext:
    """Return the context stored in an ASGI scope; store a new one if there is none."""
    state = scope.setdefault("state", {})
    if "context" not in state:
        state["context"] = RequestContext(valid_or_new_id(None))
    context = state["context"]
    assert isinstance(context, RequestContext)
    return context


Handler = Callable[[Request], Awaitable[Response]]

#: The HTTP methods that may become label values.
HTTP_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


class AnyMethodRoute(Route):
    """A route that takes any method but OPTIONS, which is answered alike for all paths."""

    def __init__(self, path: str, endpoint: Handler) -> None:
        super().__init__(path, endpoint)
        self.methods = None

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether this is the route of a request."""
        return (Match.NONE, {}) if scope.get("method") == "OPTIONS" else super().matches(scope)


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
            raise MethodNotAllowed.at(path, request.method, allowed)
        return await handlers_by_method[request.method](request)

    route = AnyMethodRoute(path, to_endpoint(handle))
    if any_prefix:
        route.path_regex = re.compile("^(?:/.*)?" + route.path_regex.pattern.removeprefix("^"), re.DOTALL)
    return route


ResultT = TypeVar("ResultT")


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
        if isinstance(fault, RefusedInHttp):
            response.headers.update(fault.headers)
        if fault.retry_after_ms is not None:
            response.headers["Retry-After"] = str(math.ceil(fault.retry_after_ms / 1000))
        return response


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


PLAIN = Api(error_response=fault_response)
OPENAI = Api(error_response=openai_response)
ANTHROPIC = Api(error_response=anthropic_response, request_id_header="request-id")

MESSAGES_PATH = "/v1/messages"

#: A header that every client of Anthropic's API sends, and no client of OpenAI's.
ANTHROPIC_VERSION_HEADER = "anthropic-version"


def is_anthropic(scope: Scope) -> bool:
    """Whether the request is one of Anthropic's API: by its header, or below the path that only this API has."""
    return ANTHROPIC_VERSION_HEADER in Headers(scope=scope) or MESSAGES_PATH in scope["path"]


#: Paths of the APIs of model providers. AgentV's three paths are AgentV's behind any prefix.
MODEL_API_PATH = re.compile(r"^(?:/.*)?/v1/(?!(?:.*/)?(?:info|invoke|invokeBatch)$)", re.DOTALL)


def error_response_of(scope: Scope, fault: Fault) -> Response:
    """Return the error of a request that reaches no endpoint, in the format of its API, by its path and headers."""
    if not MODEL_API_PATH.match(scope["path"]):
        return fault_response(fault)
    return (ANTHROPIC if is_anthropic(scope) else OPENAI).error_response(fault)

"""Errors outside the endpoints, in the format of the client's API, and the 404 of paths below ``/v1``."""

from __future__ import annotations

import re
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from quintain.errors import Fault
from quintain_gateway.apis.model_apis import MESSAGES_PATH
from quintain_gateway.apis.models import ANTHROPIC_VERSION_HEADER, read_any_token, to_endpoint
from quintain_gateway.http.context import UNMATCHED_ROUTE, context_of
from quintain_gateway.http.endpoint import HTTP_METHODS, FleetGateway
from quintain_gateway.http.errors import NotFound, fault_response
from quintain_gateway.http.model_errors import ANTHROPIC, OPENAI

#: Paths of the APIs of model providers. AgentV's three paths are AgentV's behind any prefix.
_MODEL_API_PATH = re.compile(r"^(?:/.*)?/v1/(?!(?:.*/)?(?:info|invoke|invokeBatch)$)", re.DOTALL)


def error_response_of(scope: Scope) -> Callable[[Fault], Response]:
    """Return the function that writes the errors of a request that reaches no endpoint, by its path and headers."""
    if not _MODEL_API_PATH.match(scope["path"]):
        return fault_response
    is_anthropic = ANTHROPIC_VERSION_HEADER in Headers(scope=scope) or MESSAGES_PATH in scope["path"]
    return (ANTHROPIC if is_anthropic else OPENAI).error_response


class UnmatchedEndpoints:
    """The 404 of every path below ``/v1`` that no API has, after the token was checked."""

    def __init__(self, gateway: FleetGateway) -> None:
        self._gateway = gateway
        route = Route(
            "/v1/{path:path}",
            to_endpoint(self.not_found),
            methods=[method for method in HTTP_METHODS if method != "OPTIONS"],
        )
        route.path_regex = _MODEL_API_PATH
        self.routes = [route]

    async def not_found(self, request: Request) -> Response:
        """Answer 404. Raises `Unauthorized` before that if the token is not valid."""
        context_of(request).route = UNMATCHED_ROUTE
        client = await self._gateway.session_client(request, read_any_token)
        await client.get_info()
        raise NotFound(f"There is no {request.method} of this path; GET /openapi.json lists what there is")

"""Builds the ASGI application: all APIs, in the order in which their routes are matched, inside the access log."""

from __future__ import annotations

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from quintain.runtime.http_server import host_name
from quintain_gateway import fleet_page
from quintain_gateway.access_log import AccessLog
from quintain_gateway.apis import agentv, health, model_apis, sessions
from quintain_gateway.auth import FleetGateway
from quintain_gateway.endpoint import context_in_scope, error_response_of, header_in_scope
from quintain_gateway.errors import MisdirectedRequest
from quintain_gateway.fleet_page import FleetAccess
from quintain_gateway.openapi import OpenApiEndpoints

#: The operations of all APIs, for the OpenAPI document.
OPERATIONS = (
    *agentv.OPERATIONS,
    *model_apis.OPERATIONS,
    *sessions.OPERATIONS,
    *fleet_page.OPERATIONS,
    *health.OPERATIONS,
)


def build_app(gateway: FleetGateway, access: FleetAccess, host_names: frozenset[str] | None = None) -> ASGIApp:
    """Return the ASGI application of a gateway: its router inside the access log.

    ``host_names`` are the names that a request may have as its ``Host``; None for any.
    """
    router = build_router(gateway, access)
    app = router if host_names is None else HostCheck(router, host_names)
    return AccessLog(app, gateway.limits, gateway.metrics)


def build_router(gateway: FleetGateway, access: FleetAccess) -> Router:
    """Return the router with the routes of all APIs.

    AgentV's route comes last because it matches every path. The router does not redirect, because the target of a
    redirect would be built from the ``Host`` header.
    """
    agentv_endpoints = agentv.AgentVEndpoints(gateway)
    endpoint_groups = (
        health.GatewayHealthEndpoints(gateway),
        sessions.SessionEndpoints(gateway),
        fleet_page.FleetEndpoints(access),
        model_apis.ModelEndpoints(gateway),
        OpenApiEndpoints(OPERATIONS),
        agentv_endpoints,
    )
    routes = [route for group in endpoint_groups for route in group.routes]
    return Router([*agentv_endpoints.routes_without_prefix, *routes], redirect_slashes=False)


class HostCheck:
    """Passes requests on to an application if their ``Host`` is one of ``names``, with any port, or absent.

    This is against DNS rebinding: a page in a browser may give its own name the address of this machine, and then read
    what a gateway on loopback answers to it. Its requests keep the page's name as ``Host``.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request: answer 421 if it is for another host."""
        host = header_in_scope(scope, b"host")
        if host is None or host_name(host) in self._names:
            await self._app(scope, receive, send)
            return
        context_in_scope(scope).code = MisdirectedRequest.code
        await error_response_of(scope, MisdirectedRequest())(scope, receive, send)

"""Builds the ASGI application: all APIs, in the order in which their routes are matched, inside the access log."""

from __future__ import annotations

from starlette.routing import Router
from starlette.types import ASGIApp

from quintain_gateway.apis import admin, health, model_apis, models
from quintain_gateway.apis.agentv import routes as agentv
from quintain_gateway.apis.fleet import page as fleet
from quintain_gateway.apis.fleet.access import FleetAccess
from quintain_gateway.apis.unmatched import UnmatchedEndpoints, error_response_of
from quintain_gateway.http.endpoint import FleetGateway
from quintain_gateway.http.openapi import OpenApiEndpoints
from quintain_gateway.server.access_log import AccessLog
from quintain_gateway.server.host_check import HostCheck

#: The operations of all APIs, for the OpenAPI document.
OPERATIONS = (
    *agentv.OPERATIONS,
    *models.OPERATIONS,
    *model_apis.OPERATIONS,
    *admin.OPERATIONS,
    *fleet.OPERATIONS,
    *health.OPERATIONS,
)


def build_app(gateway: FleetGateway, access: FleetAccess, host_names: frozenset[str] | None = None) -> ASGIApp:
    """Return the ASGI application of a gateway: its router inside the access log.

    ``host_names`` are the names that a request may have as its ``Host``; None for any.
    """
    router = build_router(gateway, access)
    app = router if host_names is None else HostCheck(router, host_names, error_response_of)
    return AccessLog(app, gateway.limits, gateway.metrics, error_response_of)


def build_router(gateway: FleetGateway, access: FleetAccess) -> Router:
    """Return the router with the routes of all APIs.

    AgentV's route comes last because it matches every path. The router does not redirect, because the target of a
    redirect would be built from the ``Host`` header.
    """
    agentv_endpoints = agentv.AgentVEndpoints(gateway)
    endpoint_groups = (
        health.GatewayHealthEndpoints(gateway),
        admin.SessionEndpoints(gateway),
        fleet.FleetEndpoints(access),
        models.ModelEndpoints(gateway),
        model_apis.ModelApiEndpoints(gateway),
        OpenApiEndpoints(OPERATIONS),
        UnmatchedEndpoints(gateway),
        agentv_endpoints,
    )
    routes = [route for group in endpoint_groups for route in group.routes]
    return Router([*agentv_endpoints.routes_without_prefix, *routes], redirect_slashes=False)

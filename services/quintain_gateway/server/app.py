"""Builds the ASGI application: all APIs, in the order in which their routes are matched, inside the access log."""

from __future__ import annotations

from starlette.routing import Router
from starlette.types import ASGIApp

from quintain_gateway.apis import admin, health, models
from quintain_gateway.apis.agentv import routes as agentv
from quintain_gateway.apis.anthropic import routes as anthropic
from quintain_gateway.apis.openai import routes as openai
from quintain_gateway.http.endpoint import FleetGateway
from quintain_gateway.http.openapi import OpenApiEndpoints
from quintain_gateway.server.access_log import AccessLog

#: What each API says of itself.
OPERATIONS = (
    *agentv.OPERATIONS,
    *models.OPERATIONS,
    *openai.OPERATIONS,
    *anthropic.OPERATIONS,
    *admin.OPERATIONS,
    *health.OPERATIONS,
)


def build_app(gateway: FleetGateway) -> ASGIApp:
    """The ASGI application."""
    return AccessLog(build_router(gateway), gateway.limits, gateway.metrics)


def build_router(gateway: FleetGateway) -> Router:
    """Every route. AgentV's comes last: it answers for every path that nobody else took.

    Nothing redirects: a redirect's address would be made of the request's `Host`.
    """
    agentv_endpoints = agentv.AgentVEndpoints(gateway)
    model_endpoints = (
        models.ModelEndpoints(gateway),
        openai.OpenAIEndpoints(gateway),
        anthropic.AnthropicEndpoints(gateway),
    )
    endpoint_groups = (
        health.GatewayHealthEndpoints(gateway),
        admin.SessionEndpoints(gateway),
        *model_endpoints,
        OpenApiEndpoints(OPERATIONS),
        agentv_endpoints,
    )
    return Router([route for group in endpoint_groups for route in group.routes], redirect_slashes=False)

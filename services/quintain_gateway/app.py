"""The gateway put together: every HTTP API it speaks, in the order in which their routes are tried."""

from __future__ import annotations

from starlette.routing import Router
from starlette.types import ASGIApp

from quintain_gateway import agentv, anthropic, health, models, openai, sessions
from quintain_gateway.door import Door
from quintain_gateway.journal import Journal
from quintain_gateway.openapi import OpenApi

#: What each API says of itself.
OPERATIONS = (
    *agentv.OPERATIONS,
    *models.OPERATIONS,
    *openai.OPERATIONS,
    *anthropic.OPERATIONS,
    *sessions.OPERATIONS,
    *health.OPERATIONS,
)


def app_of(door: Door) -> ASGIApp:
    """The ASGI application."""
    return Journal(router_of(door), door.limits, door.metrics)


def router_of(door: Door) -> Router:
    """Every route. AgentV's comes last: it answers for every path that nobody else took.

    Nothing redirects: a redirect's address would be made of the request's `Host`.
    """
    last = agentv.AgentV(door)
    asked = (models.Models(door), openai.OpenAI(door), anthropic.Anthropic(door))
    apis = (health.Health(door), sessions.Sessions(door), *asked, OpenApi(OPERATIONS), last)
    return Router([route for api in apis for route in api.routes], redirect_slashes=False)

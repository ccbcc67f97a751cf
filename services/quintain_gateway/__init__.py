"""The HTTP gateway: translates requests of the OpenAI, Anthropic and AgentV APIs into calls over the broker.

The gateway holds no provider key and no admin token; every request carries its own token. `http` has what all
endpoints share, `dispatch` makes the calls and writes the responses, `apis` has the endpoints of each API, `server`
builds and serves the ASGI application.
"""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_gateway.apis.fleet.access import FleetAccess
    from quintain_gateway.apis.health import MetadataHealthCheck
    from quintain_gateway.http.endpoint import FleetGateway
    from quintain_gateway.http.limits import GatewayLimits
    from quintain_gateway.metrics import GatewayMetrics
    from quintain_gateway.server.app import build_app
    from quintain_gateway.server.bind import BindAddress
    from quintain_gateway.server.server import serve_app
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_gateway.apis.fleet.access": ("FleetAccess",),
            "quintain_gateway.apis.health": ("MetadataHealthCheck",),
            "quintain_gateway.http.endpoint": ("FleetGateway",),
            "quintain_gateway.http.limits": ("GatewayLimits",),
            "quintain_gateway.metrics": ("GatewayMetrics",),
            "quintain_gateway.server.app": ("build_app",),
            "quintain_gateway.server.bind": ("BindAddress",),
            "quintain_gateway.server.server": ("serve_app",),
        },
    )

__all__ = [
    "BindAddress",
    "FleetAccess",
    "FleetGateway",
    "GatewayLimits",
    "GatewayMetrics",
    "MetadataHealthCheck",
    "build_app",
    "serve_app",
]

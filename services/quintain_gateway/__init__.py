"""The HTTP gateway: translates requests of the OpenAI, Anthropic and AgentV APIs into calls over the broker.

The gateway holds no provider key and no admin token; every request carries its own token. A request goes through
`server`, `access_log` and `app` to its endpoint, in `apis` or `fleet_page`, which asks `auth` for the client of its
token and `bodies` for what was sent; `calls`, `answer_encoder` and `response_writer` make its calls and write what
comes back.
"""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_gateway.metrics import GatewayMetrics
    from quintain_gateway.server import run_gateway
    from quintain_gateway.settings import BindAddress, GatewayLimits
else:
    # Lazy: commands that may start a gateway load its HTTP server only when they do.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_gateway.metrics": ("GatewayMetrics",),
            "quintain_gateway.server": ("run_gateway",),
            "quintain_gateway.settings": ("BindAddress", "GatewayLimits"),
        },
    )

__all__ = ["BindAddress", "GatewayLimits", "GatewayMetrics", "run_gateway"]

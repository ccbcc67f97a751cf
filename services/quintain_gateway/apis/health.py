"""``GET /health/live``, ``GET /health/ready`` and ``GET /metrics``, without authentication.

Live: the process answers. Ready: a request reached the metadata service through the broker, and its reply came back
through this gateway's reply queue. The request is `GetInfo` with a well-formed token that was never issued; the
expected reply is `Unauthorized`.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.routing import Route

from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import TOKEN_HEADER
from quintain.contracts.session import GetInfo
from quintain.errors import BusError, Fault, NoAnswer, Unauthorized
from quintain.observe.health import CHECK_TIMEOUT_SECONDS, HealthEndpoints, Live, Readiness
from quintain.routes import INFO
from quintain.rpc.requests import RpcClient
from quintain_gateway.auth import FleetGateway
from quintain_gateway.endpoint import PLAIN, method_route
from quintain_gateway.openapi import Operation, fault_responses

OPERATIONS = (
    Operation("GET", "/health/live", "Liveness: the process answers", responses={200: Live, **fault_responses(431)}),
    Operation(
        "GET",
        "/health/ready",
        "Readiness: the metadata service replies through the broker",
        responses={200: Readiness, 503: Readiness, **fault_responses(431)},
    ),
    Operation("GET", "/metrics", "Prometheus metrics", responses={200: "text/plain", **fault_responses(431)}),
)


class GatewayHealthEndpoints:
    """The endpoints for liveness and readiness probes and for Prometheus."""

    def __init__(self, gateway: FleetGateway) -> None:
        endpoints = HealthEndpoints(gateway.metrics, MetadataHealthCheck(gateway.rpc_client).check)
        self.routes: list[Route] = [
            method_route("/health/live", {"GET": endpoints.live}, PLAIN.to_endpoint),
            method_route("/health/ready", {"GET": endpoints.ready}, PLAIN.to_endpoint),
            method_route("/metrics", {"GET": endpoints.metrics}, PLAIN.to_endpoint),
        ]


class MetadataHealthCheck:
    """Checks that the metadata service replies, with a request under a random token that it must refuse."""

    def __init__(self, rpc_client: RpcClient) -> None:
        self._rpc_client = rpc_client
        self._token = SessionToken.mint().text

    async def check(self) -> str | None:
        """Return None if the metadata service replied in time, else a sentence that says why not."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
                with contextlib.suppress(Unauthorized):
                    await self._rpc_client.call_route(
                        INFO, GetInfo(), {TOKEN_HEADER: self._token}, timeout_seconds=CHECK_TIMEOUT_SECONDS
                    )
        except (Fault, BusError, NoAnswer) as error:
            return error.message
        except TimeoutError:
            return f"The broker accepted no request within {CHECK_TIMEOUT_SECONDS:g} s"
        return None

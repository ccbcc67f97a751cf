"""The ops HTTP server: ``GET /health/live``, ``GET /health/ready`` and ``GET /metrics``, without authentication.

It starts before the service connects to its broker, so that an orchestrator does not restart a service that waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from quintain.bus.base import Bus
from quintain.contracts.discovery import ServiceCard
from quintain.observability.broker_probe import BrokerProbe
from quintain.observability.health import HealthCheck, Live, ReadinessProbe, combine_checks
from quintain.observability.metrics import ServiceMetrics
from quintain.runtime.http_server import LOOPBACK, open_listener, serve_uvicorn, url_of

#: Maximum number of concurrent requests; further ones are answered with 503.
MAX_CONCURRENT_REQUESTS = 32

#: How long an idle connection is kept, and how long running requests may take at shutdown, in seconds.
KEEPALIVE_SECONDS, SHUTDOWN_SECONDS = 5, 1


@dataclass(frozen=True, slots=True)
class OpsAddress:
    """The address of the ops server; port 0 takes a free one.

    It has neither authentication nor TLS, and is meant for loopback and private networks.
    """

    port: int
    host: str = LOOPBACK


class HealthEndpoints:
    """The HTTP handlers of a service's health and metrics; ``check`` decides whether the service is ready."""

    def __init__(self, metrics: ServiceMetrics, check: HealthCheck) -> None:
        self._metrics, self._probe = metrics, ReadinessProbe(check)

    async def live(self, _: Request) -> Response:
        """Handle ``GET /health/live``."""
        return Response(Live().to_wire(), media_type="application/json")

    async def ready(self, _: Request) -> Response:
        """Handle ``GET /health/ready``: 200 if ready, else 503."""
        verdict = await self._probe.readiness()
        status = 200 if verdict.status == "ready" else 503
        return Response(verdict.to_wire(), status_code=status, media_type="application/json")

    async def metrics(self, _: Request) -> Response:
        """Handle ``GET /metrics``."""
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


class OpsEndpoints:
    """A service's state on the ops server: first the reason why it is not ready yet, then the result of its check."""

    def __init__(self, metrics: ServiceMetrics, report_waiting: Callable[[str], None]) -> None:
        """Create the endpoints; ``report_waiting`` is also called with each reason, to show it to the operator."""
        self._metrics, self._report_waiting = metrics, report_waiting
        self._not_ready_reason = "it is starting"
        #: Whether an ops server runs.
        self.is_serving = False
        self._check: HealthCheck | None = None
        self._endpoints = HealthEndpoints(metrics, self._check_ready)

    def set_not_ready(self, reason: str) -> None:
        """Report not ready, for this reason, until `report_ready`."""
        self._not_ready_reason = reason
        self._report_waiting(reason)

    @contextlib.asynccontextmanager
    async def report_ready(
        self, bus: Bus, check: HealthCheck, card: Callable[[], ServiceCard] | None = None
    ) -> AsyncIterator[None]:
        """While the context is open, the service is ready if ``check`` and the broker probe pass."""
        self._metrics.set_bus(bus)
        if card is not None:
            self._metrics.set_service_card(card)
        broker_probe = BrokerProbe(bus)
        try:
            self._check = combine_checks(check, broker_probe.check)
            yield
        finally:
            self._check, self._not_ready_reason = None, "it is stopping"
            await broker_probe.stop()

    @property
    def routes(self) -> list[Route]:
        """The routes of the three endpoints."""
        return [
            Route("/health/live", self._endpoints.live, methods=["GET"]),
            Route("/health/ready", self._endpoints.ready, methods=["GET"]),
            Route("/metrics", self._endpoints.metrics, methods=["GET"]),
        ]

    async def _check_ready(self) -> str | None:
        return self._not_ready_reason if self._check is None else await self._check()


@contextlib.asynccontextmanager
async def serve_ops(address: OpsAddress, endpoints: OpsEndpoints) -> AsyncIterator[str]:
    """Run the ops server while the context is open; yields its base URL. Raises `ConfigError` if it cannot listen."""
    listener = open_listener(address.host, address.port, prefix="--ops-")
    endpoints.is_serving = True
    async with serve_uvicorn(
        listener,
        Router(endpoints.routes, redirect_slashes=False),
        "operations",
        limit_concurrency=MAX_CONCURRENT_REQUESTS,
        timeout_keep_alive=KEEPALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    ):
        yield url_of("http", address.host, listener)

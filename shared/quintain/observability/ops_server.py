"""The ops HTTP server: ``GET /health/live``, ``GET /health/ready`` and ``GET /metrics``, without authentication.

It starts before the service connects to its broker, so that an orchestrator does not restart a service that waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from quintain.bus.base import Bus
from quintain.contracts.discovery import ServiceCard
from quintain.observability.broker_probe import BrokerProbe
from quintain.observability.health import HealthCheck, Live, ReadinessProbe, combine_checks
from quintain.observability.metrics import ServiceMetrics
from quintain.runtime.http_server import BACKLOG, LOOPBACK, open_listener, serve_uvicorn, url_of

#: Probes and scrapes at the same time; one more is answered 503.
MAX_CONCURRENT_REQUESTS = 32

#: A connection that asks nothing is kept so long, and a running request when the service stops, in seconds.
KEEPALIVE_SECONDS, SHUTDOWN_SECONDS = 5, 1


@dataclass(frozen=True, slots=True)
class OpsAddress:
    """Where it listens; port 0 takes a free one. Without a token and without TLS: for loopback, and for networks of
    one's own."""

    port: int
    host: str = LOOPBACK


class HealthEndpoints:
    """The endpoints of a service's health and metrics. ``check`` decides whether it is ready."""

    def __init__(self, metrics: ServiceMetrics, check: HealthCheck) -> None:
        self._metrics, self._probe = metrics, ReadinessProbe(check)

    async def live(self, _: Request) -> Response:
        """``GET /health/live``"""
        return Response(Live().to_wire(), media_type="application/json")

    async def ready(self, _: Request) -> Response:
        """``GET /health/ready``"""
        verdict = await self._probe.readiness()
        status = 200 if verdict.status == "ready" else 503
        return Response(verdict.to_wire(), status_code=status, media_type="application/json")

    async def metrics(self, _: Request) -> Response:
        """``GET /metrics``"""
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


class OpsEndpoints:
    """One service as it is told over its operations port: what it waits for, then whether it is ready."""

    def __init__(self, metrics: ServiceMetrics, report_waiting: Callable[[str], None]) -> None:
        """``report_waiting`` is given what the service waits for, too: for people."""
        self._metrics, self._report_waiting = metrics, report_waiting
        self._not_ready_reason = "it is starting"
        #: Whether anybody can ask: there is a port.
        self.is_serving = False
        self._check: HealthCheck | None = None
        self._endpoints = HealthEndpoints(metrics, self._check_ready)

    def set_not_ready(self, reason: str) -> None:
        """Not ready, for this reason, until `report_ready`."""
        self._not_ready_reason = reason
        self._report_waiting(reason)

    @contextlib.asynccontextmanager
    async def report_ready(
        self, bus: Bus, check: HealthCheck, card: Callable[[], ServiceCard] | None = None
    ) -> AsyncIterator[None]:
        """The service is up: from now on it is ready where this check passes, and a message to itself comes back."""
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
        """The three paths."""
        return [
            Route("/health/live", self._endpoints.live, methods=["GET"]),
            Route("/health/ready", self._endpoints.ready, methods=["GET"]),
            Route("/metrics", self._endpoints.metrics, methods=["GET"]),
        ]

    async def _check_ready(self) -> str | None:
        return self._not_ready_reason if self._check is None else await self._check()


@contextlib.asynccontextmanager
async def serve_ops(address: OpsAddress, endpoints: OpsEndpoints) -> AsyncIterator[str]:
    """Serve them; yields the base URL. Raises `ConfigError` where the address cannot be opened."""
    listener = open_listener(address.host, address.port, prefix="--ops-")
    config = uvicorn.Config(
        Router(endpoints.routes, redirect_slashes=False),
        http="h11",
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        workers=1,
        backlog=BACKLOG,
        limit_concurrency=MAX_CONCURRENT_REQUESTS,
        timeout_keep_alive=KEEPALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    endpoints.is_serving = True
    async with serve_uvicorn(listener, config, "operations"):
        yield url_of("http", address.host, listener)

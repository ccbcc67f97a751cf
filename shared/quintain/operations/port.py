"""The operations port: ``GET /health/live``, ``/health/ready`` and ``/metrics`` of a service, without a token.

It opens before the service has its broker, because whoever restarts what does not live must not restart what waits.
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
from quintain.operations.health import Check, Live, Probe, all_of
from quintain.operations.listening import BACKLOG, LOOPBACK, listening_at, url_of
from quintain.operations.metrics import ServiceMetrics
from quintain.operations.round_trip import RoundTrip
from quintain.operations.serving import serving_on

#: Probes and scrapes at the same time; one more is answered 503.
MOST_AT_ONCE = 32

#: A connection that asks nothing is kept so long, and a running request when the service stops, in seconds.
IDLE_SECONDS, GRACE_SECONDS = 5, 1


@dataclass(frozen=True, slots=True)
class OpsAddress:
    """Where it listens; port 0 takes a free one. Without a token and without TLS: for loopback, and for networks of
    one's own."""

    port: int
    host: str = LOOPBACK


class HealthEndpoints:
    """The endpoints of a service's health and metrics. ``check`` decides whether it is ready."""

    def __init__(self, metrics: ServiceMetrics, check: Check) -> None:
        self._metrics, self._probe = metrics, Probe(check)

    async def live(self, _: Request) -> Response:
        """``GET /health/live``"""
        return Response(Live().to_wire(), media_type="application/json")

    async def ready(self, _: Request) -> Response:
        """``GET /health/ready``"""
        verdict = await self._probe.verdict()
        status = 200 if verdict.status == "ready" else 503
        return Response(verdict.to_wire(), status_code=status, media_type="application/json")

    async def metrics(self, _: Request) -> Response:
        """``GET /metrics``"""
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


class Operations:
    """One service as it is told over its operations port: what it waits for, then whether it is ready."""

    def __init__(self, metrics: ServiceMetrics, tell: Callable[[str], None]) -> None:
        """``tell`` is given what the service waits for, too: for people."""
        self._metrics, self._tell = metrics, tell
        self._waits = "it is starting"
        #: Whether anybody can ask: there is a port.
        self.heard = False
        self._check: Check | None = None
        self._endpoints = HealthEndpoints(metrics, self._ready)

    def waits(self, reason: str) -> None:
        """Not ready, for this reason, until `running`."""
        self._waits = reason
        self._tell(reason)

    @contextlib.asynccontextmanager
    async def running(
        self, bus: Bus, check: Check, card: Callable[[], ServiceCard] | None = None
    ) -> AsyncIterator[None]:
        """The service is up: from now on it is ready where this check passes, and a message to itself comes back."""
        self._metrics.watch(bus)
        if card is not None:
            self._metrics.show(card)
        round_trip = RoundTrip(bus)
        try:
            self._check = all_of(check, round_trip.check)
            yield
        finally:
            self._check, self._waits = None, "it is stopping"
            await round_trip.stop()

    @property
    def routes(self) -> list[Route]:
        """The three paths."""
        return [
            Route("/health/live", self._endpoints.live, methods=["GET"]),
            Route("/health/ready", self._endpoints.ready, methods=["GET"]),
            Route("/metrics", self._endpoints.metrics, methods=["GET"]),
        ]

    async def _ready(self) -> str | None:
        return self._waits if self._check is None else await self._check()


@contextlib.asynccontextmanager
async def operations_port(address: OpsAddress, operations: Operations) -> AsyncIterator[str]:
    """Serve them; yields the base URL. Raises `ConfigError` where the address cannot be opened."""
    listener = listening_at(address.host, address.port, prefix="--ops-")
    config = uvicorn.Config(
        Router(operations.routes, redirect_slashes=False),
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
        limit_concurrency=MOST_AT_ONCE,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    operations.heard = True
    async with serving_on(listener, config, "operations"):
        yield url_of("http", address.host, listener)

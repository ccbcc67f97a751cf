"""Liveness and readiness, and the ops server with ``GET /health/live``, ``/health/ready`` and ``/metrics``.

Live: the process answers. Ready: every check passes. Each check covers one dependency and is bounded by
`CHECK_TIMEOUT_SECONDS`. The server has no authentication, and starts before the service connects to its broker, so that
an orchestrator does not restart a service that waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from quintain.contracts.message import Message
from quintain.contracts.service_card import ServiceCard
from quintain.observe.metrics import BrokerState, ServiceMetrics
from quintain.runtime.http_server import LOOPBACK, open_listener, serve_uvicorn, url_of

#: Time limit of one check, in seconds.
CHECK_TIMEOUT_SECONDS = 2.0

#: How long a result is cached, in seconds, so that frequent probes cannot flood the broker.
READINESS_CACHE_SECONDS = 1.0

#: Returns the reason why something is not ready as a sentence, None if it is ready.
HealthCheck = Callable[[], Awaitable[str | None]]

#: Maximum number of concurrent requests; further ones are answered with 503.
MAX_CONCURRENT_REQUESTS = 32

#: How long an idle connection is kept, and how long running requests may take at shutdown, in seconds.
KEEPALIVE_SECONDS, SHUTDOWN_SECONDS = 5, 1


class Live(Message):
    """The reply of the liveness probe."""

    status: Literal["live"] = "live"


class Readiness(Message):
    """Whether the service is ready, and the reason if it is not."""

    status: Literal["ready", "unready"]
    reason: str | None = None


class ReadinessProbe:
    """Runs a readiness check, at most once per `READINESS_CACHE_SECONDS` for any number of concurrent probes."""

    def __init__(self, check: HealthCheck) -> None:
        self._check = check
        self._check_task: asyncio.Task[Readiness] | None = None
        self._expires_at = 0.0

    async def readiness(self) -> Readiness:
        """Return the result of the check, run now or a moment ago."""
        loop = asyncio.get_running_loop()
        if self._check_task is None or (self._check_task.done() and loop.time() >= self._expires_at):
            self._check_task = loop.create_task(self._run_check())
        # The first probe may be cancelled; others still wait for the same check.
        return await asyncio.shield(self._check_task)

    async def _run_check(self) -> Readiness:
        try:
            reason = await self._check()
        finally:
            self._expires_at = asyncio.get_running_loop().time() + READINESS_CACHE_SECONDS
        return Readiness(status="ready" if reason is None else "unready", reason=reason)


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
        self._scrape: asyncio.Task[bytes] | None = None

    async def live(self, _: Request) -> Response:
        """Handle ``GET /health/live``."""
        return Response(Live().to_wire(), media_type="application/json")

    async def ready(self, _: Request) -> Response:
        """Handle ``GET /health/ready``: 200 if ready, else 503."""
        verdict = await self._probe.readiness()
        status = 200 if verdict.status == "ready" else 503
        return Response(verdict.to_wire(), status_code=status, media_type="application/json")

    async def metrics(self, _: Request) -> Response:
        """Handle ``GET /metrics``; requests at the same time are answered alike."""
        if self._scrape is None or self._scrape.done():
            self._scrape = asyncio.get_running_loop().create_task(self._metrics.exposition_beside())
        return Response(await asyncio.shield(self._scrape), media_type=CONTENT_TYPE_LATEST)


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

    @contextlib.contextmanager
    def report_ready(
        self, broker: BrokerState, check: HealthCheck, card: Callable[[], ServiceCard] | None = None
    ) -> Iterator[None]:
        """While the context is open, the service is ready if ``check`` passes."""
        self._metrics.set_broker(broker)
        if card is not None:
            self._metrics.set_service_card(card)
        try:
            self._check = check
            yield
        finally:
            self._check, self._not_ready_reason = None, "it is stopping"

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

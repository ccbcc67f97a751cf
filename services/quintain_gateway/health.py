"""``GET /health/live``, ``GET /health/ready``, ``GET /metrics``: for probes and Prometheus, without a token.

Live says that the process answers. Ready says that a question got through the broker to the metadata service and its
answer came back through this gateway's own reply queue. The question is `info` with a well-formed token that nobody
was ever given: `Unauthorized` is the answer that proves the way.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quintain.caller import Caller
from quintain.contracts.message import Message
from quintain.contracts.metadata import AskInfo
from quintain.contracts.token import SessionToken
from quintain.errors import BusError, Fault, NoAnswer, Unauthorized
from quintain.routes import INFO, TOKEN_HEADER
from quintain_gateway.door import Api, Door
from quintain_gateway.methods import resource
from quintain_gateway.operation import Operation, faults
from quintain_gateway.refusals import JSON, plain_refusal

#: A round trip that takes longer is none.
READY_SECONDS = 2.0

#: A verdict is told again for so long: probes cannot flood the broker.
VERDICT_SECONDS = 1.0

API = Api(refusal=plain_refusal)


class Live(Message):
    """The process answers."""

    status: Literal["live"] = "live"


class Readiness(Message):
    """Whether the fleet can be reached, and where it cannot, why."""

    status: Literal["ready", "unready"]
    reason: str | None = None


OPERATIONS = (
    Operation("GET", "/health/live", "Whether the process answers", answers={200: Live, **faults(431)}),
    Operation(
        "GET",
        "/health/ready",
        "Whether the fleet can be reached",
        answers={200: Readiness, 503: Readiness, **faults(431)},
    ),
    Operation("GET", "/metrics", "Numbers for Prometheus", answers={200: "text/plain", **faults(431)}),
)


class Health:
    """The endpoints of probes."""

    def __init__(self, door: Door) -> None:
        self._meter, self._probe = door.meter, Probe(door.caller)
        self.routes: list[Route] = [
            resource("/health/live", {"GET": self.live}, API.endpoint),
            resource("/health/ready", {"GET": self.ready}, API.endpoint),
            resource("/metrics", {"GET": self.metrics}, API.endpoint),
        ]

    async def live(self, _: Request) -> Response:
        """``GET /health/live``"""
        return Response(Live().to_wire(), media_type=JSON)

    async def ready(self, _: Request) -> Response:
        """``GET /health/ready``"""
        verdict = await self._probe.verdict()
        return Response(verdict.to_wire(), status_code=200 if verdict.status == "ready" else 503, media_type=JSON)

    async def metrics(self, _: Request) -> Response:
        """``GET /metrics``"""
        return Response(self._meter.exposition(), media_type=CONTENT_TYPE_LATEST)


class Probe:
    """Asks the metadata service, at most once a second, however many want to know."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._token = SessionToken.mint().text
        self._asking: asyncio.Task[Readiness] | None = None
        self._stale_at = 0.0

    async def verdict(self) -> Readiness:
        """Whether the way through the broker to the metadata service and back is open."""
        loop = asyncio.get_running_loop()
        if self._asking is None or (self._asking.done() and loop.time() >= self._stale_at):
            self._asking = loop.create_task(self._ask())
        # Whoever asked first may leave; the others still want to know.
        return await asyncio.shield(self._asking)

    async def _ask(self) -> Readiness:
        try:
            async with asyncio.timeout(READY_SECONDS):
                with contextlib.suppress(Unauthorized):
                    await self._caller.request(
                        INFO, AskInfo(), {TOKEN_HEADER: self._token}, timeout_seconds=READY_SECONDS
                    )
            return Readiness(status="ready")
        except (Fault, BusError, NoAnswer) as lost:
            return Readiness(status="unready", reason=lost.message)
        except TimeoutError:
            return Readiness(status="unready", reason=f"The broker took no question within {READY_SECONDS:g} s")
        finally:
            self._stale_at = asyncio.get_running_loop().time() + VERDICT_SECONDS

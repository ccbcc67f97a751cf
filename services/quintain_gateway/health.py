"""``GET /health/live``, ``GET /health/ready``, ``GET /metrics``: for probes and Prometheus, without a token.

Live says that the process answers. Ready says that a question got through the broker to the metadata service and its
answer came back through this gateway's own reply queue. The question is `info` with a well-formed token that nobody
was ever given: `Unauthorized` is the answer that proves the way.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.routing import Route

from quintain.caller import Caller
from quintain.contracts.metadata import AskInfo
from quintain.contracts.token import SessionToken
from quintain.errors import BusError, Fault, NoAnswer, Unauthorized
from quintain.operations.health import READY_SECONDS, Live, Readiness
from quintain.operations.port import HealthEndpoints
from quintain.routes import INFO, TOKEN_HEADER
from quintain_gateway.door import Api, Door
from quintain_gateway.methods import resource
from quintain_gateway.operation import Operation, faults
from quintain_gateway.refusals import plain_refusal

API = Api(refusal=plain_refusal)


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
        endpoints = HealthEndpoints(door.metrics, WayToMetadata(door.caller).check)
        self.routes: list[Route] = [
            resource("/health/live", {"GET": endpoints.live}, API.endpoint),
            resource("/health/ready", {"GET": endpoints.ready}, API.endpoint),
            resource("/metrics", {"GET": endpoints.metrics}, API.endpoint),
        ]


class WayToMetadata:
    """A question to the metadata service that nobody may ask, and its refusal."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._token = SessionToken.mint().text

    async def check(self) -> str | None:
        """Whether the way through the broker to the metadata service and back is open."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                with contextlib.suppress(Unauthorized):
                    await self._caller.request(
                        INFO, AskInfo(), {TOKEN_HEADER: self._token}, timeout_seconds=READY_SECONDS
                    )
        except (Fault, BusError, NoAnswer) as lost:
            return lost.message
        except TimeoutError:
            return f"The broker took no question within {READY_SECONDS:g} s"
        return None

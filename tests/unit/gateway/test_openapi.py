"""The gateway's own description: it names every route, and whatever is asked by it is answered as it says."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from starlette.requests import Request
from starlette.routing import Route

from quintain.bus.memory import MemoryBroker
from quintain.rpc.requests import RpcClient
from quintain.timings import Clock
from quintain_gateway.apis.agentv import OPERATIONS as AGENTV_OPERATIONS
from quintain_gateway.app import OPERATIONS, build_router
from quintain_gateway.auth import FleetGateway
from quintain_gateway.fleet_page import FleetAccess
from quintain_gateway.metrics import GatewayMetrics
from quintain_gateway.openapi import OpenApiEndpoints, build_document
from quintain_gateway.settings import GatewayLimits
from support.command_line import clean_environment
from support.gateway_client import open_gateway_client
from support.memory_fleet import ADMIN_TOKEN, memory_fleet

#: Which tokens open what, and which of its checks do not hold, on purpose: AgentV answers a wrong method with 404
#: (test_agentv.py); what a schema allows may still be no target's name, no length of time or past the budget; and
#: readers are lenient (unknown keys are ignored, a whole number may be written 1.0). Each combination of values of the
#: large requests of models' APIs is sent under ``--hypothesis-profile=long``: as bodies, test_model_bodies.py
#: reads them always.
CHECKS = """
[checks]
positive_data_acceptance.enabled = false
negative_data_rejection.enabled = false

[[operations]]
include-path-regex = "^/(info|invoke)"
headers = {{ Authorization = "Bearer {session}" }}
checks.unsupported_method.enabled = false

[[operations]]
include-path-regex = "^/v1"
headers = {{ Authorization = "Bearer {session}" }}
phases.coverage.enabled = {is_long}

[[operations]]
include-path-regex = "^/sessions"
headers = {{ Authorization = "Bearer {admin}" }}
"""


def test_every_route_is_described_and_nothing_else() -> None:
    limits, memory = GatewayLimits(), MemoryBroker()
    router = build_router(
        FleetGateway(RpcClient(memory.connect()), Clock(), limits, GatewayMetrics()), FleetAccess(memory.connect())
    )
    paths = {route.path for route in router.routes if isinstance(route, Route)}
    agentvs = {operation.path for operation in AGENTV_OPERATIONS}
    described = build_document(OPERATIONS)["paths"].keys() | {"/openapi.json"}
    assert described == (paths - {"/{path:path}", "/v1/{path:path}"}) | agentvs
    memory.close()


@pytest.mark.timeout(300)
async def test_what_is_asked_by_the_description_is_answered_as_it_says(tmp_path: Path) -> None:
    async with memory_fleet(tmp_path, "targets: {echo: {provider: mock}}\n") as fleet:
        session = await fleet.open_session("echo", 100_000)
        config = tmp_path / "schemathesis.toml"
        is_long = settings.get_current_profile_name() == "long"
        config.write_text(CHECKS.format(session=session.token, admin=ADMIN_TOKEN, is_long=str(is_long).lower()))
        examples = "8" if is_long else "1"
        words = ("--config-file", str(config), "run", f"{fleet.gateway_url}/openapi.json", "--max-examples", examples)
        more = ("--request-timeout", "60", "--phases", "coverage,fuzzing", "--generation-deterministic", "--no-color")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "schemathesis.cli", *words, *more,
            cwd=tmp_path, env=clean_environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(280):
                said = (await process.communicate())[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, said
        assert f"Tested: {len(OPERATIONS)}" in said, said
        async with open_gateway_client(fleet.gateway_url, session.token) as door:
            assert await door.read_call_count() > 0
            assert 'status="500"' not in (await door.http.get("/metrics")).text


async def test_the_document_is_encoded_once() -> None:
    endpoints, request = OpenApiEndpoints(OPERATIONS), Request({"type": "http"})
    first, second = [await endpoints.get_document(request) for _ in range(2)]
    assert first.body is second.body

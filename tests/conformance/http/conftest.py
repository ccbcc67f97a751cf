"""The HTTP suites: one fleet with a gateway per transport, behind which a scripted model answers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from quintain.settings import MEMORY_URL
from quintain_gateway.settings import GatewayLimits
from support.gateway_client import GatewayClient, open_gateway_client
from support.model_fleet import ModelFleet, model_fleet


@pytest.fixture(scope="module", params=["memory", pytest.param("rabbit", marks=pytest.mark.broker)])
def bus_url(request: pytest.FixtureRequest) -> str:
    """The URL of each transport in turn, for suites that bring a whole fleet."""
    url: str = MEMORY_URL if request.param == "memory" else request.getfixturevalue("broker_url")
    return url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(bus_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModelFleet]:
    """A fleet with a gateway, behind which a scripted model answers; what a client leaves goes on for half a second."""
    limits = GatewayLimits(retry_window_seconds=0.5)
    async with model_fleet(tmp_path_factory.mktemp("fleet"), broker_url=bus_url, limits=limits) as fleet:
        yield fleet


@pytest_asyncio.fixture(loop_scope="module")
async def gateway_client(fleet: ModelFleet) -> AsyncIterator[GatewayClient]:
    """A session of five calls."""
    async with open_gateway_client(fleet.url, await fleet.token(5)) as visitor:
        yield visitor

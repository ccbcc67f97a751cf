"""The HTTP suites: one fleet with a gateway, behind which a scripted model answers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from quintain.settings import MEMORY_URL
from quintain_gateway.settings import GatewayLimits
from support.gateway_client import GatewayClient, open_gateway_client
from support.model_fleet import ModelFleet, model_fleet
from support.official_clients import OfficialClients, official_clients


@pytest.fixture(scope="module")
def bus_url() -> str:
    """The URL of the transport: memory, except in a file whose promise a broker may break in its own way."""
    return MEMORY_URL


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


@pytest_asyncio.fixture(loop_scope="module")
async def clients(fleet: ModelFleet, gateway_client: GatewayClient) -> AsyncIterator[OfficialClients]:
    """The official clients of the same session."""
    async with official_clients(fleet.url, gateway_client.token) as clients:
        yield clients

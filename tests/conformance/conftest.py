"""One suite, every transport: the memory transport needs nothing, RabbitMQ is started on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from conformance.transports import Transport, transport_over


@pytest.fixture(params=["memory", "rabbit"])
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[Transport]:
    url = "" if request.param == "memory" else request.getfixturevalue("broker_url")
    async with transport_over(request.param, url) as transport:
        yield transport

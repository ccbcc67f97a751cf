"""What `quintain doctor` asks of real servers: a PostgreSQL, and the clock of a management API."""

from __future__ import annotations

import time

import httpx2
import pytest

from quintain.bus.rabbit_topology_check import inspect_broker
from quintain.contracts.limits import MAX_BODY_BYTES
from quintain.errors import BusError
from quintain_cli.fleet.broker_management import Management
from quintain_cli.fleet.server_checks import database_checks
from quintain_metadata import open_snapshot


async def test_a_postgresql_tells_what_a_crash_can_lose(postgres_url: str) -> None:
    async with open_snapshot(postgres_url) as snapshot:
        server = await snapshot.server()
    assert server is not None
    assert server.settings.keys() == {"fsync", "full_page_writes", "synchronous_commit"}
    failed = {check.what for check in database_checks(server, time.time()) if check.verdict == "fail"}
    assert failed == {f"durability: {name}" for name, setting in server.settings.items() if setting == "off"}


async def test_a_broker_tells_whether_it_refuses_a_message_by_its_size(broker_url: str) -> None:
    async with inspect_broker(broker_url, timeout_seconds=10) as inspection:
        assert await inspection.refuses_message_of(MAX_BODY_BYTES + 1)
        assert not await inspection.refuses_message_of(MAX_BODY_BYTES)


def management(date: str) -> Management:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json={}, headers={"date": date}))
    return Management(httpx2.Client(base_url="http://broker", transport=transport), "/")


def test_the_clock_of_the_broker_is_the_date_of_its_answer() -> None:
    assert management("Thu, 01 Jan 1970 00:01:40 GMT").clock() == 100
    with pytest.raises(BusError):
        management("no date").clock()

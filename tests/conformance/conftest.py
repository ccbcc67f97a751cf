"""One suite, every transport and every store: memory and SQLite need nothing, RabbitMQ and PostgreSQL are started on
demand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from conformance.transports import Transport, open_transport
from quintain.remote.connection_thread import ConnectionThread
from support.ledger_driver import Driver, open_emptied_ledger
from support.servers.postgres_admin import PostgresUnderTest
from support.servers.postgres_sql import fresh_database
from support.thread_host import ThreadHost, thread_host


@pytest.fixture(params=["memory", pytest.param("rabbit", marks=pytest.mark.broker)])
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[Transport]:
    url = request.getfixturevalue("broker_url") if request.param == "rabbit" else ""
    async with open_transport(request.param, url) as transport:
        yield transport


@pytest.fixture(scope="session")
def ledger_database(postgres: PostgresUnderTest) -> Iterator[str]:
    """A database that the ledgers of many tests have in turn: to make one takes longer than such a test."""
    with fresh_database(postgres.url) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
async def driver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Driver]:
    on_postgres = request.param == "postgres"
    url = request.getfixturevalue("ledger_database") if on_postgres else f"sqlite://{tmp_path / 'ledger.sqlite3'}"
    ledger = await open_emptied_ledger(url)
    desk = Driver(ledger)
    await desk.register()
    yield desk
    await ledger.close()


@pytest.fixture(scope="module")
def thread_target_host(broker_url: str) -> Iterator[ThreadHost]:
    """A host whose targets stand in this process, on threads of their own."""
    with thread_host(broker_url) as host:
        yield host


@pytest.fixture(scope="module")
def connection_thread(broker_url: str) -> Iterator[ConnectionThread]:
    """A controller's connection to the same broker."""
    line = ConnectionThread(broker_url)
    yield line
    line.close()

"""A PostgreSQL that stops, dies or takes no more connections, under load: calls wait, and nothing is restarted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

import quintain
from faults.invariants import InvariantChecker
from faults.load import LOAD, Load, is_long
from faults.scenario import FaultScenario
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.store.leadership import LEASE_SECONDS
from support.process_fleet import ProcessFleet
from support.servers.postgres_admin import PostgresAdmin, PostgresUnderTest
from support.servers.postgres_sql import fresh_database

#: Long enough that everything has met it: a worker asks again every 3 s, a connection that finds nobody fails at once.
AWAY_SECONDS = 10.0 if is_long() else 4.0

#: Longer than a worker waits for a word of the ledger.
LONG_AWAY_SECONDS = DEFAULT_TIMINGS.ledger_silence_seconds + 6


@pytest.fixture
def fleet(stopped_fleet: ProcessFleet, breakable_postgres: PostgresUnderTest) -> Iterator[ProcessFleet]:
    """Two metadata services on one PostgreSQL, and two workers."""
    with fresh_database(breakable_postgres.url) as url:
        stopped_fleet.extra_env["QUINTAIN_LEDGER_URL"] = url
        stopped_fleet.start_services("metadata", "metadata", "worker", "worker")
        yield stopped_fleet


@pytest.fixture
def admin(breakable_postgres: PostgresUnderTest) -> PostgresAdmin:
    assert breakable_postgres.admin is not None
    return breakable_postgres.admin


@contextlib.asynccontextmanager
async def postgres_down(admin: PostgresAdmin, how: str) -> AsyncIterator[None]:
    """No PostgreSQL."""
    await asyncio.to_thread(getattr(admin, how))
    try:
        yield
    finally:
        await asyncio.to_thread(admin.start)


@pytest.mark.parametrize(
    ("how", "load", "seconds"),
    [
        pytest.param("kill", None, AWAY_SECONDS, id="kill"),
        pytest.param("stop", LOAD, AWAY_SECONDS, id="stop, load", marks=pytest.mark.long),
        pytest.param("crash", LOAD, AWAY_SECONDS, id="crash, load", marks=pytest.mark.long),
        pytest.param("stop", None, LONG_AWAY_SECONDS, id="for long", marks=pytest.mark.long),
    ],
)
async def test_postgresql_goes_and_comes_back(
    how: str,
    load: Load | None,
    seconds: float,
    fleet: ProcessFleet,
    admin: PostgresAdmin,
    questions: list[str],
    invariants: InvariantChecker,
) -> None:
    async def inject_fault(_: ProcessFleet) -> None:
        async with postgres_down(admin, how):
            await asyncio.sleep(seconds)

    after = await FaultScenario(fleet, questions, load=load).run(f"PostgreSQL {how} {seconds:.0f} s", inject_fault)
    assert set(after.provider_calls.values()) == {1}
    assert load or after.info.call_count == len(questions)
    if seconds == LONG_AWAY_SECONDS:
        # Workers gave up calls; their clients have asked again.
        assert any("void" in call.attempts for call in after.ledger_calls.values())
    await invariants.check(fleet, after)
    # No service was restarted for it, and each said once that it was out of reach.
    for metadata in fleet.processes[:2]:
        assert metadata.read_output().count("The ledger is out of reach") <= 2, metadata.read_output()


async def test_postgresql_has_no_connection_left(
    fleet: ProcessFleet, questions: list[str], invariants: InvariantChecker
) -> None:
    async def inject_fault(fleet: ProcessFleet) -> None:
        async with contextlib.AsyncExitStack() as stack:
            operator = await asyncpg.connect(fleet.ledger_url)
            stack.push_async_callback(operator.close)
            await open_all_connections(fleet.ledger_url, stack)
            # The services lose theirs, and somebody else is faster.
            async with asyncio.timeout(30):
                while await operator.fetch(CUT):
                    await open_all_connections(fleet.ledger_url, stack)
            await asyncio.sleep(AWAY_SECONDS)

    after = await FaultScenario(fleet, questions).run("PostgreSQL without a connection", inject_fault)
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(fleet, after)


CUT = "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE application_name = 'quintain-ledger'"


async def open_all_connections(url: str, stack: contextlib.AsyncExitStack) -> None:
    """Open connections until there is none."""
    with contextlib.suppress(asyncpg.TooManyConnectionsError):
        while True:
            connection = await asyncpg.connect(url)
            stack.push_async_callback(connection.close)


async def test_what_is_asked_meanwhile_is_answered_when_it_is_back(fleet: ProcessFleet, admin: PostgresAdmin) -> None:
    session = await asyncio.to_thread(fleet.open_session, "bot", 1)
    async with quintain.connect(fleet.broker_url, session.token) as target:
        async with postgres_down(admin, "stop"):
            await asyncio.sleep(2 * LEASE_SECONDS)  # nobody leads
            asked = asyncio.create_task(target.get_info())
            await asyncio.sleep(AWAY_SECONDS)
        assert (await asked).call_count == 0
        assert (await target.invoke("and now?")).call_count == 1

"""The ledger on a real PostgreSQL: several services on one database, and a server that goes away and comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from quintain.contracts.ledger import Admission
from quintain.errors import BudgetUnavailable, ConfigError
from quintain_metadata.ledger import targets
from quintain_metadata.store import postgres
from quintain_metadata.store.base import (
    Ledger,
    Moment,
    SqlProgram,
    execute,
    fetch_one,
    redacted_url,
)
from quintain_metadata.store.leadership import Leadership
from quintain_metadata.store.opening import open_ledger
from quintain_metadata.store.postgres_connection import number_placeholders
from quintain_metadata.store.schema import SCHEMA_VERSION
from support.ledger_driver import Driver, admit_request
from support.servers.postgres_admin import PostgresUnderTest
from support.servers.postgres_sql import fresh_database, run_sql

SERVICES = 3


@pytest.fixture
async def services(fresh_postgres_url: str) -> AsyncIterator[list[Ledger]]:
    async with contextlib.AsyncExitStack() as stack:
        ledgers = [await open_ledger(fresh_postgres_url) for _ in range(SERVICES)]
        for ledger in ledgers:
            stack.push_async_callback(ledger.close)
        await Driver(ledger).register("w1", limit=10_000)
        yield ledgers


@pytest.fixture
async def ledger(services: list[Ledger]) -> Ledger:
    return services[0]


async def test_two_operations_that_write_run_one_after_the_other_whoever_runs_them(services: list[Ledger]) -> None:
    running = most_running = 0

    def alone_for_a_moment(_: Moment) -> SqlProgram[None]:
        nonlocal running, most_running
        running += 1
        most_running = max(running, most_running)
        yield from execute("SELECT pg_sleep(0.01)")
        running -= 1

    await asyncio.gather(*(ledger.transact(alone_for_a_moment) for ledger in services for _ in range(5)))
    assert most_running == 1


async def test_who_only_reads_waits_for_nobody_who_writes_and_changes_nothing(ledger: Ledger) -> None:
    session, holds, is_over = await Driver(ledger).open_session(max_calls=1), asyncio.Event(), asyncio.Event()

    def hold(_: Moment) -> SqlProgram[None]:
        yield from execute("UPDATE session SET max_calls = 7")
        holds.set()
        while not is_over.is_set():
            yield from execute("SELECT pg_sleep(0.01)")

    holder = asyncio.create_task(ledger.transact(hold))
    await holds.wait()
    assert await ledger.read(lambda _: fetch_one("SELECT max_calls FROM session")) == (1,)
    is_over.set()
    await holder
    assert (await Driver(ledger).info(session)).max_calls == 7
    with pytest.raises(BudgetUnavailable, match="takes no writes"):
        await ledger.read(lambda _: execute("UPDATE session SET max_calls = 8"))


# One leads.


def leadership_of(ledger: Ledger) -> Leadership:
    assert ledger.leadership is not None
    return ledger.leadership


async def test_one_of_several_leads_and_another_one_when_it_leaves(services: list[Ledger]) -> None:
    first, second, _ = map(leadership_of, services)
    assert await first.take()
    assert not await second.take()
    assert await first.renew()
    await first.leave()
    assert await second.take()
    assert (first.epoch, second.epoch) == (None, 2)


async def test_a_leader_that_another_one_has_followed_writes_nothing_and_others_may(
    services: list[Ledger], fresh_postgres_url: str
) -> None:
    first, second = leadership_of(services[0]), leadership_of(services[1])
    session = await Driver(services[2]).open_session(max_calls=1)
    assert await first.take()
    run_sql(fresh_postgres_url, "UPDATE leader SET lease_until = 0")
    assert await second.take()
    for ledger, is_refused in zip(services, (True, False, False), strict=True):
        with pytest.raises(BudgetUnavailable, match="leads") if is_refused else contextlib.nullcontext():
            await ledger.transact(lambda _: execute("UPDATE session SET max_calls = max_calls + 1"))
    assert not await first.renew()
    assert (await Driver(services[2]).info(session)).max_calls == 3


@pytest.mark.parametrize("is_preparing", [False, True], ids=["between two statements", "in a statement"])
async def test_a_leader_that_stands_still_in_a_transaction_keeps_none_from_leading_and_commits_nothing(
    services: list[Ledger], fresh_postgres_url: str, *, is_preparing: bool
) -> None:
    first, second = leadership_of(services[0]), leadership_of(services[1])
    session = await Driver(services[2]).open_session(max_calls=1)
    assert await first.take()
    still = await asyncpg.connect(fresh_postgres_url, server_settings=postgres.SERVER_SETTINGS)
    await still.execute("BEGIN; SELECT epoch FROM leader FOR UPDATE; UPDATE session SET max_calls = 7")
    if is_preparing:
        await still.prepare("SELECT 1")  # the server waits for what is to be done with it
    try:
        async with asyncio.timeout(30):
            while not await second.take():
                await asyncio.sleep(0.1)
            await services[1].transact(lambda _: execute("UPDATE session SET label = 'next'"))
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError)):
            await still.execute("COMMIT")
    finally:
        still.terminate()
    assert (await Driver(services[2]).info(session)).max_calls == 1


async def test_the_moment_and_now_are_on_the_servers_clock(ledger: Ledger, fresh_postgres_url: str) -> None:
    def steps(moment: Moment) -> SqlProgram[tuple[int, int]]:
        row = yield from fetch_one("SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)")
        assert row is not None
        return moment.now, int(row[0])

    ledger.lease_expiry.suspended_until = 2**50
    assert await ledger.transact(lambda moment: answer(moment.lease_cutoff)) == 0
    before = await ledger.now()
    moment, during = await ledger.transact(steps)
    assert before <= moment <= during <= await ledger.now()


def answer(value: int) -> SqlProgram[int]:
    yield from ()
    return value


def test_only_parameters_are_numbered() -> None:
    assert number_placeholders("SELECT '?', a FROM b WHERE c = ? AND d IN (?, 'it''s ?')") == (
        "SELECT '?', a FROM b WHERE c = $1 AND d IN ($2, 'it''s ?')"
    )


async def test_every_commit_is_on_the_disk_before_it_is_answered(ledger: Ledger) -> None:
    assert await ledger.transact(lambda _: fetch_one("SHOW synchronous_commit")) == ("on",)
    assert await ledger.transact(lambda _: fetch_one("SHOW transaction_isolation")) == ("read committed",)


# Starting: several at once, a database that is not ours to change.


async def test_many_services_that_start_at_once_migrate_once(fresh_postgres_url: str) -> None:
    ledgers = await asyncio.gather(*(open_ledger(fresh_postgres_url) for _ in range(8)))
    try:
        assert run_sql(fresh_postgres_url, "SELECT count(*) FROM ledger_version") == 1
        assert run_sql(fresh_postgres_url, "SELECT version FROM ledger_version") == SCHEMA_VERSION
        await Driver(ledgers[0]).register("w1", limit=10_000)
        assert await ledgers[7].transact(lambda _: targets.target_names()) == ["a"]
    finally:
        await asyncio.gather(*(ledger.close() for ledger in ledgers))


async def test_a_newer_schema_is_refused_and_left_as_it_is(services: list[Ledger], fresh_postgres_url: str) -> None:
    run_sql(fresh_postgres_url, f"UPDATE ledger_version SET version = {SCHEMA_VERSION + 1}")
    with pytest.raises(ConfigError) as refusal:
        await open_ledger(fresh_postgres_url)
    address = urlsplit(fresh_postgres_url)
    assert refusal.value.message == (
        f"The ledger postgresql://{address.username}@{address.hostname}:{address.port}{address.path} has schema "
        f"{SCHEMA_VERSION + 1}, and this release knows {SCHEMA_VERSION}: upgrade quintain, or use another "
        "QUINTAIN_LEDGER_URL"
    )
    assert run_sql(fresh_postgres_url, "SELECT version FROM ledger_version") == SCHEMA_VERSION + 1


async def test_a_migration_that_fails_leaves_nothing(fresh_postgres_url: str) -> None:
    run_sql(fresh_postgres_url, "CREATE TABLE worker (theirs text)")
    with pytest.raises(ConfigError, match="its tables cannot be used"):
        await open_ledger(fresh_postgres_url)
    assert run_sql(fresh_postgres_url, "SELECT to_regclass('session')") is None


def with_url_parts(url: str, **parts: str) -> str:
    return urlsplit(url)._replace(**parts).geturl()


async def test_what_the_operator_must_mend_is_said_without_the_password(fresh_postgres_url: str) -> None:
    address = urlsplit(fresh_postgres_url)
    port = address.port
    wrong = with_url_parts(fresh_postgres_url, netloc=f"{address.username}:se-cret@{address.hostname}:{port}")
    cases = {
        wrong: "refuses the login",
        with_url_parts(fresh_postgres_url, path="/no_such_database"): "has no such database",
        f"{fresh_postgres_url}?sslmode=se-cret": "options in QUINTAIN_LEDGER_URL",
        f"postgresql://u:se-cret/x@{address.hostname}/db": "cannot be read",
    }
    for url, sentence in cases.items():
        with pytest.raises(ConfigError, match=sentence) as refusal:
            await open_ledger(url)
        assert "cret" not in refusal.value.message
        assert (address.password or "-") not in refusal.value.message


async def test_a_server_that_is_not_there_may_come_yet() -> None:
    with pytest.raises(
        BudgetUnavailable, match=r"postgresql://me@127\.0\.0\.1:9/db cannot be used.*start it"
    ) as refusal:
        await open_ledger("postgresql://me:se-cret@127.0.0.1:9/db")
    assert "cret" not in refusal.value.message


# Going away and coming back.


@pytest.fixture
def breakable_url(breakable_postgres: PostgresUnderTest) -> Iterator[str]:
    with fresh_database(breakable_postgres.url) as url:
        yield url


async def test_a_server_that_dies_in_the_middle_is_an_answer_and_is_used_again_when_it_is_back(
    breakable_postgres: PostgresUnderTest, breakable_url: str
) -> None:
    admin = breakable_postgres.admin
    assert admin is not None
    ledger = await open_ledger(breakable_url)
    await Driver(ledger).register("w1", limit=10_000)
    session = await Driver(ledger).open_session(max_calls=500)

    async def ask(call: str) -> object:
        return await Driver(ledger).ask(admit_request(session, call, attempt_id=f"attempt {call}"))

    answers: Counter[str] = Counter()
    said: set[str] = set()
    granted_once = asyncio.Event()
    stop = False

    async def client(name: str) -> None:
        number = 0
        while not stop:
            try:
                verdict = await ask(f"{name} {number}")
            except BudgetUnavailable as unavailable:
                answers["unavailable"] += 1
                said.add(unavailable.message.partition(" cannot be used")[0])
                await asyncio.sleep(0.02)
                continue  # the same attempt again: nobody knows whether it was granted
            assert isinstance(verdict, Admission)
            assert verdict.is_grant
            answers["granted"] += 1
            granted_once.set()
            number += 1

    clients = [asyncio.create_task(client(str(number))) for number in range(8)]
    try:
        await granted_once.wait()
        await asyncio.to_thread(admin.crash)
        with pytest.raises(BudgetUnavailable, match="does not answer"):
            await ledger.now()
    finally:
        await asyncio.to_thread(admin.start)
    at_start = answers["granted"]
    while answers["granted"] < at_start + 20:
        await asyncio.sleep(0.01)
    stop = True
    await asyncio.gather(*clients)
    assert answers["unavailable"] > 0
    assert said == {f"The ledger {redacted_url(breakable_url)}"}
    assert (await Driver(ledger).info(session)).call_count == answers["granted"]
    assert await Driver(ledger).audit_findings() == ()
    await ledger.close()


async def test_a_connection_cut_in_mid_operation_undoes_it_and_says_so(ledger: Ledger, fresh_postgres_url: str) -> None:
    session = await Driver(ledger).open_session(max_calls=1)
    cutting = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'quintain-ledger' AND state = 'active' AND query LIKE '%pg_sleep%'"
    )

    def steps(_: Moment) -> SqlProgram[None]:
        yield from execute("UPDATE session SET max_calls = 7 WHERE id = ?", session.session_id)
        yield from execute("SELECT pg_sleep(60)")

    async def cut() -> None:
        while not await asyncio.to_thread(run_sql, fresh_postgres_url, cutting):
            await asyncio.sleep(0.02)

    cutter = asyncio.create_task(cut())
    with pytest.raises(BudgetUnavailable, match="cannot be used"):
        await ledger.transact(steps)
    await cutter
    assert (await Driver(ledger).info(session)).max_calls == 1


async def test_an_operation_whose_caller_goes_away_is_undone_and_leaves_no_lock(services: list[Ledger]) -> None:
    holds = asyncio.Event()

    def hold(_: Moment) -> SqlProgram[None]:
        holds.set()
        yield from execute("SELECT pg_sleep(60)")

    holder = asyncio.create_task(services[0].transact(hold))
    await holds.wait()
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder
    assert await services[1].transact(lambda _: answer(5)) == 5


async def test_a_closed_ledger_is_unavailable_and_closing_it_finishes_what_runs(fresh_postgres_url: str) -> None:
    ledger = await open_ledger(fresh_postgres_url)
    begun = asyncio.Event()

    def steps(_: Moment) -> SqlProgram[int]:
        begun.set()
        yield from execute("SELECT pg_sleep(0.2)")
        return 5

    running = asyncio.create_task(ledger.transact(steps))
    await begun.wait()
    await ledger.close()
    assert await running == 5
    with pytest.raises(BudgetUnavailable, match="closed"):
        await ledger.transact(steps)
    await ledger.close()


async def test_a_ledger_that_is_not_committed_by_somebody_else_is_not_waited_for_without_end(
    fresh_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres.SERVER_SETTINGS, "statement_timeout", "300ms")
    ledger = await open_ledger(fresh_postgres_url)
    session = await Driver(ledger).open_session(max_calls=1)
    await Driver(ledger).register("w1", limit=10_000)
    theirs = await asyncpg.connect(fresh_postgres_url)
    async with theirs.transaction():
        await theirs.execute("SELECT 1 FROM session FOR UPDATE")
        with pytest.raises(BudgetUnavailable, match="takes too long"):
            await Driver(ledger).ask(admit_request(session, "call"))
    await theirs.close()
    await Driver(ledger).admit_granted(session, "call")
    await ledger.close()

"""The SQLite store: one process, one writer, group commit; it survives, or it says that it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import apsw
import pytest

from quintain.contracts.ledger import AttemptOutcome
from quintain.errors import BudgetExhausted, BudgetUnavailable, ConfigError
from quintain_metadata.store.base import Moment, SqlProgram, execute
from quintain_metadata.store.opening import open_snapshot
from quintain_metadata.store.schema import SCHEMA_VERSION
from quintain_metadata.store.sqlite import SqliteLedger
from support.ledger_driver import Driver, admit_request

SECOND_PROCESS = """
import asyncio, sys
from quintain.errors import ConfigError
from quintain_metadata.store.sqlite import SqliteLedger
try:
    SqliteLedger(sys.argv[1], asyncio.new_event_loop())
except ConfigError as refusal:
    print(refusal.message)
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "deep" / "ledger.sqlite3")


@pytest.fixture
async def ledger(path: str) -> AsyncIterator[SqliteLedger]:
    ledger = SqliteLedger(path, asyncio.get_running_loop())
    yield ledger
    await ledger.close()


def insert_labelled(name: str) -> Callable[[Moment], SqlProgram[None]]:
    """Write one row that is easy to find again."""

    def steps(_: Moment) -> SqlProgram[None]:
        yield from execute("INSERT INTO worker (incarnation, worker_id, lease_until) VALUES (?, ?, 0)", name, name)

    return steps


async def names(ledger: SqliteLedger) -> list[str]:
    rows = await ledger.transact(lambda _: execute("SELECT incarnation FROM worker ORDER BY incarnation"))
    return [row[0] for row in rows]


async def test_a_copy_of_a_live_ledger_counts_what_it_has(ledger: SqliteLedger, path: str, tmp_path: Path) -> None:
    books, copy = Driver(ledger), str(tmp_path / "copy.sqlite3")
    await books.register()
    session = await books.open_session(max_calls=3)
    await books.ask(admit_request(session, "before"))
    with (
        contextlib.closing(apsw.Connection(path)) as live,
        contextlib.closing(apsw.Connection(copy)) as restored,
        restored.backup("main", live, "main") as backup,
    ):
        backup.step()
    await books.ask(admit_request(session, "after"))
    store = SqliteLedger(copy, asyncio.get_running_loop())
    books = Driver(store)
    assert (await books.info(session)).call_count == 1
    await books.ask(admit_request(session, "later"))
    assert (await books.info(session)).call_count == 2
    assert await books.audit_findings() == ()
    await store.close()


async def test_a_file_survives_its_process_with_every_counter(path: str) -> None:
    first = SqliteLedger(path, asyncio.get_running_loop())
    books = Driver(first)
    await books.register()
    session = await books.open_session(max_calls=3)
    kept, doubted = admit_request(session, "r1"), admit_request(session, "r2")
    for ask in (kept, doubted):
        await books.ask(ask)
    await books.end(session, kept)
    await books.end(session, doubted, AttemptOutcome.IN_DOUBT)
    await books.reserve(session, ["r3"])
    before = await books.info(session)
    await first.close()
    second = SqliteLedger(path, asyncio.get_running_loop())
    after = await Driver(second).info(session)
    assert after.model_copy(update={"now": before.now}) == before
    assert (after.call_count, after.committed, after.in_doubt, after.reserved) == (3, 1, 1, 1)
    with pytest.raises(BudgetExhausted):
        await Driver(second).ask(admit_request(session, "r4"))
    await second.close()


async def test_a_second_process_on_the_file_is_refused_with_the_mend(ledger: SqliteLedger, path: str) -> None:
    def second() -> str:
        words = [sys.executable, "-c", SECOND_PROCESS, path]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout

    said = await asyncio.to_thread(second)
    assert "is open in another process" in said
    assert "QUINTAIN_LEDGER_URL" in said
    await ledger.transact(insert_labelled("still ours"))


async def test_a_newer_schema_is_refused_and_the_file_is_let_go(path: str) -> None:
    await SqliteLedger(path, asyncio.get_running_loop()).close()
    with apsw.Connection(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    for _ in range(2):  # a lock left behind would be the second refusal's reason
        with pytest.raises(
            ConfigError, match=rf"has schema {SCHEMA_VERSION + 1}, and this release knows {SCHEMA_VERSION}: upgrade"
        ):
            SqliteLedger(path, asyncio.get_running_loop())


async def test_a_file_that_is_no_ledger_is_said_and_left_alone(path: str) -> None:
    Path(path).parent.mkdir()
    Path(path).write_text("these are my notes, not a database, and I would like to keep them as they are" * 20)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"cannot be opened \(NotADBError"):
            SqliteLedger(path, asyncio.get_running_loop())
    assert Path(path).read_text().startswith("these are my notes")


def _cut(path: str) -> None:
    Path(path).write_bytes(b"")


def _remove(path: str) -> None:
    Path(path).unlink()


def _unmount(path: str) -> None:
    Path(path).unlink()
    Path(f"{path}-wal").unlink()
    Path(path).symlink_to("volume/ledger.sqlite3")


def _replace(path: str, *, version: int = 0) -> None:
    Path(path).unlink()
    Path(f"{path}-wal").unlink()
    with contextlib.closing(apsw.Connection(path)) as connection:
        connection.execute(f"CREATE TABLE mine (x); PRAGMA user_version = {version}")


@pytest.mark.parametrize(
    "damage",
    [_cut, _remove, _unmount, _replace, partial(_replace, version=SCHEMA_VERSION)],
    ids=["cut", "gone", "a link to nothing", "foreign", "as ours"],
)
async def test_what_is_no_ledger_any_more_is_refused_and_left_alone(path: str, damage: Callable[[str], None]) -> None:
    Path(path).parent.mkdir()
    with contextlib.closing(apsw.Connection(path)) as connection:  # the log beside the file of a process that died
        connection.execute(
            "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; CREATE TABLE session (x)"
        ).fetchall()
        copies = {name: Path(name).read_bytes() for name in (path, f"{path}-wal")}
    for name, content in copies.items():
        Path(name).write_bytes(content)
    damage(path)
    before = {file.name: file.read_bytes() for file in Path(path).parent.iterdir() if file.exists()}
    for _ in range(2):
        with pytest.raises(ConfigError, match="is no ledger.*backup.*QUINTAIN_LEDGER_URL.*delete"):
            SqliteLedger(path, asyncio.get_running_loop())
    with pytest.raises(ConfigError):
        async with open_snapshot(f"sqlite://{path}"):
            pass
    left = [file for file in Path(path).parent.iterdir() if file.exists() and file.suffix != ".lock"]
    assert {file.name: file.read_bytes() for file in left} == before


async def test_a_new_ledger_is_said_and_made_at_once(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Path(path).parent.mkdir()
    Path(f"{path}.new").write_bytes(b"half of one, of a process that died")
    for _ in range(2):
        await SqliteLedger(path, asyncio.get_running_loop()).close()
    assert [record.getMessage() for record in caplog.records if "new ledger" in record.getMessage()] == [
        f"This is a new ledger, without any session: {path}"
    ]
    assert not Path(f"{path}.new").exists()


async def test_a_place_where_no_file_can_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be created .*QUINTAIN_LEDGER_URL"):
        SqliteLedger(str(tmp_path / "file" / "ledger.sqlite3"), asyncio.get_running_loop())


async def test_the_file_and_its_folder_are_the_users_own(ledger: SqliteLedger, path: str) -> None:
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in Path(path).parent.iterdir()} == {0o600}


async def test_operations_are_run_in_the_order_they_were_asked(ledger: SqliteLedger) -> None:
    order: list[int] = []

    def noting(number: int) -> Callable[[Moment], SqlProgram[None]]:
        def steps(_: Moment) -> SqlProgram[None]:
            order.append(number)
            yield from execute("SELECT 1")

        return steps

    await asyncio.gather(*(ledger.transact(noting(number)) for number in range(50)))
    assert order == list(range(50))


async def test_a_disk_that_is_full_makes_the_budget_unavailable_until_it_is_not(ledger: SqliteLedger) -> None:
    await ledger.transact(insert_labelled("before"))
    pages = next(iter(ledger._connection.execute("PRAGMA page_count")))[0]
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    insert, big = "INSERT INTO worker (incarnation, worker_id, lease_until) VALUES (?, ?, 0)", "x" * 100_000
    outcomes = await asyncio.gather(
        ledger.transact(lambda _: execute(insert, "big", big)),
        ledger.transact(lambda _: execute(insert, "big too", big)),
        return_exceptions=True,
    )
    for outcome in outcomes:
        assert isinstance(outcome, BudgetUnavailable)
        assert "FullError" in outcome.message
    assert outcomes[0] is not outcomes[1]
    ledger._connection.execute("PRAGMA max_page_count = 1000000")
    await ledger.transact(insert_labelled("after"))
    assert await names(ledger) == ["after", "before"]


async def test_a_ledger_that_is_gone_says_so_to_everyone_who_asks(ledger: SqliteLedger) -> None:
    ledger._connection.close()
    for _ in range(3):
        async with asyncio.timeout(5):
            with pytest.raises(BudgetUnavailable, match="ConnectionClosedError"):
                await ledger.transact(insert_labelled("lost"))


async def test_what_was_asked_before_the_close_is_done_and_what_comes_after_is_refused(path: str) -> None:
    ledger = SqliteLedger(path, asyncio.get_running_loop())
    asking = [
        asyncio.get_running_loop().create_task(ledger.transact(insert_labelled(f"{number}"))) for number in range(9)
    ]
    await asyncio.sleep(0)
    await ledger.close()
    await asyncio.gather(*asking)
    async with asyncio.timeout(5):
        with pytest.raises(BudgetUnavailable, match="closed"):
            await ledger.transact(insert_labelled("late"))
    await ledger.close()
    again = SqliteLedger(path, asyncio.get_running_loop())
    assert len(await names(again)) == 9
    await again.close()


async def test_whoever_stops_waiting_leaves_what_was_decided(ledger: SqliteLedger) -> None:
    asking = asyncio.get_running_loop().create_task(ledger.transact(insert_labelled("decided")))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await names(ledger) == ["decided"]


async def test_a_closed_ledger_holds_neither_file_nor_lock(path: str) -> None:
    await SqliteLedger(path, asyncio.get_running_loop()).close()
    with Path(f"{path}.lock").open() as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_the_file_keeps_what_it_promises_about_the_disk(ledger: SqliteLedger) -> None:
    modes = [
        next(iter(ledger._connection.execute(f"PRAGMA {name}")))[0]
        for name in ("journal_mode", "synchronous", "foreign_keys", "user_version")
    ]
    assert modes == ["wal", 2, 1, SCHEMA_VERSION]

"""A ledger of an older release: opened by this one it has what it had, and does what this one does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest

from conformance.ledger_desk import Desk, counters
from quintain.contracts.ledger import CallKey
from quintain.contracts.metadata import SessionOpened
from quintain.contracts.token import SessionToken
from quintain.testing.postgres_under_test import run_sql
from quintain_metadata.cancels import TakenBack
from quintain_metadata.open_ledger import open_ledger
from quintain_metadata.postgres_schema import TUNING
from quintain_metadata.records import Held
from quintain_metadata.schema import MIGRATIONS, VERSION

FIRST = MIGRATIONS[0]

#: Behind every lease and every deadline that is written here: an hour from now.
LATER = int(time.time() * 1000) + 3_600_000


@dataclass(frozen=True)
class Store:
    """A database: its URL, how a statement is run on it, and how it writes bytes down."""

    url: str
    run: Callable[[str], object]
    bytes_of: Callable[[bytes], str]


@contextlib.contextmanager
def sqlite_of_version_1(path: Path) -> Iterator[Store]:
    connection = apsw.Connection(str(path))

    def run(statement: str) -> object:
        return list(connection.execute(statement))

    for statement in (*FIRST, "PRAGMA user_version = 1"):
        run(statement)
    yield Store(f"sqlite://{path}", run, lambda value: f"X'{value.hex()}'")
    connection.close()


@contextlib.contextmanager
def postgres_of_version_1(url: str) -> Iterator[Store]:
    def run(statement: str) -> object:
        return run_sql(url, statement)

    version = ("CREATE TABLE ledger_version (version bigint NOT NULL)", "INSERT INTO ledger_version VALUES (1)")
    for statement in (*FIRST, *TUNING[1], *version):
        run(statement)
    yield Store(url, run, lambda value: f"'\\x{value.hex()}'")


@pytest.fixture(params=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty ledger as the first release left it."""
    if request.param == "sqlite":
        making = sqlite_of_version_1(tmp_path / "ledger.sqlite3")
    else:
        making = postgres_of_version_1(request.getfixturevalue("fresh_postgres_url"))
    with making as store:
        yield store


def written(store: Store) -> SessionOpened:
    """A session with a call of every kind, as the first release wrote them."""
    token = SessionToken.mint()
    store.run(
        "INSERT INTO session (id, token_sha256, default_target, max_calls, used, state, deadline_ms, store_replies,"
        f" created_at) VALUES ('{token.id}', {store.bytes_of(token.sha256)}, 'a', 10, 4, 'open', 600000, 1, 0)"
    )
    store.run(f"INSERT INTO worker (incarnation, worker_id, lease_until) VALUES ('w1', 'w1', {LATER})")
    store.run(
        "INSERT INTO target (name, provider, max_concurrency, registered_at) VALUES ('a', 'mock', 64, 0)",
    )
    kept = '{"error":"it broke","code":"provider_error","status":502,"charged":true}'
    for name, attempts, fault in (
        ("reserved", 0, None),
        ("running", 1, None),
        ("committed", 1, kept),
        ("inDoubt", 1, kept),
        ("refunded", 1, None),
        ("released", 0, None),
    ):
        holder = f"'attempt {name}', 'w1'" if attempts else "NULL, NULL"
        store.run(
            "INSERT INTO call (session_id, request_id, body_sha256, target, state, attempts, attempt_id, incarnation,"
            f" deadline, call_count, fault, created_at, updated_at) VALUES ('{token.id}', '{name}', 'body', 'a',"
            f" '{name}', {attempts}, {holder}, {LATER}, 1, {'NULL' if fault is None else repr(fault)}, 0, 0)"
        )
        if attempts:
            state = {"running": "running", "refunded": "proven"}.get(name, "unproven")
            store.run(
                "INSERT INTO attempt (id, session_id, request_id, number, incarnation, state, at)"
                f" VALUES ('attempt {name}', '{token.id}', '{name}', 1, 'w1', '{state}', 0)"
            )
    return SessionOpened(session_id=token.id, token=token.text)


@pytest.fixture
async def upgraded(old: Store) -> AsyncIterator[tuple[Desk, SessionOpened]]:
    session = written(old)
    ledger = await open_ledger(old.url)
    yield Desk(ledger), session
    await ledger.close()


def test_the_first_release_is_what_it_was() -> None:
    # What was released is never edited: these tests would write another schema than the one that is out there.
    assert VERSION == len(MIGRATIONS) == 3
    assert not any("cancelled_at" in statement or "paused_until" in statement for statement in FIRST)


async def test_an_older_ledger_has_every_call_it_had(upgraded: tuple[Desk, SessionOpened]) -> None:
    desk, session = upgraded
    assert counters(await desk.info(session)) == {
        "used": 4, "reserved": 1, "running": 1, "committed": 1, "refunded": 1, "in_doubt": 1,
    }  # fmt: skip
    for name in ("committed", "inDoubt"):
        assert (await desk.told(session, name)).error == "it broke"
    assert isinstance(await desk.admit(session, "running", by="w1"), Held)
    for name in ("reserved", "released", "refunded", "new"):
        await desk.granted(session, name)
    assert await desk.findings() == ()


async def test_the_calls_of_an_older_ledger_are_cancelled_and_its_targets_paused(
    upgraded: tuple[Desk, SessionOpened],
) -> None:
    desk, session = upgraded
    names = ("reserved", "running", "committed", "inDoubt", "refunded", "released", "unknown")
    assert await desk.cancel(session, *names) == TakenBack(5, ["running"])
    assert (await desk.info(session)).call_count == 3
    until = await desk.pause("a", 60_000)
    renewed = await desk.renew("w1")
    assert renewed.taken_back == [CallKey(session_id=session.session_id, request_id="running")]
    assert renewed.paused == {"a": until}
    assert (await desk.told(session, "released")).code == "cancelled"
    assert await desk.findings() == ()


async def test_a_ledger_is_upgraded_once(old: Store) -> None:
    session = written(old)
    for _ in range(2):
        ledger = await open_ledger(old.url)
        assert (await Desk(ledger).info(session)).call_count == 4
        await ledger.close()

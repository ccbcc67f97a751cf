"""Ledgers as older releases left them, with rows, for whoever opens them with this one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import apsw

from quintain.contracts.session import SessionOpened
from quintain.contracts.token import SessionToken
from quintain_metadata.ledger.migrations import MIGRATIONS, POSTGRES_STATEMENTS, SQLITE_STATEMENTS
from support.servers.postgres_sql import run_sql

#: Behind every lease and every deadline that is written here: an hour from now.
LATER = int(time.time() * 1000) + 3_600_000


@dataclass(frozen=True)
class Store:
    """A database: its URL, how a statement is run on it, and how it writes bytes down."""

    url: str
    run: Callable[[str], object]
    bytes_of: Callable[[bytes], str]
    #: Whether whoever starts a call counts it too: since schema 14 no trigger of SQLite does.
    counts_running_calls: bool = False


def _statements(version: int, of_store: Mapping[int, tuple[str, ...]]) -> Iterator[str]:
    """Every statement of the migrations up to this one, in order, with those that only this kind of store has."""
    for number, statements in enumerate(MIGRATIONS[:version], start=1):
        yield from (*statements, *of_store.get(number, ()))


@contextlib.contextmanager
def old_sqlite(path: Path, version: int) -> Iterator[Store]:
    """An empty ledger in a file, as the release with this schema left it."""
    connection = apsw.Connection(str(path))

    def run(statement: str) -> object:
        return list(connection.execute(statement))

    for statement in (*_statements(version, SQLITE_STATEMENTS), f"PRAGMA user_version = {version}"):
        run(statement)
    yield Store(f"sqlite://{path}", run, lambda value: f"X'{value.hex()}'", counts_running_calls=version >= 14)
    connection.close()


@contextlib.contextmanager
def old_postgres(url: str, version: int) -> Iterator[Store]:
    """The same in an empty database."""

    def run(statement: str) -> object:
        return run_sql(url, statement)

    for statement in _statements(version, POSTGRES_STATEMENTS):
        run(statement)
    run("CREATE TABLE ledger_version (version bigint NOT NULL)")
    run(f"INSERT INTO ledger_version VALUES ({version})")
    yield Store(url, run, lambda value: f"'\\x{value.hex()}'")


def insert_session(store: Store) -> SessionOpened:
    """A session of target ``a`` with a call of every kind and 6 of 10 calls left, as every release could write them."""
    token = SessionToken.mint()
    store.run(
        "INSERT INTO session (id, token_sha256, default_target, max_calls, used, state, deadline_ms, store_replies,"
        f" created_at) VALUES ('{token.id}', {store.bytes_of(token.sha256)}, 'a', 10, 4, 'open', 600000, 1, 0)"
    )
    store.run(f"INSERT INTO worker (incarnation, worker_id, lease_until) VALUES ('w1', 'w1', {LATER})")
    store.run(
        "INSERT INTO target (name, provider, max_concurrency, registered_at) VALUES ('a', 'mock', 64, 0)",
    )
    fault_json = '{"error":"it broke","code":"provider_error","status":502,"charged":true}'
    for name, attempts, fault in (
        ("reserved", 0, None),
        ("running", 1, None),
        ("committed", 1, fault_json),
        ("inDoubt", 1, fault_json),
        ("refunded", 1, None),
        ("released", 0, None),
    ):
        body = "" if name == "reserved" else "body"  # nobody knows yet what will be asked
        attempt_columns = f"'attempt {name}', 'w1'" if attempts else "NULL, NULL"
        store.run(
            "INSERT INTO call (session_id, request_id, body_sha256, target, state, attempts, attempt_id, incarnation,"
            f" deadline, call_count, fault, created_at, updated_at) VALUES ('{token.id}', '{name}', '{body}', 'a',"
            f" '{name}', {attempts}, {attempt_columns}, {LATER}, 1, {'NULL' if fault is None else repr(fault)}, 0, 0)"
        )
        if attempts:
            state = {"running": "running", "refunded": "proven"}.get(name, "unproven")
            store.run(
                "INSERT INTO attempt (id, session_id, request_id, number, incarnation, state, at)"
                f" VALUES ('attempt {name}', '{token.id}', '{name}', 1, 'w1', '{state}', 0)"
                # Since schema 14 a trigger of PostgreSQL has written the row.
                " ON CONFLICT (id) DO UPDATE SET state = excluded.state"
            )
    if store.counts_running_calls:
        store.run("INSERT INTO running_calls (target, incarnation, running) VALUES ('a', 'w1', 1)")
    return SessionOpened(session_id=token.id, token=token.text)

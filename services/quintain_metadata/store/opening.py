"""Opens the ledger that a URL names: to run operations on it, or to read it in one snapshot without locks.

The modules of the stores are imported only when needed, because asyncpg is an extra.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from quintain.errors import BudgetUnavailable, ConfigError
from quintain_metadata.store.base import (
    POSTGRES_SCHEMES,
    Ledger,
    Row,
    SqlProgram,
    Statement,
    execute,
    fetch_one,
    no_ledger,
    redacted_url,
    require_not_empty,
    sqlite_path,
)
from quintain_metadata.store.sqlite import SqliteLedger


async def open_ledger(url: str) -> Ledger:
    """Open the ledger at ``sqlite:///path``, ``sqlite://`` (in memory) or ``postgresql://…``; the caller closes it.

    Raises `ConfigError` where the operator must correct something, `BudgetUnavailable` where PostgreSQL does not answer
    now but may later.
    """
    if url.partition(":")[0] in POSTGRES_SCHEMES:
        return await _open_postgres(url)
    return SqliteLedger(sqlite_path(url), asyncio.get_running_loop())


async def _open_postgres(url: str) -> Ledger:
    try:
        module = importlib.import_module("quintain_metadata.store.postgres")
    except ModuleNotFoundError as missing:
        if missing.name != "asyncpg":
            raise
        raise ConfigError(
            "QUINTAIN_LEDGER_URL names a PostgreSQL, and asyncpg is not installed: pip install 'quintain[postgres]'"
        ) from None
    ledger: Ledger = await module.PostgresLedger.open(url)
    return ledger


Returned = TypeVar("Returned")

#: Runs one statement and returns its rows.
Query = Callable[[Statement], Awaitable[list[Row]]]


#: The delay before an unavailable ledger is tried again; it doubles from the first to the second, in seconds.
INITIAL_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.2, 5.0


@contextlib.asynccontextmanager
async def open_ledger_or_wait(url: str, *, on_waiting: Callable[[str], None] | None = None) -> AsyncIterator[Ledger]:
    """Open the ledger at this URL.

    With ``on_waiting``, an unavailable ledger is tried again until it can be opened; the function is called once with
    the reason. Raises `ConfigError` if the URL or the ledger cannot be used, and `BudgetUnavailable` if it is
    unavailable and there is no ``on_waiting``.
    """
    ledger = await (open_ledger(url) if on_waiting is None else _open_ledger_with_retry(url, on_waiting))
    try:
        yield ledger
    finally:
        await ledger.close()


async def _open_ledger_with_retry(url: str, on_waiting: Callable[[str], None]) -> Ledger:
    delay_seconds = INITIAL_RETRY_SECONDS
    while True:
        try:
            return await open_ledger(url)
        except BudgetUnavailable as error:
            if delay_seconds == INITIAL_RETRY_SECONDS:
                on_waiting(error.message)
        await asyncio.sleep(delay_seconds)
        delay_seconds = min(2 * delay_seconds, MAX_RETRY_SECONDS)


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """A PostgreSQL server: its clock in seconds since the epoch, and its settings that decide what a crash can lose."""

    clock: float
    settings: Mapping[str, str]


class Snapshot:
    """A consistent, read-only view of a ledger at one moment; ``is_postgres`` says that it is on a server."""

    def __init__(self, query: Query, *, is_postgres: bool) -> None:
        self._query, self._is_postgres = query, is_postgres

    async def version(self) -> int:
        """Return the version of the ledger's schema; 0 where there is no schema yet."""
        return await self.read(_postgres_version() if self._is_postgres else _sqlite_version())

    async def server(self) -> DatabaseServer | None:
        """Return what the database's server says of itself; None where the ledger is a file."""
        return await self.read(_postgres_server()) if self._is_postgres else None

    async def read(self, program: SqlProgram[Returned]) -> Returned:
        """Run an operation that only reads, and return its result."""
        try:
            step = next(program)
            while True:
                assert isinstance(step, Statement), "an operation that only reads"
                step = program.send(await self._query(step))
        except StopIteration as stop:
            result: Returned = stop.value
            return result


@contextlib.asynccontextmanager
async def open_snapshot(url: str) -> AsyncIterator[Snapshot]:
    """Open a snapshot of the ledger at this URL while the context is open.

    Raises `ConfigError`, `BudgetUnavailable`.
    """
    is_postgres = url.partition(":")[0] in POSTGRES_SCHEMES
    query_context = _postgres_query(url) if is_postgres else _sqlite_query(sqlite_path(url))
    async with query_context as query:
        yield Snapshot(query, is_postgres=is_postgres)


def _sqlite_version() -> SqlProgram[int]:
    row = yield from fetch_one("PRAGMA user_version")
    return 0 if row is None else int(row[0])


def _postgres_version() -> SqlProgram[int]:
    table = yield from fetch_one("SELECT to_regclass('ledger_version')::text")
    if table is None or table[0] is None:
        return 0
    row = yield from fetch_one("SELECT max(version) FROM ledger_version")
    return 0 if row is None else int(row[0] or 0)


def _postgres_server() -> SqlProgram[DatabaseServer]:
    clock = yield from fetch_one("SELECT extract(epoch FROM clock_timestamp())::float8")
    rows = yield from execute(
        "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit')"
    )
    return DatabaseServer(clock=float(clock[0]) if clock else 0.0, settings={row[0]: row[1] for row in rows})


@contextlib.asynccontextmanager
async def _sqlite_query(path: str) -> AsyncIterator[Query]:
    apsw = importlib.import_module("apsw")
    require_not_empty(path)
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        # SQLite takes its snapshot at the first read, not at BEGIN.
        connection.execute("BEGIN; SELECT count(*) FROM sqlite_master")
        if not connection.table_exists("main", "session"):
            connection.close()
            raise no_ledger(path)
    except apsw.CantOpenError:
        raise ConfigError(f"There is no ledger at {path}: name it with QUINTAIN_LEDGER_URL") from None
    except apsw.Error as error:
        raise ConfigError(f"{path} cannot be read as a ledger: {error}") from None

    def rows(statement: Statement) -> list[Row]:
        return list(connection.execute(statement.sql, statement.parameters))

    async def query(statement: Statement) -> list[Row]:
        try:
            return await asyncio.to_thread(rows, statement)
        except apsw.Error as error:
            raise ConfigError(f"{path} cannot be read as a ledger: {error}") from None

    try:
        yield query
    finally:
        connection.close()


@contextlib.asynccontextmanager
async def _postgres_query(url: str) -> AsyncIterator[Query]:
    asyncpg = importlib.import_module("asyncpg")
    number_placeholders = importlib.import_module("quintain_metadata.store.postgres_connection").number_placeholders
    try:
        connection = await asyncpg.connect(url, timeout=10)
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        raise BudgetUnavailable(f"No ledger answers at {redacted_url(url)} ({type(error).__name__}: {error})") from None

    async def query(statement: Statement) -> list[Row]:
        return [
            tuple(record)
            for record in await connection.fetch(number_placeholders(statement.sql), *statement.parameters)
        ]

    try:
        # One snapshot for all queries; it does not block writers.
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            yield query
    finally:
        await connection.close()

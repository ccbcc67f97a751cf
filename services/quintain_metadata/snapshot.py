"""Reading a ledger beside the service that writes it: one snapshot, no lock, nothing changed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from quintain.errors import BudgetUnavailable, ConfigError
from quintain_metadata.ledger_url import POSTGRES_SCHEMES, shown, sqlite_path
from quintain_metadata.steps import Lock, Row, Statement, Steps, one

Returned = TypeVar("Returned")

#: Runs one statement and returns its rows.
Query = Callable[[Statement], Awaitable[list[Row]]]


class Snapshot:
    """A ledger as it stood at one moment."""

    def __init__(self, query: Query, version: Callable[[], Steps[int]]) -> None:
        self._query, self._version = query, version

    async def version(self) -> int:
        """Its schema's version; 0 where there is none yet."""
        return await self.read(self._version())

    async def read(self, steps: Steps[Returned]) -> Returned:
        """Run an operation that only reads."""
        try:
            step = next(steps)
            while True:
                step = steps.send([] if isinstance(step, Lock) else await self._query(step))
        except StopIteration as end:
            returned: Returned = end.value
            return returned


@contextlib.asynccontextmanager
async def snapshot_of(url: str) -> AsyncIterator[Snapshot]:
    """The snapshot of the ledger at this URL. Raises `ConfigError`, `BudgetUnavailable`."""
    is_postgres = url.partition(":")[0] in POSTGRES_SCHEMES
    opened = _postgres(url) if is_postgres else _sqlite(sqlite_path(url))
    async with opened as query:
        yield Snapshot(query, _postgres_version if is_postgres else _sqlite_version)


def _sqlite_version() -> Steps[int]:
    row = yield from one("PRAGMA user_version")
    return 0 if row is None else int(row[0])


def _postgres_version() -> Steps[int]:
    there = yield from one("SELECT to_regclass('ledger_version')::text")
    if there is None or there[0] is None:
        return 0
    row = yield from one("SELECT max(version) FROM ledger_version")
    return 0 if row is None else int(row[0] or 0)


@contextlib.asynccontextmanager
async def _sqlite(path: str) -> AsyncIterator[Query]:
    apsw = importlib.import_module("apsw")
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        # A snapshot begins with the first read, not with its transaction.
        connection.execute("BEGIN; SELECT count(*) FROM sqlite_master")
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
async def _postgres(url: str) -> AsyncIterator[Query]:
    asyncpg = importlib.import_module("asyncpg")
    numbered = importlib.import_module("quintain_metadata.postgres").numbered
    try:
        connection = await asyncpg.connect(url, timeout=10)
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        raise BudgetUnavailable(f"No ledger answers at {shown(url)} ({type(error).__name__}: {error})") from None

    async def query(statement: Statement) -> list[Row]:
        return [tuple(record) for record in await connection.fetch(numbered(statement.sql), *statement.parameters)]

    try:
        # One snapshot for all queries, beside whatever is being written.
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            yield query
    finally:
        await connection.close()

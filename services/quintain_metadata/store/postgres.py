"""The ledger on PostgreSQL: one of the metadata services on it leads, and each operation is one transaction.

Operations that write run one after another: a process has one connection for them, and all lock the leader's row
before anything else. So what an operation reads stays true until it ends, as on SQLite. Those that only read have other
connections, and a snapshot. Migrations run once, under an advisory lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from quintain.errors import BudgetUnavailable, ConfigError
from quintain_metadata.store.base import LeaseExpiry, Operation, Returned, Row, redacted_url
from quintain_metadata.store.leadership import LEASE_SECONDS, Leadership
from quintain_metadata.store.postgres_connection import (
    Connection,
    problem_of,
    run_program,
    translate_error,
    translate_startup_error,
)
from quintain_metadata.store.schema import MIGRATIONS, POSTGRES_STATEMENTS

log = logging.getLogger(__name__)

#: Operations lock keys of a prefix and a separator; this key cannot collide with one of them.
MIGRATION_LOCK_SQL: Final = "SELECT pg_advisory_xact_lock(hashtextextended('quintain ledger migrations', 0))"


async def migrate(
    connection: PoolConnectionProxy[asyncpg.Record],
    location: str,
    migrations: Sequence[Sequence[str]] = MIGRATIONS,
) -> None:
    """Bring the schema to this release's version. Raises `ConfigError` where it is newer.

    All in one transaction under a lock: several services may start at once, and one that dies half-way leaves nothing.
    """
    async with connection.transaction():
        await connection.execute(MIGRATION_LOCK_SQL)
        current_version = await _current_version(connection)
        if current_version > len(migrations):
            raise ConfigError(
                f"The ledger {location} has schema {current_version}, and this release knows {len(migrations)}: "
                "upgrade quintain, or use another QUINTAIN_LEDGER_URL"
            )
        if current_version == len(migrations):
            return
        for version, statements in enumerate(migrations[current_version:], start=current_version + 1):
            for statement in (*statements, *POSTGRES_STATEMENTS.get(version, ())):
                await connection.execute(statement)
        await connection.execute("CREATE TABLE IF NOT EXISTS ledger_version (version bigint NOT NULL)")
        await connection.execute("DELETE FROM ledger_version")
        await connection.execute("INSERT INTO ledger_version (version) VALUES ($1)", len(migrations))
    if not current_version:
        log.info("This is a new ledger, without any session: %s", location)


async def _current_version(connection: PoolConnectionProxy[asyncpg.Record]) -> int:
    # Checked first, so that a service with nothing to migrate needs no right to create tables.
    if await connection.fetchval("SELECT to_regclass('ledger_version')") is None:
        return 0
    return int(await connection.fetchval("SELECT max(version) FROM ledger_version") or 0)


#: How many operations that only read run at once.
MAX_READERS = 4

#: Timeouts in seconds. Operations are short: one that takes longer is stuck, and its caller repeats it. The server's
#: timeout comes before the client's.
CONNECT_SECONDS, STATEMENT_TIMEOUT_SECONDS, COMMAND_TIMEOUT_SECONDS, CLOSE_SECONDS = 5.0, 10.0, 15.0, 10.0

#: For how long a process may stand still in a transaction, in seconds: less than a leader's lease, so that it keeps no
#: other one from leading.
IDLE_IN_TRANSACTION_SECONDS = 2.0

SERVER_SETTINGS: Final = {
    "application_name": "quintain-ledger",
    "synchronous_commit": "on",
    "statement_timeout": f"{STATEMENT_TIMEOUT_SECONDS:.0f}s",
    "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_SECONDS:.0f}s",
    "jit": "off",
}

_NOW = "CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)"

#: The first statement of each operation that writes.
_LOCK_LEADER_SQL = f"SELECT {_NOW}, epoch FROM leader FOR UPDATE"

#: Another process that looks at the same time, or a transaction of the former leader, is not waited for.
_TAKE_SQL = (
    f"WITH free AS (SELECT epoch FROM leader WHERE lease_until <= {_NOW} FOR UPDATE SKIP LOCKED)"
    f" UPDATE leader SET epoch = leader.epoch + 1, lease_until = {_NOW} + $1 FROM free RETURNING leader.epoch"
)

#: Ends the transactions of processes that stand still, while no lease holds. The server itself ends none where a client
#: stands still between the preparation of a statement and its execution.
_END_STILL_SQL = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()"
    f" AND usename = current_user AND application_name = '{SERVER_SETTINGS['application_name']}'"
    f" AND wait_event = 'ClientRead' AND xact_start < now() - interval '{IDLE_IN_TRANSACTION_SECONDS:.0f}s'"
    f" AND EXISTS (SELECT 1 FROM leader WHERE lease_until <= {_NOW})"
)
_RENEW_SQL = f"UPDATE leader SET lease_until = {_NOW} + $1 WHERE epoch = $2 RETURNING epoch"


class PostgresLedger:
    """A ledger in one PostgreSQL database. Create it with `open`. It is the row of its own leader too."""

    kind = "postgresql"

    def __init__(
        self, writer: asyncpg.Pool[asyncpg.Record], readers: asyncpg.Pool[asyncpg.Record], location: str
    ) -> None:
        self._writer, self._readers, self._location = writer, readers, location
        self.lease_expiry, self.leadership = LeaseExpiry(), Leadership(self)
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> PostgresLedger:
        """Connect and migrate.

        Raises `ConfigError` where the operator must correct something, `BudgetUnavailable` where the server does not
        answer now.
        """
        location = redacted_url(url)
        with _translated_errors(translate_startup_error, location):
            async with contextlib.AsyncExitStack() as on_failure:
                writer, readers = [await _open_pool(url, size, on_failure) for size in (1, MAX_READERS)]
                async with writer.acquire() as connection:
                    await migrate(connection, location)
                on_failure.pop_all()
        return cls(writer, readers, location)

    async def transact(self, operation: Operation[Returned]) -> Returned:
        """Run one operation in a transaction (`Ledger.transact`)."""
        with self._usable():
            try:
                return await self._write(operation)
            except asyncpg.InvalidCachedStatementError:  # another release has changed the schema
                return await self._write(operation)

    async def read(self, operation: Operation[Returned]) -> Returned:
        """Run one operation that only reads, in a snapshot (`Ledger.read`)."""
        with self._usable():
            async with (
                self._readers.acquire(timeout=COMMAND_TIMEOUT_SECONDS) as connection,
                _transaction(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
            ):
                moment = self.lease_expiry.moment(await connection.fetchval(f"SELECT {_NOW}"))
                return await run_program(connection, operation(moment))

    async def now(self) -> int:
        """Return the server's clock (`Ledger.now`)."""
        row = await self._fetch(f"SELECT {_NOW}")
        assert row is not None
        return int(row[0])

    async def close(self) -> None:
        """Close the connections (`Ledger.close`)."""
        if not self._closed:
            self._closed = True
            await _close_pool(self._writer)
            await _close_pool(self._readers)

    async def take(self) -> int | None:
        """Begin a new epoch (`LeaderRow.take`)."""
        row = await self._fetch(_TAKE_SQL, round(LEASE_SECONDS * 1000))
        if row is None:
            await self._fetch(_END_STILL_SQL)
            return None
        return int(row[0])

    async def renew(self, epoch: int) -> bool:
        """Renew the lease of an epoch (`LeaderRow.renew`)."""
        return await self._fetch(_RENEW_SQL, round(LEASE_SECONDS * 1000), epoch) is not None

    async def release(self, epoch: int) -> None:
        """End the lease of an epoch (`LeaderRow.release`)."""
        await self._fetch(_RENEW_SQL, 0, epoch)

    async def _fetch(self, sql: str, *parameters: int) -> Row | None:
        """Run one statement beside the operations that write, and return its first row."""
        with self._usable():
            async with self._readers.acquire(timeout=COMMAND_TIMEOUT_SECONDS) as connection:
                row = await connection.fetchrow(sql, *parameters)
                return None if row is None else tuple(row)

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        if self._closed:
            raise BudgetUnavailable("The ledger is closed")
        with _translated_errors(translate_error, self._location):
            yield

    async def _write(self, operation: Operation[Returned]) -> Returned:
        async with (
            self._writer.acquire(timeout=COMMAND_TIMEOUT_SECONDS) as connection,
            _transaction(connection, "BEGIN ISOLATION LEVEL READ COMMITTED"),
        ):
            [(now, epoch)] = await connection.fetch(_LOCK_LEADER_SQL)
            if self.leadership.epoch not in {None, epoch}:
                raise BudgetUnavailable("Another metadata service leads the ledger")
            return await run_program(connection, operation(self.lease_expiry.moment(now)))


@contextlib.asynccontextmanager
async def _transaction(connection: Connection, begin: str) -> AsyncIterator[None]:
    """Commit what is done in the context.

    If the connection ends at the commit, it is unknown whether the transaction was committed, and asking would not
    help: the server may still be committing. The caller gets `BudgetUnavailable`, as for an operation that did not
    happen, and repeats its request. That is safe because requests are idempotent: the same attempt gets the same grant,
    a settle that was applied is noted, reserved ids cost nothing, and a limit is set to an absolute value. A session
    that was opened this way has a token that no caller received: it can never spend.
    """
    try:
        await connection.execute(begin)
        yield
        await connection.execute("COMMIT")
    except BaseException as error:
        await _roll_back_or_terminate(connection, error)
        raise


async def _roll_back_or_terminate(connection: Connection, error: BaseException) -> None:
    """Roll back the connection's transaction, or close the connection where its state is unknown."""
    if isinstance(error, Exception) and problem_of(error) is None:
        await connection.execute("ROLLBACK")
        return
    # Interrupted by a cancellation or by the server: the protocol state is unknown. A connection that ended by itself
    # was released already, which raises InterfaceError.
    with contextlib.suppress(asyncpg.InterfaceError):
        connection.terminate()


@contextlib.contextmanager
def _translated_errors(translate: Callable[[Exception, str], Exception], location: str) -> Iterator[None]:
    """Raise the ledger's error in place of a PostgreSQL error."""
    try:
        yield
    except Exception as error:
        translated = translate(error, location)
        if translated is error:
            raise
        raise translated from None


async def _open_pool(url: str, size: int, on_failure: contextlib.AsyncExitStack) -> asyncpg.Pool[asyncpg.Record]:
    """Open a pool of at most so many connections, which is closed with ``on_failure``."""
    pool = await asyncpg.create_pool(
        url,
        min_size=0,
        max_size=size,
        timeout=CONNECT_SECONDS,
        command_timeout=COMMAND_TIMEOUT_SECONDS,
        reset=_skip_reset,
        server_settings=SERVER_SETTINGS,
    )
    on_failure.push_async_callback(_close_pool, pool)
    return pool


async def _close_pool(pool: asyncpg.Pool[asyncpg.Record]) -> None:
    """Close the pool after the running queries; errors are ignored, because the connections end with it anyway."""
    with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await pool.close()


async def _skip_reset(_: object) -> None:
    """Skip the reset query of the pool: operations leave no state on a connection."""

"""The ledger on PostgreSQL, shared by any number of metadata services: each operation is one transaction.

Transactions run at READ COMMITTED: each statement sees what is committed when it begins. What is read after an
`AdvisoryLock` therefore stays true until the operation ends, and a conditional ``UPDATE`` waits for its row and
evaluates its condition again. Migrations run once, under an advisory lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from quintain.errors import BudgetUnavailable, ConfigError
from quintain.runtime.concurrency import cancel_and_wait
from quintain_metadata.store.base import LeaseExpiry, Operation, Returned, redacted_url
from quintain_metadata.store.postgres_connection import (
    Connection,
    is_retryable,
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


#: How many operations run at once; more would wait for each other's rows, not for a connection.
MAX_CONNECTIONS = 8

#: How often an operation is run at most when it fails with a retryable error, such as a deadlock.
MAX_TRIES = 8

#: Timeouts in seconds. Operations are short: one that takes longer is stuck, and its caller repeats it. The server's
#: timeout comes before the client's.
CONNECT_SECONDS, STATEMENT_TIMEOUT_SECONDS, COMMAND_TIMEOUT_SECONDS, CLOSE_SECONDS = 5.0, 10.0, 15.0, 10.0

#: Settings of each connection. The timeouts keep a service that stalls in an operation from blocking rows for ever.
SERVER_SETTINGS: Final = {
    "application_name": "quintain-ledger",
    "synchronous_commit": "on",
    "statement_timeout": f"{STATEMENT_TIMEOUT_SECONDS:.0f}s",
    "idle_in_transaction_session_timeout": f"{STATEMENT_TIMEOUT_SECONDS:.0f}s",
    "jit": "off",
}

_NOW_SQL = "SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)"


class PostgresLedger:
    """A ledger in one PostgreSQL database. Create it with `open`."""

    kind, is_shared = "postgresql", True

    def __init__(
        self,
        pool: asyncpg.Pool[asyncpg.Record],
        location: str,
        connect: Callable[[], Awaitable[asyncpg.Connection[asyncpg.Record]]],
    ) -> None:
        self._pool, self._location = pool, location
        self._notifications = CapacityNotifications(connect, pool.execute)
        self.lease_expiry = LeaseExpiry()
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> PostgresLedger:
        """Connect and migrate.

        Raises `ConfigError` where the operator must correct something, `BudgetUnavailable` where the server does not
        answer now.
        """
        location = redacted_url(url)
        pool = asyncpg.create_pool(
            url,
            min_size=0,
            max_size=MAX_CONNECTIONS,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_TIMEOUT_SECONDS,
            reset=_skip_reset,
            server_settings=SERVER_SETTINGS,
        )
        with _translated_errors(translate_startup_error, location):
            async with contextlib.AsyncExitStack() as on_failure:
                on_failure.push_async_callback(_close_pool, await pool)
                async with pool.acquire() as connection:
                    await migrate(connection, location)
                on_failure.pop_all()
        connect = partial(asyncpg.connect, url, timeout=CONNECT_SECONDS, server_settings=SERVER_SETTINGS)
        return cls(pool, location, connect)

    async def transact(self, operation: Operation[Returned]) -> Returned:
        """Run one operation in a transaction, retrying deadlocks (`Ledger.transact`)."""
        if self._closed:
            raise BudgetUnavailable("The ledger is closed")
        with _translated_errors(translate_error, self._location):
            async for attempt in AsyncRetrying(
                retry=retry_if_exception(is_retryable),
                stop=stop_after_attempt(MAX_TRIES),
                wait=wait_random_exponential(multiplier=0.02, max=0.5),
                reraise=True,
            ):
                with attempt:
                    return await self._run_once(operation)
        raise AssertionError("the retry loop ends with a result or an error")

    def listen_for_capacity(self, callback: Callable[[str], None]) -> None:
        """Listen for free capacity (`Ledger.listen_for_capacity`)."""
        self._notifications.listen(callback)

    def announce_capacity(self, targets: Iterable[str]) -> None:
        """Announce free capacity (`Ledger.announce_capacity`)."""
        if not self._closed:
            self._notifications.announce(targets)

    async def now(self) -> int:
        """Return the server's clock (`Ledger.now`)."""
        with _translated_errors(translate_error, self._location):
            async with self._pool.acquire(timeout=COMMAND_TIMEOUT_SECONDS) as connection:
                return int(await connection.fetchval(_NOW_SQL))

    async def close(self) -> None:
        """Close the connections (`Ledger.close`)."""
        if self._closed:
            return
        self._closed = True
        await self._notifications.close()
        await _close_pool(self._pool)

    async def _run_once(self, operation: Operation[Returned]) -> Returned:
        async with self._pool.acquire(timeout=COMMAND_TIMEOUT_SECONDS) as connection:
            try:
                await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                moment = self.lease_expiry.moment(await connection.fetchval(_NOW_SQL))
                result = await run_program(connection, operation(moment))
                # If the connection ends here, it is unknown whether the transaction was committed, and asking would not
                # help: the server may still be committing. The caller gets `BudgetUnavailable`, as for an operation
                # that did not happen, and repeats its request. That is safe because requests are idempotent: the same
                # attempt gets the same grant, a settle that was applied is noted, reserved ids cost nothing, and a
                # limit is set to an absolute value. A session that was opened this way has a token that no caller
                # received: it can never spend.
                await connection.execute("COMMIT")
            except BaseException as error:
                await _roll_back_or_terminate(connection, error)
                raise
            return result


async def _roll_back_or_terminate(connection: Connection, error: BaseException) -> None:
    """Roll back the connection's transaction, or close the connection where its state is unknown."""
    if isinstance(error, Exception) and (is_retryable(error) or problem_of(error) is None):
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


async def _close_pool(pool: asyncpg.Pool[asyncpg.Record]) -> None:
    """Close the pool after the running queries; errors are ignored, because the connections end with it anyway."""
    with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await pool.close()


async def _skip_reset(_: object) -> None:
    """Skip the reset query of the pool: operations leave no state on a connection."""


CHANNEL: Final = "quintain_capacity"

#: Pause before listening again after the connection was lost, in seconds.
RECONNECT_SECONDS = 1.0

#: Notifications are collected for so long, in seconds: each one wakes every service.
COLLECT_SECONDS = 0.01

_NOTIFY_SQL: Final = f"SELECT pg_notify('{CHANNEL}', $1 || ' ' || target) FROM unnest($2::text[]) AS target"

#: What a lost server raises.
_ERRORS = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


class CapacityNotifications:
    """Sends and receives notifications of one service.

    ``connect`` opens a connection to listen on; ``execute`` runs one statement on any connection.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[asyncpg.Connection[asyncpg.Record]]],
        execute: Callable[[str, str, list[str]], Awaitable[object]],
    ) -> None:
        self._connect, self._execute = connect, execute
        self._service_id = secrets.token_hex(8)
        self._unsent: set[str] = set()
        self._send_task: asyncio.Task[None] | None = None
        self._listen_task: asyncio.Task[None] | None = None

    def listen(self, callback: Callable[[str], None]) -> None:
        """Call ``callback`` with a target's name when another service announces it, from now on."""
        self._listen_task = asyncio.get_running_loop().create_task(self._listen(callback), name="ledger-listen")

    def announce(self, targets: Iterable[str]) -> None:
        """Notify the other services of these targets, soon."""
        self._unsent.update(targets)
        if self._unsent and (self._send_task is None or self._send_task.done()):
            self._send_task = asyncio.get_running_loop().create_task(self._send(), name="ledger-notify")

    async def close(self) -> None:
        """Send and receive no more."""
        await cancel_and_wait(self._send_task, self._listen_task)

    async def _send(self) -> None:
        while self._unsent:
            await asyncio.sleep(COLLECT_SECONDS)
            targets, self._unsent = sorted(self._unsent), set()
            try:
                await self._execute(_NOTIFY_SQL, self._service_id, targets)
            except _ERRORS as error:
                log.debug("Free capacity was not announced: %s", error)

    async def _listen(self, callback: Callable[[str], None]) -> None:
        def on_notification(*arguments: Any) -> None:
            service_id, _, target = arguments[-1].partition(" ")
            if service_id != self._service_id:
                callback(target)

        while True:
            with contextlib.suppress(*_ERRORS):
                connection = await self._connect()
                try:
                    closed = asyncio.Event()
                    connection.add_termination_listener(lambda _, closed=closed: closed.set())
                    await connection.add_listener(CHANNEL, on_notification)
                    await closed.wait()
                finally:
                    connection.terminate()
            await asyncio.sleep(RECONNECT_SECONDS)

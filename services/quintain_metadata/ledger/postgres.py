"""The ledger on PostgreSQL, shared by any number of metadata services: each operation is one transaction.

Transactions run at READ COMMITTED: each statement sees what is committed when it begins. What is read after an
`AdvisoryLock` therefore stays true until the operation ends, and a conditional ``UPDATE`` waits for its row and
evaluates its condition again. Migrations run once, under an advisory lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from quintain.errors import BudgetUnavailable, ConfigError
from quintain_metadata.ledger.base import AdvisoryLock, Moment, Operation, Returned, Row, SqlProgram, Statement
from quintain_metadata.ledger.migrations import MIGRATIONS
from quintain_metadata.ledger.postgres_errors import is_retryable, problem_of, translate_error, translate_startup_error
from quintain_metadata.ledger.url import redacted_url

#: Operations lock keys that begin with a word and a separator: this one is nobody else's.
MIGRATION_LOCK_SQL: Final = "SELECT pg_advisory_xact_lock(hashtextextended('quintain ledger migrations', 0))"

#: What a migration needs on PostgreSQL alone, by its number. It never changes what a statement says.
POSTGRES_STATEMENTS: Final[dict[int, tuple[str, ...]]] = {
    # The counter of a busy session is rewritten with every call. Room on its page keeps its versions there (HOT).
    1: ("ALTER TABLE session SET (fillfactor = 50)",),
}


async def migrate(
    connection: PoolConnectionProxy[asyncpg.Record],
    location: str,
    migrations: Sequence[Sequence[str]] = MIGRATIONS,
) -> None:
    """Bring the schema to this release's version. Raises `ConfigError` where it is newer.

    One transaction under a lock: several services start at once, and one that dies half-way leaves nothing.
    """
    async with connection.transaction():
        await connection.execute(MIGRATION_LOCK_SQL)
        current_version = await _current_version(connection)
        if current_version > len(migrations):
            raise ConfigError(
                f"The ledger {location} has schema {current_version}, and this release knows {len(migrations)}: "
                "upgrade quintain, "
                "or use another QUINTAIN_LEDGER_URL"
            )
        if current_version == len(migrations):
            return
        for version, statements in enumerate(migrations[current_version:], start=current_version + 1):
            for statement in (*statements, *POSTGRES_STATEMENTS.get(version, ())):
                await connection.execute(statement)
        await connection.execute("CREATE TABLE IF NOT EXISTS ledger_version (version bigint NOT NULL)")
        await connection.execute("DELETE FROM ledger_version")
        await connection.execute("INSERT INTO ledger_version (version) VALUES ($1)", len(migrations))


async def _current_version(connection: PoolConnectionProxy[asyncpg.Record]) -> int:
    # Asked first: a service that has nothing to migrate needs no right to create a table.
    if await connection.fetchval("SELECT to_regclass('ledger_version')") is None:
        return 0
    return int(await connection.fetchval("SELECT max(version) FROM ledger_version") or 0)


Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"  # in quotes: it takes no parameter at run time

#: How many operations run at once; more of them wait for one another's rows, and not for a connection.
MAX_CONNECTIONS = 8

#: How often an operation is run that others' operations stand in the way of.
MAX_TRIES = 8

#: Nothing here takes long: what does is stuck, and its caller asks again. Seconds, the server's before the client's.
CONNECT_SECONDS, STATEMENT_TIMEOUT_SECONDS, COMMAND_TIMEOUT_SECONDS, CLOSE_SECONDS = 5.0, 10.0, 15.0, 10.0

#: Of each connection. A service that stands still in mid-operation must not keep the others from its rows for ever.
SERVER_SETTINGS: Final = {
    "application_name": "quintain-ledger",
    "synchronous_commit": "on",
    "statement_timeout": f"{STATEMENT_TIMEOUT_SECONDS:.0f}s",
    "idle_in_transaction_session_timeout": f"{STATEMENT_TIMEOUT_SECONDS:.0f}s",
    "jit": "off",
}

_NOW_SQL = "SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)"
_LOCK_SQL = "SELECT pg_advisory_xact_lock(hashtextextended(key, 0)) FROM unnest($1::text[]) AS key"

#: A parameter, or a quoted text, in which a question mark is one.
_PLACEHOLDER = re.compile(r"'[^']*'|\?")


class PostgresLedger:
    """A ledger in one PostgreSQL database. Make it with `open`."""

    kind = "postgresql"

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], location: str) -> None:
        self._pool, self._location = pool, location
        self._lease_expiry_suspended_until = 0
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> PostgresLedger:
        """Connect and migrate. Raises `ConfigError` where the operator must mend something, `BudgetUnavailable`
        where the server does not answer, or not yet."""
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
        return cls(pool, location)

    async def transact(self, operation: Operation[Returned]) -> Returned:
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
        raise AssertionError("the retrying ends with an answer or an error")

    async def transact_each(self, operations: Sequence[Operation[Returned]]) -> list[Returned | Exception]:
        # As many at a time as there are connections; each waits for those that it must wait for, and for no other.
        outcomes = await asyncio.gather(*(self.transact(operation) for operation in operations), return_exceptions=True)
        return [_result_or_exception(outcome) for outcome in outcomes]

    def suspend_lease_expiry_until(self, timestamp_ms: int) -> None:
        self._lease_expiry_suspended_until = timestamp_ms

    async def now(self) -> int:
        with _translated_errors(translate_error, self._location):
            async with self._pool.acquire(timeout=COMMAND_TIMEOUT_SECONDS) as connection:
                return int(await connection.fetchval(_NOW_SQL))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await _close_pool(self._pool)

    async def _run_once(self, operation: Operation[Returned]) -> Returned:
        async with self._pool.acquire(timeout=COMMAND_TIMEOUT_SECONDS) as connection:
            try:
                return await self._run_in_transaction(connection, operation)
            except BaseException as error:
                await _roll_back_or_terminate(connection, error)
                raise

    async def _run_in_transaction(self, connection: Connection, operation: Operation[Returned]) -> Returned:
        await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        moment = Moment(await connection.fetchval(_NOW_SQL), self._lease_expiry_suspended_until)
        result = await _run_program(connection, operation(moment))
        # A connection that ends here leaves it open whether this was committed, and no second look would settle it:
        # the server may still be at it. The caller hears `BudgetUnavailable`, as for what certainly did not happen,
        # and asks again. That is safe because it asks for a state, not for a step: the same attempt gets the same
        # grant, a settle that was applied is noted, ids that are reserved cost nothing, a limit is set to what it
        # is. A session opened unseen has a token nobody was told: it can never spend.
        await connection.execute("COMMIT")
        return result


def _result_or_exception(outcome: Returned | BaseException) -> Returned | Exception:
    """The outcome; one that is no `Exception` is nobody's to keep."""
    if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _roll_back_or_terminate(connection: Connection, error: BaseException) -> None:
    """Undo what was begun on a connection."""
    if isinstance(error, Exception) and (is_retryable(error) or problem_of(error) is None):
        await connection.execute("ROLLBACK")
        return
    # Cut off in the middle, by its caller or by the server: nobody knows what the connection would say next. One that
    # ended by itself is not ours any more.
    with contextlib.suppress(asyncpg.InterfaceError):
        connection.terminate()


async def _run_program(connection: Connection, program: SqlProgram[Returned]) -> Returned:
    try:
        step = next(program)
        while True:
            step = program.send(await _execute_step(connection, step))
    except StopIteration as stop:
        result: Returned = stop.value
        return result


async def _execute_step(connection: Connection, step: Statement | AdvisoryLock) -> list[Row]:
    if isinstance(step, AdvisoryLock):
        await connection.fetch(_LOCK_SQL, step.keys)
        return []
    return [tuple(record) for record in await connection.fetch(number_placeholders(step.sql), *step.parameters)]


@functools.lru_cache(maxsize=256)
def number_placeholders(sql: str) -> str:
    """A statement with its parameters marked ``$1…`` in place of ``?``."""
    numbers = iter(range(1, sql.count("?") + 1))
    return _PLACEHOLDER.sub(lambda match: f"${next(numbers)}" if match[0] == "?" else match[0], sql)


@contextlib.contextmanager
def _translated_errors(translate: Callable[[Exception, str], Exception], location: str) -> Iterator[None]:
    """Raise what an error means in its stead."""
    try:
        yield
    except Exception as error:
        translated = translate(error, location)
        if translated is error:
            raise
        raise translated from None


async def _close_pool(pool: asyncpg.Pool[asyncpg.Record]) -> None:
    """Finish what runs. A pool that cannot be closed in order drops its connections by itself."""
    with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await pool.close()


async def _skip_reset(_: object) -> None:
    """Operations leave nothing on a connection: settings, locks and prepared statements are all its own for life."""

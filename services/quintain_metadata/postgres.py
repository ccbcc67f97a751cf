"""The ledger on PostgreSQL, for any number of metadata services: each operation is one transaction.

READ COMMITTED: every statement sees what is committed when it begins, so what is read after a `Lock` is true until
the operation ends, and a conditional ``UPDATE`` waits for its row and judges it anew.
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

from quintain.errors import BudgetUnavailable
from quintain_metadata.ledger import Operation, Returned
from quintain_metadata.ledger_url import shown
from quintain_metadata.postgres_faults import is_repeated, told, told_at_start, trouble_of
from quintain_metadata.postgres_schema import migrate
from quintain_metadata.records import Moment
from quintain_metadata.steps import Lock, Row, Statement, Steps

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"  # in quotes: it takes no parameter at run time

#: How many operations run at once; more of them wait for one another's rows, and not for a connection.
CONNECTIONS = 8

#: How often an operation is run that others' operations stand in the way of.
MOST_TRIES = 8

#: Nothing here takes long: what does is stuck, and its caller asks again. Seconds, the server's before the client's.
CONNECT_SECONDS, SERVER_SECONDS, CLIENT_SECONDS, CLOSE_SECONDS = 5.0, 10.0, 15.0, 10.0

#: Of each connection. A service that stands still in mid-operation must not keep the others from its rows for ever.
SETTINGS: Final = {
    "application_name": "quintain-ledger",
    "synchronous_commit": "on",
    "statement_timeout": f"{SERVER_SECONDS:.0f}s",
    "idle_in_transaction_session_timeout": f"{SERVER_SECONDS:.0f}s",
    "jit": "off",
}

_NOW = "SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)"
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(key, 0)) FROM unnest($1::text[]) AS key"

#: A parameter, or a quoted text, in which a question mark is one.
_MARK = re.compile(r"'[^']*'|\?")


class PostgresLedger:
    """A ledger in one PostgreSQL database. Make it with `open`."""

    kind = "postgresql"

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], place: str) -> None:
        self._pool, self._place = pool, place
        self._mourn_from = 0
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> PostgresLedger:
        """Connect and migrate. Raises `ConfigError` where the operator must mend something, `BudgetUnavailable`
        where the server does not answer, or not yet."""
        place = shown(url)
        pool = asyncpg.create_pool(
            url,
            min_size=0,
            max_size=CONNECTIONS,
            timeout=CONNECT_SECONDS,
            command_timeout=CLIENT_SECONDS,
            reset=_nothing_to_reset,
            server_settings=SETTINGS,
        )
        with _telling(told_at_start, place):
            async with contextlib.AsyncExitStack() as on_failure:
                on_failure.push_async_callback(_close, await pool)
                async with pool.acquire() as connection:
                    await migrate(connection, place)
                on_failure.pop_all()
        return cls(pool, place)

    async def do(self, operation: Operation[Returned]) -> Returned:
        if self._closed:
            raise BudgetUnavailable("The ledger is closed")
        with _telling(told, self._place):
            async for turn in AsyncRetrying(
                retry=retry_if_exception(is_repeated),
                stop=stop_after_attempt(MOST_TRIES),
                wait=wait_random_exponential(multiplier=0.02, max=0.5),
                reraise=True,
            ):
                with turn:
                    return await self._once(operation)
        raise AssertionError("the retrying ends with an answer or an error")

    async def do_each(self, operations: Sequence[Operation[Returned]]) -> list[Returned | Exception]:
        # As many at a time as there are connections; each waits for those that it must wait for, and for no other.
        outcomes = await asyncio.gather(*(self.do(operation) for operation in operations), return_exceptions=True)
        return [_kept(outcome) for outcome in outcomes]

    def mourn_from(self, moment_ms: int) -> None:
        self._mourn_from = moment_ms

    async def now(self) -> int:
        with _telling(told, self._place):
            async with self._pool.acquire(timeout=CLIENT_SECONDS) as connection:
                return int(await connection.fetchval(_NOW))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await _close(self._pool)

    async def _once(self, operation: Operation[Returned]) -> Returned:
        async with self._pool.acquire(timeout=CLIENT_SECONDS) as connection:
            try:
                return await self._transact(connection, operation)
            except BaseException as error:
                await _leave(connection, error)
                raise

    async def _transact(self, connection: Connection, operation: Operation[Returned]) -> Returned:
        await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        moment = Moment(await connection.fetchval(_NOW), self._mourn_from)
        returned = await _drive(connection, operation(moment))
        # A connection that ends here leaves it open whether this was committed, and no second look would settle it:
        # the server may still be at it. The caller hears `BudgetUnavailable`, as for what certainly did not happen,
        # and asks again. That is safe because it asks for a state, not for a step: the same attempt gets the same
        # grant, a settle that was applied is noted, ids that are reserved cost nothing, a limit is set to what it
        # is. A session opened unseen has a token nobody was told: it can never spend.
        await connection.execute("COMMIT")
        return returned


def _kept(outcome: Returned | BaseException) -> Returned | Exception:
    """The outcome; one that is no `Exception` is nobody's to keep."""
    if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _leave(connection: Connection, error: BaseException) -> None:
    """Undo what was begun on a connection."""
    if isinstance(error, Exception) and (is_repeated(error) or trouble_of(error) is None):
        await connection.execute("ROLLBACK")
        return
    # Cut off in the middle, by its caller or by the server: nobody knows what the connection would say next. One that
    # ended by itself is not ours any more.
    with contextlib.suppress(asyncpg.InterfaceError):
        connection.terminate()


async def _drive(connection: Connection, steps: Steps[Returned]) -> Returned:
    try:
        step = next(steps)
        while True:
            step = steps.send(await _rows(connection, step))
    except StopIteration as end:
        returned: Returned = end.value
        return returned


async def _rows(connection: Connection, step: Statement | Lock) -> list[Row]:
    if isinstance(step, Lock):
        await connection.fetch(_LOCK, step.keys)
        return []
    return [tuple(record) for record in await connection.fetch(numbered(step.sql), *step.parameters)]


@functools.lru_cache(maxsize=256)
def numbered(sql: str) -> str:
    """A statement with its parameters marked ``$1…`` in place of ``?``."""
    numbers = iter(range(1, sql.count("?") + 1))
    return _MARK.sub(lambda mark: f"${next(numbers)}" if mark[0] == "?" else mark[0], sql)


@contextlib.contextmanager
def _telling(tell: Callable[[Exception, str], Exception], place: str) -> Iterator[None]:
    """Raise what an error means in its stead."""
    try:
        yield
    except Exception as error:
        meant = tell(error, place)
        if meant is error:
            raise
        raise meant from None


async def _close(pool: asyncpg.Pool[asyncpg.Record]) -> None:
    """Finish what runs. A pool that cannot be closed in order drops its connections by itself."""
    with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await pool.close()


async def _nothing_to_reset(_: object) -> None:
    """Operations leave nothing on a connection: settings, locks and prepared statements are all its own for life."""

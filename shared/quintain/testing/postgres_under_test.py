"""What a test is given: a PostgreSQL's address, where it came from, a hand on its switch, and fresh databases.

Everything here blocks and keeps its event loop to itself, so that a fixture may call it while the test's loop runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from quintain.errors import QuintainError

_STATEMENT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresAdmin:
    """The switch of a PostgreSQL that is ours alone, for the tests of faults. It blocks: seconds, at times.

    ``crash`` ends the server as a power failure would: it cuts every connection, finishes nothing, and at its next
    start it recovers. ``stop`` is an operator's stop, which cuts every connection too, and leaves the data in order;
    ``kill`` is -9 for its first process. ``start`` brings it back to the same address and returns when it answers.
    """

    crash: Callable[[], None]
    stop: Callable[[], None]
    kill: Callable[[], None]
    start: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresUnderTest:
    """A real PostgreSQL. ``url`` opens a database that exists and may create others; ``how`` says in one line which
    server it is; ``admin`` is None where it is not ours to stop."""

    url: str
    how: str
    admin: PostgresAdmin | None

    @contextlib.contextmanager
    def fresh_database(self) -> Iterator[str]:
        """The URL of an empty database, which is dropped at the end, whoever is still connected."""
        name = f"quintain_test_{secrets.token_hex(6)}"
        run_sql(self.url, f"CREATE DATABASE {name}")
        try:
            yield urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))
        finally:
            run_sql(self.url, f"DROP DATABASE {name} WITH (FORCE)")


def run_sql(url: str, sql: str, *, timeout_seconds: float = _STATEMENT_SECONDS) -> object:
    """Run one statement over a connection of its own; returns the first value of its first row, or None.

    Raises what asyncpg raises, `OSError` among it.
    """
    answer: Future[object] = Future()

    def in_own_loop() -> None:
        try:
            answer.set_result(asyncio.run(_value(url, sql, timeout_seconds)))
        except Exception as error:  # whatever it is belongs to who waits for the answer
            answer.set_exception(error)

    thread = threading.Thread(target=in_own_loop, name="postgres-under-test")
    thread.start()
    thread.join()
    return answer.result()


def read_version(url: str, *, timeout_seconds: float = 5.0) -> str:
    """The version of the PostgreSQL that answers there. Raises `OSError` where none does in this time, and
    `QuintainError` where it answers and refuses."""
    try:
        return str(run_sql(url, "SHOW server_version", timeout_seconds=timeout_seconds)).split()[0]
    except asyncpg.CannotConnectNowError as error:
        raise ConnectionError(str(error)) from error
    except asyncpg.PostgresError as error:
        raise QuintainError(f"it refuses: {type(error).__name__}: {error.args[0]}") from error
    except asyncpg.InterfaceError as error:
        raise ConnectionError(str(error)) from error


def wait_for_version(url: str, *, timeout_seconds: float, alive: Callable[[], bool] = lambda: True) -> str:
    """The server's version as soon as it answers. Raises `QuintainError` when it ended or the time is up."""
    until = time.monotonic() + timeout_seconds
    while True:
        try:
            return read_version(url)
        except OSError as error:
            if not alive():
                raise QuintainError("the server ended before it answered") from error
            if time.monotonic() > until:
                raise QuintainError(f"no PostgreSQL answered for {timeout_seconds:g} s: {error}") from error
        time.sleep(0.05)


async def _value(url: str, sql: str, timeout_seconds: float) -> object:
    async with asyncio.timeout(timeout_seconds):
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

"""Runs SQL on a PostgreSQL, and makes databases for single tests.

Everything here blocks and uses an event loop on a thread of its own, so that a fixture may call it while the test's
loop runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from support.servers.errors import ServerUnavailable

_STATEMENT_SECONDS = 30.0


@contextlib.contextmanager
def fresh_database(url: str) -> Iterator[str]:
    """Give the URL of an empty database on this server; it is dropped at the end, with all its connections."""
    name = f"quintain_test_{secrets.token_hex(6)}"
    run_sql(url, f"CREATE DATABASE {name}")
    try:
        yield urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
    finally:
        run_sql(url, f"DROP DATABASE {name} WITH (FORCE)")


def run_sql(url: str, sql: str, *, timeout_seconds: float = _STATEMENT_SECONDS) -> object:
    """Run one statement over a new connection, and return the first value of its first row, or None.

    Raises what asyncpg raises, `OSError` included.
    """
    answer: Future[object] = Future()

    def in_own_loop() -> None:
        try:
            answer.set_result(asyncio.run(_value(url, sql, timeout_seconds)))
        except Exception as error:  # raised again in the calling thread
            answer.set_exception(error)

    thread = threading.Thread(target=in_own_loop, name="run-sql")
    thread.start()
    thread.join()
    return answer.result()


def read_version(url: str, *, timeout_seconds: float = 5.0) -> str:
    """Return the version of the PostgreSQL at this URL.

    Raises `OSError` where none answers within the time, and `ServerUnavailable` where it answers and refuses.
    """
    try:
        return str(run_sql(url, "SHOW server_version", timeout_seconds=timeout_seconds)).split()[0]
    except asyncpg.CannotConnectNowError as error:
        raise ConnectionError(str(error)) from error
    except asyncpg.PostgresError as error:
        raise ServerUnavailable(f"it refuses: {type(error).__name__}: {error.args[0]}") from error
    except asyncpg.InterfaceError as error:
        raise ConnectionError(str(error)) from error


async def _value(url: str, sql: str, timeout_seconds: float) -> object:
    async with asyncio.timeout(timeout_seconds):
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

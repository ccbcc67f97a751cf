"""The `Ledger` interface and the SQL programs it runs.

An operation is written once, as a generator (`SqlProgram`) that yields SQL statements and is sent their rows. A
store runs it inside one transaction: SQLite on its writer, PostgreSQL over asyncpg. An exception raised by the
operation rolls back that operation and no other. A result is returned only after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from quintain.errors import ConfigError
from quintain_metadata.store.leadership import Leadership


class Moment(NamedTuple):
    """The time of one operation, in milliseconds since the epoch on the store's clock.

    Leases that end at or before ``lease_cutoff`` have lapsed.
    """

    now: int
    lease_cutoff: int


@dataclass(slots=True)
class LeaseExpiry:
    """Which leases may lapse. Times are milliseconds on the store's clock.

    None does before ``suspended_until``: after a stall of this service, workers had no chance to renew. Nor does one
    that ends after ``lapse_until``: heartbeats of that time may still be unread; None is no such limit.
    """

    suspended_until: int = 0
    lapse_until: int | None = None

    def moment(self, now: int) -> Moment:
        """Return the moment of an operation at this time."""
        if self.suspended_until > now:
            return Moment(now, 0)
        return Moment(now, now if self.lapse_until is None else min(now, self.lapse_until))


SqlValue = str | int | bytes | None

#: A row as the store returns it: its columns in order.
Row = Sequence[Any]

Returned = TypeVar("Returned")


class Statement(NamedTuple):
    """One SQL statement with ``?`` placeholders, and its parameters."""

    sql: str
    parameters: tuple[SqlValue, ...]


class Lookup(NamedTuple):
    """One SQL statement that uses a table ``wanted`` of these keys, whose columns are ``key1``, ``key2`` and so on.

    The SQL follows ``WITH RECURSIVE wanted AS (…)``. Where there are no keys it is not run. A key may stand in the
    table twice, and many keys may be looked up in several steps.
    """

    sql: str
    keys: Sequence[tuple[str, ...]]
    parameters: tuple[SqlValue, ...] = ()


class ForEach(NamedTuple):
    """One SQL statement without rows, run for each of these parameters in turn."""

    sql: str
    parameters: Sequence[tuple[SqlValue, ...]]


Step = Statement | Lookup | ForEach

SqlProgram = Generator[Step, list[Row], Returned]


def execute(sql: str, *parameters: SqlValue) -> SqlProgram[list[Row]]:
    """Run one statement and return all rows."""
    return (yield Statement(sql, parameters))


def fetch_one(sql: str, *parameters: SqlValue) -> SqlProgram[Row | None]:
    """Run one statement and return its first row, or None."""
    rows = yield Statement(sql, parameters)
    return rows[0] if rows else None


#: An operation: takes the moment on the store's clock, and returns the SQL program to run.
Operation = Callable[[Moment], SqlProgram[Returned]]


class Ledger(Protocol):
    """Runs operations. An exception of an operation rolls back that operation and no other."""

    @property
    def kind(self) -> str:
        """The name of the store, in one word, without its location."""

    @property
    def leadership(self) -> Leadership | None:
        """Whether this process leads the ledger; None where only one process can open it."""

    @property
    def lease_expiry(self) -> LeaseExpiry:
        """Which leases may lapse; heartbeats change it."""

    async def transact(self, operation: Operation[Returned]) -> Returned:
        """Run one operation after those before it, and return its result after the commit.

        Raises `BudgetUnavailable` where the store cannot run it, and what the operation raises.
        """

    async def read(self, operation: Operation[Returned]) -> Returned:
        """Run one operation that only reads, and keeps none from writing; otherwise as `transact`."""

    async def now(self) -> int:
        """Return the store's clock, in milliseconds since the epoch."""

    async def close(self) -> None:
        """Finish the operations that were submitted, and release the store."""


#: The URL schemes of a PostgreSQL ledger; libpq accepts both.
POSTGRES_SCHEMES = ("postgresql", "postgres")

#: The URL of a ledger in memory, which ends with its process.
IN_MEMORY_URL = "sqlite://"


def sqlite_path(url: str) -> str:
    """Return the path of a ``sqlite:///`` URL, and ``:memory:`` for ``sqlite://``. Raises `ConfigError`."""
    if url == IN_MEMORY_URL:
        return ":memory:"
    path = url.removeprefix("sqlite://")
    if path == url or not path.startswith("/"):
        raise ConfigError(
            f"QUINTAIN_LEDGER_URL is {url.partition(':')[0]!r}: use sqlite:// and three slashes with an absolute "
            "path, or postgresql://user:password@host/database"
        )
    return path


def no_ledger(path: str) -> ConfigError:
    """Return the error for a file that is there and is no ledger, or of which a part is missing."""
    return ConfigError(
        f"{path} is no ledger: it is empty, of another program, a link to a file that is not there, or missing beside "
        f"its {path}-wal. Put a backup in its place, without -wal; or name another ledger with QUINTAIN_LEDGER_URL; or "
        "delete it and its -wal to begin a new one, which knows no session that was opened before"
    )


def require_not_empty(path: str) -> None:
    """Raise `ConfigError` for a file without a byte: SQLite deletes the log beside it, even where it only reads.

    So for a link that leads nowhere, as to a volume that is not mounted: a new ledger would take its place.
    """
    file = Path(path)
    if (file.is_symlink() and not file.exists()) or (file.exists() and not file.stat().st_size):
        raise no_ledger(path)


def redacted_url(url: str) -> str:
    """Return the URL without password and options. Raises `ConfigError` where it cannot be parsed."""
    if url.startswith("sqlite:"):
        return url
    try:
        parts = urlsplit(url)
        user = "" if parts.username is None else f"{parts.username}@"
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        # The parser's message may contain a part of the password.
        raise ConfigError(
            "QUINTAIN_LEDGER_URL cannot be read: write postgresql://user:password@host:port/database, "
            "with @, : and / of the password as %40, %3A and %2F"
        ) from None
    return f"{parts.scheme}://{user}{parts.hostname or ''}{port}{parts.path}"

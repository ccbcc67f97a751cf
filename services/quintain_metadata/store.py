"""The `Ledger` interface and the SQL programs it runs.

An operation is written once, as a generator (`SqlProgram`) that yields SQL statements and is sent their rows. A
store runs it inside one transaction: SQLite on its writer, PostgreSQL over asyncpg. An exception raised by the
operation rolls back that operation and no other. A result is returned only after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from quintain.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of one operation, in milliseconds since the epoch on the store's clock.

    No lease lapses before ``lease_expiry_suspended_until``: after a stall of this service, workers had no chance to
    renew. Nor does one that ends after ``leases_lapse_until``: heartbeats of that time may still be unread. None is no
    such limit.
    """

    now: int
    lease_expiry_suspended_until: int = 0
    leases_lapse_until: int | None = None

    @property
    def lease_expiry_cutoff(self) -> int:
        """Leases that end at or before this time have lapsed."""
        if self.lease_expiry_suspended_until > self.now:
            return 0
        return self.now if self.leases_lapse_until is None else min(self.now, self.leases_lapse_until)


SqlValue = str | int | bytes | None

#: A row as the store returns it: its columns in order.
Row = Sequence[Any]

Returned = TypeVar("Returned")
Item = TypeVar("Item")


class Statement(NamedTuple):
    """One SQL statement with ``?`` placeholders, and its parameters."""

    sql: str
    parameters: tuple[SqlValue, ...]


@dataclass(frozen=True, slots=True)
class AdvisoryLock:
    """Lock these keys, in this order, until the operation ends. A store with a single writer ignores it."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LockRows:
    """Run a query, and lock its rows in its order until the operation ends; a store with a single writer only reads."""

    statement: Statement


class ForEach(NamedTuple):
    """One SQL statement without rows, run for each of these parameters in turn."""

    sql: str
    parameters: Sequence[tuple[SqlValue, ...]]


Step = Statement | AdvisoryLock | LockRows | ForEach

SqlProgram = Generator[Step, list[Row], Returned]


def lock_key(*names: str) -> str:
    """Return the key of the lock with these names."""
    return "\x1f".join(names)


def acquire_lock(*names: str) -> SqlProgram[None]:
    """Lock a key until the operation ends, so that what is read afterwards stays true."""
    yield AdvisoryLock((lock_key(*names),))


def acquire_locks(kind: str, owner: str, names: Iterable[str]) -> SqlProgram[None]:
    """Lock a key for each of these names of one owner, like `acquire_lock`.

    The names are sorted, so that two operations cannot deadlock by locking the same names in different orders.
    """
    yield AdvisoryLock(tuple(lock_key(kind, owner, name) for name in sorted(names)))


def execute(sql: str, *parameters: SqlValue) -> SqlProgram[list[Row]]:
    """Run one statement and return all rows."""
    return (yield Statement(sql, parameters))


def for_each(sql: str, parameters: Sequence[tuple[SqlValue, ...]]) -> SqlProgram[None]:
    """Run one statement for each of these parameters, if there are any."""
    if parameters:
        yield ForEach(sql, parameters)


#: Lists of keys are filled up to one of these lengths, or a multiple of the last, so that few statements differ.
_LIST_LENGTHS = (1, 2, 4, 8, 16, 32, 64)


def filled_up(items: Sequence[Item]) -> list[Item]:
    """Return a list with its last item repeated up to one of few lengths, so that few statements differ."""
    length = next((each for each in _LIST_LENGTHS if each >= len(items)), None)
    missing = -len(items) % _LIST_LENGTHS[-1] if length is None else length - len(items)
    return [*items, *[items[-1]] * missing] if items else []


def values_table(values: Sequence[SqlValue]) -> str:
    """Return SQL for these parameters as a table with one column, ``column1``.

    A join with it looks the values up by index; a long ``IN`` may compare them with every row.
    """
    return f"(VALUES {', '.join(['(?)'] * len(values))})"


def fetch_one(sql: str, *parameters: SqlValue) -> SqlProgram[Row | None]:
    """Run one statement and return its first row, or None."""
    rows = yield Statement(sql, parameters)
    return rows[0] if rows else None


#: An operation: takes the moment on the store's clock, and returns the SQL program to run.
Operation = Callable[[Moment], SqlProgram[Returned]]


class BatchOperation(Protocol):
    """An operation that a store runs together with others of its kind."""

    @property
    def run_batch(self) -> Callable[[Moment, Sequence[Any]], SqlProgram[list[Any]]]:
        """The function that runs operations as if one after another, and returns the outcome of each.

        It is the same object for all operations of one kind.
        """

    def __call__(self, moment: Moment) -> SqlProgram[Any]:
        """Run this operation by itself."""


def unwrap(outcome: Returned | Exception) -> Returned:
    """Return the result of an operation, or raise the exception that rolled it back."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class Ledger(Protocol):
    """Runs operations. An exception of an operation rolls back that operation and no other."""

    @property
    def kind(self) -> str:
        """The name of the store, in one word, without its location."""

    async def transact(self, operation: Operation[Returned]) -> Returned:
        """Run one operation and return its result after the commit.

        Raises `BudgetUnavailable` where the store cannot run it, and what the operation raises.
        """

    async def transact_each(self, operations: Sequence[Operation[Returned]]) -> list[Returned | Exception]:
        """Run several independent operations; returns the result or the exception of each, in order.

        Raises `BudgetUnavailable` only where none of them could run.
        """

    def suspend_lease_expiry_until(self, timestamp_ms: int) -> None:
        """Treat no lease as lapsed before this time, in milliseconds on the store's clock."""

    def lapse_leases_until(self, timestamp_ms: int) -> None:
        """Treat no lease as lapsed that ends after this time, in milliseconds on the store's clock."""

    def listen_for_capacity(self, callback: Callable[[str], None]) -> None:
        """Call ``callback`` with a target's name when another service on the store announces that it has capacity."""

    def announce_capacity(self, targets: Iterable[str]) -> None:
        """Announce to the other services on the store, soon, that these targets have free capacity.

        An announcement may be lost.
        """

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

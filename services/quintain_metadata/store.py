"""The `Ledger` interface and the SQL programs it runs.

An operation is written once, as a generator (`SqlProgram`) that yields SQL statements and is sent their rows. A
store runs it inside one transaction: SQLite on its writer, PostgreSQL over asyncpg. An exception raised by the
operation rolls back that operation and no other. A result is returned only after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
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


#: In which order the operations of one transaction take locks (`shared_transaction`): the phase, then two names.
LockOrder = tuple[int, str, str]


class Phase(IntEnum):
    """The steps of operations that share a transaction, in the order in which the transaction takes their locks."""

    READ = 0
    CALL = 1
    RESERVATIONS = 2
    TARGET = 3
    ROWS = 4
    #: The numbers of running calls, which all calls of a target at a worker share.
    RUNNING_CALLS = 5
    #: Counters of sessions, which all their calls wait for; a child's before its parent's.
    SESSIONS = 1_000_000


class Statement(NamedTuple):
    """One SQL statement with ``?`` placeholders, and its parameters.

    ``order`` is needed where several operations lock the same rows; None is `Phase.READ` for a query, or `Phase.ROWS`.

    ``amounts`` are the places of parameters that are added to counters of one row. Operations that share a transaction
    add their amounts by one statement. If it returns a row, the first column is the counter that the first amount was
    added to, and each operation is sent the row as it would be after its own statement.
    """

    sql: str
    parameters: tuple[SqlValue, ...]
    order: LockOrder | None = None
    amounts: tuple[int, ...] = ()

    @property
    def is_query(self) -> bool:
        """Whether it only reads."""
        return self.sql.startswith(("SELECT", "WITH"))

    @property
    def returns_rows(self) -> bool:
        """Whether it may return rows."""
        return self.is_query or "RETURNING" in self.sql


@dataclass(frozen=True, slots=True)
class AdvisoryLock:
    """Lock these keys, in this order, until the operation ends. A store with a single writer ignores it.

    ``is_shared``: operations that share a transaction hold it together; otherwise each waits for the one before it.
    """

    keys: tuple[str, ...]
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class CapacityCheck:
    """Lock a key until the operation ends, and read a capacity: the only value of the statement's row, None: no limit.

    Operations that share a transaction are sent what is left beside those before them, each of which may use one.
    """

    lock: AdvisoryLock
    statement: Statement


class StatementForEach(NamedTuple):
    """One SQL statement, run for each of these parameters in turn; its rows are those of all runs."""

    sql: str
    parameters: Sequence[tuple[SqlValue, ...]]


Step = Statement | AdvisoryLock | CapacityCheck

SqlProgram = Generator[Step, list[Row], Returned]

#: The same for several operations of one kind together, on a store that runs nothing beside them.
BatchSteps = Generator[Step | StatementForEach, list[Row], Returned]

#: Returns the outcome of each operation as if they ran one after another; None for each that the store must run by
#: itself, after the others.
BatchProgram = BatchSteps[list[Returned | Exception | None]]


def lock_on(*names: str, is_shared: bool = False) -> AdvisoryLock:
    """Return the lock on the key with these names."""
    return AdvisoryLock(("\x1f".join(names),), is_shared)


def acquire_lock(*names: str, is_shared: bool = False) -> SqlProgram[None]:
    """Lock a key until the operation ends, so that what is read afterwards stays true."""
    yield lock_on(*names, is_shared=is_shared)


def acquire_locks(kind: str, owner: str, names: Iterable[str]) -> SqlProgram[None]:
    """Lock a key for each of these names of one owner, like `acquire_lock`.

    The names are sorted, so that two operations cannot deadlock by locking the same names in different orders.
    """
    yield AdvisoryLock(tuple("\x1f".join((kind, owner, name)) for name in sorted(names)))


def execute(
    sql: str, *parameters: SqlValue, order: LockOrder | None = None, amounts: tuple[int, ...] = ()
) -> SqlProgram[list[Row]]:
    """Run one statement and return all rows; ``order`` and ``amounts`` are those of `Statement`."""
    return (yield Statement(sql, parameters, order, amounts))


def values_table(values: Sequence[SqlValue]) -> str:
    """Return SQL for these parameters as a table with one column, ``column1``.

    A join with it looks the values up by index; a long ``IN`` may compare them with every row.
    """
    return f"(VALUES {', '.join(['(?)'] * len(values))})"


def fetch_one(
    sql: str, *parameters: SqlValue, order: LockOrder | None = None, amounts: tuple[int, ...] = ()
) -> SqlProgram[Row | None]:
    """Run one statement and return its first row, or None; see `execute`."""
    rows = yield Statement(sql, parameters, order, amounts)
    return rows[0] if rows else None


#: An operation: takes the moment on the store's clock, and returns the SQL program to run.
Operation = Callable[[Moment], SqlProgram[Returned]]


class BatchOperation(Protocol):
    """An operation that a store with a single writer runs together with others of its kind."""

    @property
    def run_batch(self) -> Callable[[Moment, Sequence[Any]], BatchProgram[Any]]:
        """The function that runs operations together, the same object for all operations of one kind."""

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
        f"{path} is no ledger: it is empty, of another program, or missing beside its {path}-wal. Put a backup in its "
        "place, without -wal; or name another ledger with QUINTAIN_LEDGER_URL; or delete both files to begin a new "
        "one, which knows no session that was opened before"
    )


def require_not_empty(path: str) -> None:
    """Raise `ConfigError` for a file without a byte: SQLite deletes the log beside it, even where it only reads."""
    if Path(path).exists() and not Path(path).stat().st_size:
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

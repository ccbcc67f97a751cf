"""The `Ledger` interface and the SQL programs it runs.

An operation is written once, as a generator (`SqlProgram`) that yields SQL statements and is sent their rows. A
store runs it inside one transaction: SQLite on its writer, PostgreSQL over asyncpg. An exception raised by the
operation rolls back that operation and no other. A result is returned only after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class Moment:
    """When an operation happens. Nobody's lease is taken for lapsed before ``lease_expiry_suspended_until``: after a
    gap in this service's own running the workers had no chance to renew."""

    now: int
    lease_expiry_suspended_until: int = 0

    @property
    def lease_expiry_cutoff(self) -> int:
        """Leases that ran until then, or less, have lapsed."""
        return self.now if self.lease_expiry_suspended_until <= self.now else 0


SqlValue = str | int | bytes | None

#: A row as the store returns it: its columns in order.
Row = Sequence[Any]

Returned = TypeVar("Returned")


class Statement(NamedTuple):
    """One SQL statement; its parameters are marked ``?``."""

    sql: str
    parameters: tuple[SqlValue, ...]


@dataclass(frozen=True, slots=True)
class AdvisoryLock:
    """From here to the end of the operation nobody else holds one of these keys, which are taken in this order. A store
    with one writer has nothing to do."""

    keys: tuple[str, ...]


SqlProgram = Generator[Statement | AdvisoryLock, list[Row], Returned]


def acquire_lock(*names: str) -> SqlProgram[None]:
    """Hold a key until the operation ends: what is read after this stays true while it is decided upon."""
    yield AdvisoryLock(("\x1f".join(names),))


def acquire_locks(kind: str, owner: str, names: Iterable[str]) -> SqlProgram[None]:
    """Hold a key for each of these names of one owner, as `acquire_lock` does for one. Sorted, because whoever takes
    several at once must not wait for somebody who took them the other way round."""
    yield AdvisoryLock(tuple("\x1f".join((kind, owner, name)) for name in sorted(names)))


def execute(sql: str, *parameters: SqlValue) -> SqlProgram[list[Row]]:
    """Run one statement: all rows."""
    return (yield Statement(sql, parameters))


def values_table(values: Sequence[SqlValue]) -> str:
    """These parameters as a table of one column, ``column1``: joined, they are looked up one by one, where a long
    ``IN`` may be held against every row there is."""
    return f"(VALUES {', '.join(['(?)'] * len(values))})"


def fetch_one(sql: str, *parameters: SqlValue) -> SqlProgram[Row | None]:
    """Run one statement: its first row, or None."""
    rows = yield Statement(sql, parameters)
    return rows[0] if rows else None


#: An operation, given the moment on the store's clock at which it happens.
Operation = Callable[[Moment], SqlProgram[Returned]]


def unwrap(outcome: Returned | Exception) -> Returned:
    """What an operation returned; raises what undid it."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class Ledger(Protocol):
    """Runs operations. An operation's exception undoes it, and only it."""

    @property
    def kind(self) -> str:
        """What keeps it, in one word; never where."""

    async def transact(self, operation: Operation[Returned]) -> Returned:
        """Run one operation; returns after its commit. Raises `BudgetUnavailable` where the store cannot."""

    async def transact_each(self, operations: Sequence[Operation[Returned]]) -> list[Returned | Exception]:
        """Run several, each for itself: what each returned, or the exception that undid it, in their order. Raises
        `BudgetUnavailable` only where that is everybody's."""

    def suspend_lease_expiry_until(self, timestamp_ms: int) -> None:
        """Take nobody's lease for lapsed before this moment."""

    async def now(self) -> int:
        """The store's clock: milliseconds since the epoch."""

    async def close(self) -> None:
        """Finish what was asked, and let go."""

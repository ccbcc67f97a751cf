"""Ledger operations without a database: generators that say what to run and are sent what came back.

Every operation on the ledger is written once, as `Steps`; a store drives it inside a transaction of its own kind:
SQLite on its writer thread, PostgreSQL over asyncpg. An exception undoes the operation.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

Value = str | int | bytes | None

#: A row as the store returns it: its columns in order.
Row = Sequence[Any]

Returned = TypeVar("Returned")


class Statement(NamedTuple):
    """One SQL statement; its parameters are marked ``?``."""

    sql: str
    parameters: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Lock:
    """From here to the end of the operation nobody else holds one of these keys, which are taken in this order. A store
    with one writer has nothing to do."""

    keys: tuple[str, ...]


Steps = Generator[Statement | Lock, list[Row], Returned]


def lock(*names: str) -> Steps[None]:
    """Hold a key until the operation ends: what is read after this stays true while it is decided upon."""
    yield Lock(("\x1f".join(names),))


def lock_each(kind: str, owner: str, names: Iterable[str]) -> Steps[None]:
    """Hold a key for each of these names of one owner, as `lock` does for one. Sorted, because whoever takes several
    at once must not wait for somebody who took them the other way round."""
    yield Lock(tuple("\x1f".join((kind, owner, name)) for name in sorted(names)))


def run(sql: str, *parameters: Value) -> Steps[list[Row]]:
    """Run one statement: all rows."""
    return (yield Statement(sql, parameters))


def table_of(values: Sequence[Value]) -> str:
    """These parameters as a table of one column, ``column1``: joined, they are looked up one by one, where a long
    ``IN`` may be held against every row there is."""
    return f"(VALUES {', '.join(['(?)'] * len(values))})"


def one(sql: str, *parameters: Value) -> Steps[Row | None]:
    """Run one statement: its first row, or None."""
    rows = yield Statement(sql, parameters)
    return rows[0] if rows else None

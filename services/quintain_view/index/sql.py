"""Runs SQL on a connection to an index."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import apsw


def all_rows(connection: apsw.Connection, sql: str, values: Sequence[str | float | None] = ()) -> list[tuple[Any, ...]]:
    """Every row of a query; the values take the place of the question marks."""
    return [tuple(row) for row in connection.execute(sql, tuple(values))]


def first_values(connection: apsw.Connection, sql: str, values: Sequence[str | float | None] = ()) -> Iterator[Any]:
    """The first column of a query, row by row as they are asked for."""
    return itertools.chain.from_iterable(connection.execute(sql, tuple(values)))

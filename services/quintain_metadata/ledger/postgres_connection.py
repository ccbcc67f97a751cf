"""Runs the steps of operations on a connection of PostgreSQL whose transaction is open."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from quintain_metadata.ledger.base import (
    AdvisoryLock,
    CapacityCheck,
    Returned,
    Row,
    SqlProgram,
    Statement,
    Step,
)

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"  # in quotes: the class is not generic at run time

_LOCK_SQL: Final = "SELECT pg_advisory_xact_lock(hashtextextended(key, 0)) FROM unnest($1::text[]) AS key"

#: A placeholder, or a quoted string, in which a question mark is no placeholder.
_PLACEHOLDER = re.compile(r"'[^']*'|\?")


class PostgresTransaction:
    """A connection with an open transaction (`TransactionConnection`)."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def lock(self, keys: Sequence[str]) -> None:
        """Lock these keys, in this order, until the transaction ends."""
        await self._connection.fetch(_LOCK_SQL, list(keys))

    async def run(self, statement: Statement) -> list[Row]:
        """Run one statement and return its rows."""
        records = await self._connection.fetch(number_placeholders(statement.sql), *statement.parameters)
        return [tuple(record) for record in records]

    async def run_many(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Run statements that differ in their parameters only in one round trip; returns the rows of each."""
        if len(statements) == 1:
            return [await self.run(statements[0])]
        all_rows: list[list[Row]] = [[] for _ in statements]
        sql = number_placeholders(statements[0].sql)
        if not statements[0].returns_rows:
            await self._connection.executemany(sql, [statement.parameters for statement in statements])
            return all_rows
        # The rows of all come in one list: the last parameter says whose each row is.
        sql = f"WITH step AS ({sql}) SELECT ${len(statements[0].parameters) + 1}::integer, step.* FROM step"
        parameters = [(*statement.parameters, index) for index, statement in enumerate(statements)]
        for index, *values in await self._connection.fetchmany(sql, parameters):
            all_rows[index].append(tuple(values))
        return all_rows

    async def run_program(self, program: SqlProgram[Returned]) -> Returned:
        """Run one operation to its end and return its result."""
        try:
            step = next(program)
            while True:
                step = program.send(await self._run_step(step))
        except StopIteration as stop:
            result: Returned = stop.value
            return result

    async def _run_step(self, step: Step) -> list[Row]:
        match step:
            case Statement():
                return await self.run(step)
            case AdvisoryLock():
                await self.lock(step.keys)
                return []
            case CapacityCheck():
                await self.lock(step.lock.keys)
                return await self.run(step.statement)


@functools.lru_cache(maxsize=256)
def number_placeholders(sql: str) -> str:
    """Replace the ``?`` placeholders of a statement with ``$1``, ``$2`` and so on."""
    numbers = iter(range(1, sql.count("?") + 1))
    return _PLACEHOLDER.sub(lambda match: f"${next(numbers)}" if match[0] == "?" else match[0], sql)

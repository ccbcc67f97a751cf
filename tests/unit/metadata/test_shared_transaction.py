"""Operations that share a transaction read what is equal once, and add to one row by one statement."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quintain_metadata.shared_transaction import OperationsFailed, SharedTransaction
from quintain_metadata.store import Row, SqlProgram, Statement, fetch_one

READ = "SELECT n FROM counter WHERE id = ?"
ADD = "UPDATE counter SET n = n + ? WHERE id = ? AND n + ? <= most RETURNING n, most"
MOST = 10


class Counters:
    """A connection to some counters; it keeps what it was asked to run."""

    def __init__(self) -> None:
        self.values = {"a": 0, "b": 0}
        self.ran: list[tuple[str, tuple[object, ...]]] = []

    async def lock(self, keys: Sequence[str]) -> None:
        raise AssertionError(f"nothing is locked here: {keys}")

    async def run_many(self, statements: Sequence[Statement]) -> list[list[Row]]:
        self.ran += [(statement.sql, statement.parameters) for statement in statements]
        return [self._run(statement) for statement in statements]

    def _run(self, statement: Statement) -> list[Row]:
        if statement.sql == READ:
            return [(self.values[str(statement.parameters[0])],)]
        amount, name, _ = statement.parameters
        assert isinstance(amount, int)
        if self.values[str(name)] + amount > MOST:
            return []
        self.values[str(name)] += amount
        return [(self.values[str(name)], MOST)]


def read_and_add(name: str, amount: int) -> SqlProgram[tuple[Row | None, Row | None]]:
    read = yield from fetch_one(READ, name)
    return read, (yield from fetch_one(ADD, amount, name, amount, amounts=(0, 2)))


async def test_each_is_sent_what_its_own_statement_would_have_returned() -> None:
    counters = Counters()
    programs = [read_and_add(name, amount) for name, amount in (("a", 1), ("b", 5), ("a", 2), ("a", 4))]
    outcomes = await SharedTransaction(counters).run(programs)
    assert outcomes == [((0,), (1, MOST)), ((0,), (5, MOST)), ((0,), (3, MOST)), ((0,), (7, MOST))]
    assert counters.ran == [(READ, ("a",)), (READ, ("b",)), (ADD, (7, "a", 7)), (ADD, (5, "b", 5))]


async def test_where_all_are_too_many_each_must_be_run_alone() -> None:
    counters = Counters()
    with pytest.raises(OperationsFailed) as failed:
        await SharedTransaction(counters).run([read_and_add(name, 6) for name in ("a", "b", "a")])
    assert failed.value.numbers == {0, 2}
    alone = Counters()
    assert await SharedTransaction(alone).run([read_and_add("a", MOST + 1)]) == [((0,), None)]

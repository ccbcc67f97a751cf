"""Runs several operations in one transaction, and equal statements of them together: fewer round trips and commits.

The operations go on side by side. Of their next steps those of the lowest phase are done first (`Phase`), in the order
of what they lock, so that the whole transaction takes its locks in the order in which each operation would. One
that needs a lock of another waits for its end. A fault that is raised before the first write of its operation is
its outcome; one that comes later must undo what was written: then the transaction fails with `OperationsFailed`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

from quintain_metadata.store import AdvisoryLock, CapacityCheck, LockOrder, Phase, Row, SqlProgram, SqlValue, Statement


class TransactionConnection(Protocol):
    """A connection with an open transaction."""

    async def lock(self, keys: Sequence[str]) -> None:
        """Lock these keys, in this order, until the transaction ends."""

    async def run_many(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Run statements that differ in their parameters only, in this order; returns the rows of each."""


class OperationsFailed(Exception):
    """Operations failed after they had written something; ``numbers`` are their places in the list."""

    def __init__(self, numbers: set[int]) -> None:
        super().__init__(numbers)
        self.numbers = numbers


#: A step that takes a lock or runs a statement.
_Work = Statement | AdvisoryLock | CapacityCheck


def order_of(step: _Work) -> LockOrder:
    """Return the place of a step among those of all operations of its transaction."""
    match step:
        case Statement():
            return step.order or (Phase.READ if step.is_query else Phase.ROWS, "", "")
        case AdvisoryLock():
            return (Phase.RESERVATIONS if step.is_shared else Phase.CALL, "", "")
        case CapacityCheck():
            return (Phase.TARGET, "", "")


@dataclass(slots=True)
class _RunningOperation:
    number: int
    program: SqlProgram[Any]
    step: _Work
    has_written: bool = False
    keys: set[str] = field(default_factory=set)


class SharedTransaction:
    """One transaction of several operations."""

    def __init__(self, connection: TransactionConnection) -> None:
        self._connection = connection
        self._running: list[_RunningOperation] = []
        self._outcomes: dict[int, Any] = {}
        self._failed: set[int] = set()
        self._locked: set[str] = set()
        #: The operation that holds a key alone.
        self._holders: dict[str, _RunningOperation] = {}
        #: What is left of each capacity that was read, by the key of its lock.
        self._capacities: dict[str, int | None] = {}

    async def run(self, programs: Sequence[SqlProgram[Any]]) -> list[Any]:
        """Run the operations to their ends; returns the result or the exception of each. Raises `OperationsFailed`."""
        for number, program in enumerate(programs):
            operation = _RunningOperation(number, program, Statement("", ()))
            self._running.append(operation)
            self._advance(operation, None)
        while self._running:
            free = [operation for operation in self._running if not self._is_blocked(operation)]
            phase = min(order_of(operation.step)[0] for operation in free)
            await self._run_steps([operation for operation in free if order_of(operation.step)[0] == phase])
            if self._failed:
                raise OperationsFailed(self._failed)
        return [self._outcomes[number] for number in range(len(programs))]

    def _is_blocked(self, operation: _RunningOperation) -> bool:
        step = operation.step
        if not isinstance(step, AdvisoryLock) or step.is_shared:
            return False
        return any(self._holders.get(key, operation) is not operation for key in step.keys)

    async def _run_steps(self, operations: list[_RunningOperation]) -> None:
        """Do the next step of operations that are in the same phase."""
        match operations[0].step:
            case AdvisoryLock():
                await self._take_locks(operations)
            case CapacityCheck():
                await self._check_capacity(operations)
            case _:
                await self._run_statements(operations)

    async def _take_locks(self, operations: list[_RunningOperation]) -> None:
        taking = list[_RunningOperation]()
        for operation in operations:
            step = operation.step
            assert isinstance(step, AdvisoryLock), "each phase has steps of one kind"
            if self._is_blocked(operation):
                continue  # one of the same list has just taken it
            if not step.is_shared:
                operation.keys.update(step.keys)
                self._holders.update(dict.fromkeys(step.keys, operation))
            taking.append(operation)
        await self._lock(key for operation in taking for key in operation.step.keys)  # type: ignore[union-attr]
        for operation in taking:
            self._advance(operation, [])

    async def _check_capacity(self, operations: list[_RunningOperation]) -> None:
        checks = {
            step.lock.keys[0]: step for operation in operations if isinstance(step := operation.step, CapacityCheck)
        }
        unread = sorted(checks.keys() - self._capacities.keys())
        await self._lock(unread)
        if unread:
            all_rows = await self._connection.run_many([checks[key].statement for key in unread])
            for key, rows in zip(unread, all_rows, strict=True):
                self._capacities[key] = int(rows[0][0]) if rows else None
        for operation in operations:
            assert isinstance(operation.step, CapacityCheck), "each phase has steps of one kind"
            key = operation.step.lock.keys[0]
            capacity = self._capacities[key]
            if capacity is not None and capacity > 0:
                self._capacities[key] = capacity - 1
            self._advance(operation, [] if capacity is None else [(capacity,)])

    async def _run_statements(self, operations: list[_RunningOperation]) -> None:
        pairs = [(operation, step) for operation in operations if isinstance(step := operation.step, Statement)]
        pairs.sort(key=lambda pair: (order_of(pair[1]), pair[1].sql, pair[0].number))
        for _, equal in groupby(pairs, key=lambda pair: pair[1].sql):
            group = list(equal)
            for operation, statement, rows in await self._run_equal(group):
                operation.has_written |= not statement.is_query
                self._advance(operation, rows)

    async def _run_equal(
        self, group: list[tuple[_RunningOperation, Statement]]
    ) -> list[tuple[_RunningOperation, Statement, list[Row]]]:
        """Run statements that differ in their parameters only; returns the rows of each whose operation goes on."""
        first = group[0][1]
        together: defaultdict[object, list[tuple[_RunningOperation, Statement]]] = defaultdict(list)
        for operation, statement in group:
            # What only reads is read once for equal parameters, and what adds to one row is added at once.
            is_mergeable = statement.is_query or statement.amounts
            together[_without_amounts(statement) if is_mergeable else operation.number].append((operation, statement))
        merged = [_add_up([statement for _, statement in same]) for same in together.values()]
        all_rows = await self._connection.run_many(merged)
        done = list[tuple[_RunningOperation, Statement, list[Row]]]()
        for same, whole, rows in zip(together.values(), merged, all_rows, strict=True):
            if first.amounts and first.returns_rows and not rows and len(same) > 1:
                # Not all of them together: each decides by itself.
                self._failed.update(operation.number for operation, _ in same)
                continue
            shares = _rows_of_each([statement for _, statement in same], whole, rows)
            done += [(operation, statement, share) for (operation, statement), share in zip(same, shares, strict=True)]
        return done

    async def _lock(self, keys: Iterable[str]) -> None:
        new_keys = sorted(set(keys) - self._locked)
        if new_keys:
            await self._connection.lock(new_keys)
            self._locked.update(new_keys)

    def _advance(self, operation: _RunningOperation, rows: list[Row] | None) -> None:
        """Send an operation the rows of its step, and note its next step or its end."""
        try:
            operation.step = next(operation.program) if rows is None else operation.program.send(rows)
        except StopIteration as stop:
            self._end(operation, stop.value)
        except Exception as error:  # a fault or a defect: the outcome of this operation, and of no other
            if operation.has_written:
                self._failed.add(operation.number)
            self._end(operation, error)

    def _end(self, operation: _RunningOperation, outcome: Any) -> None:
        self._outcomes[operation.number] = outcome
        self._running.remove(operation)
        for key in operation.keys:
            del self._holders[key]


def _without_amounts(statement: Statement) -> tuple[SqlValue, ...]:
    """Return the parameters that say which row is meant."""
    return tuple(value for place, value in enumerate(statement.parameters) if place not in statement.amounts)


def _add_up(statements: Sequence[Statement]) -> Statement:
    """Return one statement that does what these do, which differ in their amounts only."""
    first = statements[0]
    if len(statements) == 1 or not first.amounts:
        return first
    columns = zip(*(statement.parameters for statement in statements), strict=True)
    parameters = [
        sum(map(_amount, values)) if place in first.amounts else values[0] for place, values in enumerate(columns)
    ]
    return first._replace(parameters=tuple(parameters))


def _rows_of_each(statements: Sequence[Statement], whole: Statement, rows: list[Row]) -> Iterator[list[Row]]:
    """Return what each of these statements would have returned, from the rows of what they were added up to."""
    if not (whole.amounts and rows):
        yield from (rows for _ in statements)
        return
    ((counter, *others),) = rows
    place = whole.amounts[0]
    counter -= _amount(whole.parameters[place])
    for statement in statements:
        counter += _amount(statement.parameters[place])
        yield [(counter, *others)]


def _amount(value: SqlValue) -> int:
    assert isinstance(value, int), "amounts are integers"
    return value

"""The ledger on SQLite: one process, one writer, WAL, synchronous FULL, group commit.

Operations that wait together are committed together, each under its own savepoint; nobody is answered before
the commit is on the disk. The file is locked by the process that has it open: two services on one file would each
believe they alone decide.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw

from quintain.errors import BudgetUnavailable, ConfigError, LedgerInUse
from quintain_metadata.ledger import Operation, Returned, returned
from quintain_metadata.records import Moment
from quintain_metadata.schema import MIGRATIONS, VERSION
from quintain_metadata.sqlite_writer import Asked, Commit, ThreadWriter, Writer
from quintain_metadata.steps import Lock, Row, Statement, Steps

log = logging.getLogger(__name__)

#: SQLite before this could lose WAL content when two connections reset it at once.
OLDEST_SQLITE = (3, 51, 3)


class SqliteLedger:
    """A ledger in one file, or in memory (``:memory:``) for tests and demos. ``writer`` makes who writes."""

    kind = "sqlite"

    def __init__(
        self,
        path: str,
        loop: asyncio.AbstractEventLoop,
        writer: Callable[[Commit, asyncio.AbstractEventLoop], Writer] = ThreadWriter,
    ) -> None:
        self._loop = loop
        self._mourn_from = 0
        self._closed = False
        self._lock = _lock(path)
        try:
            self._connection = _opened(path)
        except ConfigError:
            self._unlock()
            raise
        self._cursor = self._connection.cursor()
        self._writer = writer(self._commit, loop)

    async def do(self, operation: Operation[Returned]) -> Returned:
        return returned((await self.do_each([operation]))[0])

    async def do_each(self, operations: Sequence[Operation[Returned]]) -> list[Returned | Exception]:
        if self._closed:
            raise BudgetUnavailable("The ledger is closed")
        outcomes: asyncio.Future[list[Returned | Exception]] = self._loop.create_future()
        self._writer.put(Asked(operations, outcomes))
        return await outcomes

    def mourn_from(self, moment_ms: int) -> None:
        self._mourn_from = moment_ms

    async def now(self) -> int:
        return _now_ms()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._writer.close()
        self._connection.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def _commit(self, group: list[Asked]) -> list[list[Any]]:
        """One transaction for all of a group: the answers, for when it is on the disk."""
        moment = Moment(_now_ms(), self._mourn_from)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = [[self._run(operation, moment) for operation in asked.operations] for asked in group]
            self._connection.execute("COMMIT")
        except apsw.Error as error:
            # The disk or the file failed: nothing of this group happened, and everyone is told so, each by a fault
            # of its own, because a traceback belongs to one.
            self._roll_back()
            sentence = f"The ledger cannot be written ({type(error).__name__}: {error})"
            return [[BudgetUnavailable(sentence) for _ in asked.operations] for asked in group]
        return outcomes

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error as error:
            # The writer must live to say so to whoever asks next.
            log.error("The ledger cannot be rolled back: %s", error)

    def _run(self, operation: Operation[Any], moment: Moment) -> Any:
        """What an operation returns, or the exception that undid it."""
        self._connection.execute("SAVEPOINT operation")
        try:
            outcome = self._drive(operation(moment))
        except apsw.ConstraintError as broken:
            error: Exception = AssertionError(f"an operation broke the ledger's invariant: {broken}")
        except apsw.Error:
            raise
        except Exception as refusal:
            # A fault, or a defect: the operation is undone either way, the others of its group are not.
            error = refusal
        else:
            self._connection.execute("RELEASE operation")
            return outcome
        self._connection.execute("ROLLBACK TO operation")
        self._connection.execute("RELEASE operation")
        return error

    def _drive(self, steps: Steps[Any]) -> Any:
        try:
            step = next(steps)
            while True:
                # One writer: a lock has nothing to wait for.
                step = steps.send([] if isinstance(step, Lock) else self._rows(step))
        except StopIteration as end:
            return end.value

    def _rows(self, statement: Statement) -> list[Row]:
        return list(self._cursor.execute(statement.sql, statement.parameters))


def _now_ms() -> int:
    return int(time.time() * 1000)


def _lock(path: str) -> int | None:
    if path == ":memory:":
        return None
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"The ledger {path} cannot be kept there ({error.strerror}): name a file in a folder that this user may "
            "write, by QUINTAIN_LEDGER_URL"
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise LedgerInUse(
            f"The ledger {path} is open in another process: SQLite serves one metadata service. Stop that one, or "
            "give this one another QUINTAIN_LEDGER_URL"
        ) from None
    return handle


def _opened(path: str) -> apsw.Connection:
    try:
        return _migrated(path)
    except apsw.Error as error:
        raise ConfigError(
            f"The ledger {path} cannot be opened ({type(error).__name__}: {error}): is it a ledger, and may this user "
            "write it? QUINTAIN_LEDGER_URL names it"
        ) from None


def _migrated(path: str) -> apsw.Connection:
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < OLDEST_SQLITE:
        raise ConfigError(f"SQLite {apsw.sqlite_lib_version()} is too old for a ledger: upgrade apsw")
    connection = apsw.Connection(path)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    (found,) = next(iter(connection.execute("PRAGMA user_version")))
    if found > VERSION:
        connection.close()
        raise ConfigError(
            f"The ledger {path} has schema {found}, and this release knows {VERSION}: upgrade quintain, or use "
            "another QUINTAIN_LEDGER_URL"
        )
    with connection:
        for statements in MIGRATIONS[found:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    return connection

"""The ledger on SQLite: one process, one writer thread, WAL, synchronous FULL, group commit.

Operations that wait together are committed together, each under its own savepoint; nobody is answered before
the commit is on the disk. The file is locked by the process that has it open: two services on one file would each
believe they alone decide.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import apsw

from quintain.errors import BudgetUnavailable, ConfigError, LedgerInUse
from quintain_metadata.ledger import Operation
from quintain_metadata.records import Moment
from quintain_metadata.schema import MIGRATIONS, VERSION
from quintain_metadata.steps import Lock, Row, Statement, Steps

log = logging.getLogger(__name__)

Returned = TypeVar("Returned")

#: SQLite before this could lose WAL content when two connections reset it at once.
OLDEST_SQLITE = (3, 51, 3)

#: How many operations share one commit at most.
GROUP_MOST = 128


@dataclass(slots=True)
class _Asked:
    operation: Operation[Any]
    answer: asyncio.Future[Any]


class SqliteLedger:
    """A ledger in one file, or in memory (``:memory:``) for tests and demos."""

    kind = "sqlite"

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._mourn_from = 0
        self._closed = False
        self._lock = _lock(path)
        try:
            self._connection = _opened(path)
        except ConfigError:
            self._unlock()
            raise
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    async def do(self, operation: Operation[Returned]) -> Returned:
        if self._closed:
            raise BudgetUnavailable("The ledger is closed")
        answer: asyncio.Future[Returned] = self._loop.create_future()
        self._asked.put(_Asked(operation, answer))
        return await answer

    def mourn_from(self, moment_ms: int) -> None:
        self._mourn_from = moment_ms

    async def now(self) -> int:
        return _now_ms()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._asked.put(None)
        await asyncio.to_thread(self._thread.join)
        self._connection.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def _work(self) -> None:
        while True:
            group, last = self._next_group()
            if group:
                self._commit(group)
            if last:
                return

    def _next_group(self) -> tuple[list[_Asked], bool]:
        group: list[_Asked] = []
        asked = self._asked.get()
        while asked is not None:
            group.append(asked)
            if len(group) == GROUP_MOST or self._asked.empty():
                return group, False
            asked = self._asked.get()
        return group, True

    def _commit(self, group: list[_Asked]) -> None:
        """One transaction for all; then, and only then, the answers."""
        outcomes: list[Callable[[], None]] = []
        moment = Moment(_now_ms(), self._mourn_from)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = [self._run(asked, moment) for asked in group]
            self._connection.execute("COMMIT")
        except apsw.Error as error:
            # The disk or the file failed: nothing of this group happened, and everyone is told so, each by a fault
            # of its own, because a traceback belongs to one.
            self._roll_back()
            sentence = f"The ledger cannot be written ({type(error).__name__}: {error})"
            outcomes = [_failing(asked, BudgetUnavailable(sentence)) for asked in group]
        self._loop.call_soon_threadsafe(_answer_all, outcomes)

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error as error:
            # The thread must live to say so to whoever asks next.
            log.error("The ledger cannot be rolled back: %s", error)

    def _run(self, asked: _Asked, moment: Moment) -> Callable[[], None]:
        self._connection.execute("SAVEPOINT operation")
        try:
            returned = self._drive(asked.operation(moment))
        except apsw.ConstraintError as broken:
            error: Exception = AssertionError(f"an operation broke the ledger's invariant: {broken}")
        except apsw.Error:
            raise
        except Exception as refusal:
            # A fault, or a defect: the operation is undone either way, the others of its group are not.
            error = refusal
        else:
            self._connection.execute("RELEASE operation")
            return lambda: asked.answer.set_result(returned)
        self._connection.execute("ROLLBACK TO operation")
        self._connection.execute("RELEASE operation")
        return _failing(asked, error)

    def _drive(self, steps: Steps[Returned]) -> Returned:
        try:
            step = next(steps)
            while True:
                # One writer: a lock has nothing to wait for.
                step = steps.send([] if isinstance(step, Lock) else self._rows(step))
        except StopIteration as end:
            returned: Returned = end.value
            return returned

    def _rows(self, statement: Statement) -> list[Row]:
        return list(self._connection.execute(statement.sql, statement.parameters))


def _failing(asked: _Asked, error: Exception) -> Callable[[], None]:
    return lambda: asked.answer.set_exception(error)


def _answer_all(outcomes: list[Callable[[], None]]) -> None:
    for outcome in outcomes:
        try:
            outcome()
        except asyncio.InvalidStateError:
            continue  # whoever asked has gone; what was decided stands


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

"""The ledger on SQLite: one process, one writer, WAL, ``synchronous = FULL``, group commit.

Operations that wait at the same time are committed in one transaction, each under its own savepoint. No result is
returned before the commit is on disk. A lock file keeps a second process from opening the same ledger.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import apsw

from quintain.errors import BudgetUnavailable, ConfigError, LedgerInUse
from quintain_metadata.ledger.base import (
    AdvisoryLock,
    CapacityCheck,
    Moment,
    Operation,
    Returned,
    Row,
    SqlProgram,
    Statement,
    unwrap,
)
from quintain_metadata.ledger.migrations import MIGRATIONS, SCHEMA_VERSION, SQLITE_STATEMENTS

#: The largest group of operations in one commit: every caller in a group waits for all of it.
MAX_GROUP_OPERATIONS = 128


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Operations of one caller, and the future for their outcomes."""

    operations: Sequence[Operation[Any]]
    outcomes: asyncio.Future[list[Any]]

    def set_outcomes(self, outcomes: list[Any]) -> None:
        """Resolve the future, unless its caller was cancelled: what was committed stays committed."""
        if not self.outcomes.done():
            self.outcomes.set_result(outcomes)


#: Runs a group in one transaction and returns the outcomes of each batch. Raises nothing.
CommitGroup = Callable[[list[WriteBatch]], list[list[Any]]]


class LedgerWriter(Protocol):
    """The only writer of a ledger file."""

    def put(self, batch: WriteBatch) -> None:
        """Submit a batch; it is committed together with the batches that wait."""

    async def close(self) -> None:
        """Finish the batches that were submitted, and stop."""


class ThreadWriter:
    """Commits on a thread of its own, so that the event loop goes on while the disk is written."""

    def __init__(self, commit: CommitGroup, loop: asyncio.AbstractEventLoop) -> None:
        self._commit, self._loop = commit, loop
        self._batches: queue.SimpleQueue[WriteBatch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def put(self, batch: WriteBatch) -> None:
        """Submit a batch (`LedgerWriter.put`)."""
        self._batches.put(batch)

    async def close(self) -> None:
        """Finish the submitted batches and end the thread."""
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            group, is_last = self._next_group()
            if group:
                self._loop.call_soon_threadsafe(_set_all_outcomes, group, self._commit(group))

    def _next_group(self) -> tuple[list[WriteBatch], bool]:
        group, size = list[WriteBatch](), 0
        batch = self._batches.get()
        while batch is not None:
            group.append(batch)
            size += len(batch.operations)
            if size >= MAX_GROUP_OPERATIONS or self._batches.empty():
                return group, False
            batch = self._batches.get()
        return group, True


class LoopWriter:
    """Commits on the event loop and blocks it: without contention for the GIL (decision 13), in a dedicated process."""

    def __init__(self, commit: CommitGroup, loop: asyncio.AbstractEventLoop) -> None:
        self._commit, self._loop = commit, loop
        self._waiting: deque[WriteBatch] = deque()

    def put(self, batch: WriteBatch) -> None:
        """Submit a batch (`LedgerWriter.put`); the batches of one iteration of the loop are committed together."""
        self._waiting.append(batch)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._commit_waiting)

    async def close(self) -> None:
        """Commit the batches that wait."""
        while self._waiting:
            self._commit_waiting()

    def _commit_waiting(self) -> None:
        group, size = list[WriteBatch](), 0
        while self._waiting and size < MAX_GROUP_OPERATIONS:
            group.append(self._waiting.popleft())
            size += len(group[-1].operations)
        if group:
            _set_all_outcomes(group, self._commit(group))
        if self._waiting:
            self._loop.call_soon(self._commit_waiting)


def _set_all_outcomes(group: list[WriteBatch], outcomes: list[list[Any]]) -> None:
    for batch, batch_outcomes in zip(group, outcomes, strict=True):
        batch.set_outcomes(batch_outcomes)


log = logging.getLogger(__name__)

#: Older versions of SQLite could lose WAL content when two connections reset it at the same time.
MIN_SQLITE_VERSION = (3, 51, 3)


class SqliteLedger:
    """A ledger in one file, or in memory (``:memory:``) for tests and demos. ``make_writer`` creates its writer."""

    kind = "sqlite"

    def __init__(
        self,
        path: str,
        loop: asyncio.AbstractEventLoop,
        make_writer: Callable[[CommitGroup, asyncio.AbstractEventLoop], LedgerWriter] = ThreadWriter,
    ) -> None:
        self._loop = loop
        self._lease_expiry_suspended_until = 0
        self._leases_lapse_until: int | None = None
        self._closed = False
        self._lock_handle = _lock_file(path)
        try:
            self._connection = _open_connection(path)
        except ConfigError:
            self._unlock()
            raise
        self._cursor = self._connection.cursor()
        self._writer = make_writer(self._commit, loop)

    async def transact(self, operation: Operation[Returned]) -> Returned:
        """Run one operation (`Ledger.transact`)."""
        return unwrap((await self.transact_each([operation]))[0])

    async def transact_each(self, operations: Sequence[Operation[Returned]]) -> list[Returned | Exception]:
        """Run several operations in one transaction, each under its own savepoint (`Ledger.transact_each`)."""
        if self._closed:
            raise BudgetUnavailable("The ledger is closed")
        outcomes: asyncio.Future[list[Returned | Exception]] = self._loop.create_future()
        self._writer.put(WriteBatch(operations, outcomes))
        return await outcomes

    def suspend_lease_expiry_until(self, timestamp_ms: int) -> None:
        """Suspend the expiry of leases (`Ledger.suspend_lease_expiry_until`)."""
        self._lease_expiry_suspended_until = timestamp_ms

    def lapse_leases_until(self, timestamp_ms: int) -> None:
        """Limit which leases lapse (`Ledger.lapse_leases_until`)."""
        self._leases_lapse_until = timestamp_ms

    def listen_for_capacity(self, callback: Callable[[str], None]) -> None:
        """Do nothing: no other service uses the file."""

    def announce_capacity(self, targets: Iterable[str]) -> None:
        """Do nothing: no other service uses the file."""

    async def now(self) -> int:
        """Return this machine's clock, in milliseconds since the epoch."""
        return _now_ms()

    async def close(self) -> None:
        """Finish the submitted operations, close the file and release its lock."""
        if self._closed:
            return
        self._closed = True
        await self._writer.close()
        self._connection.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock_handle is not None:
            os.close(self._lock_handle)

    def _commit(self, group: list[WriteBatch]) -> list[list[Any]]:
        """Run a group in one transaction; returns the outcomes of each batch after the commit."""
        moment = Moment(_now_ms(), self._lease_expiry_suspended_until, self._leases_lapse_until)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = [[self._run_operation(operation, moment) for operation in batch.operations] for batch in group]
            self._connection.execute("COMMIT")
        except apsw.Error as error:
            # Nothing of the group was committed. Each operation gets its own exception, because raising one changes it.
            self._roll_back()
            message = f"The ledger cannot be written ({type(error).__name__}: {error})"
            return [[BudgetUnavailable(message) for _ in batch.operations] for batch in group]
        return outcomes

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error as error:
            # The writer must go on, to report this to later callers.
            log.error("The ledger cannot be rolled back: %s", error)

    def _run_operation(self, operation: Operation[Any], moment: Moment) -> Any:
        """Run one operation under a savepoint; returns its result, or the exception that rolled it back."""
        self._connection.execute("SAVEPOINT operation")
        try:
            outcome = self._run_program(operation(moment))
        except apsw.ConstraintError as broken:
            error: Exception = AssertionError(f"an operation broke the ledger's invariant: {broken}")
        except apsw.Error:
            raise
        except Exception as refusal:
            # A fault or a defect: only this operation is rolled back, not the others of its group.
            error = refusal
        else:
            self._connection.execute("RELEASE operation")
            return outcome
        self._connection.execute("ROLLBACK TO operation")
        self._connection.execute("RELEASE operation")
        return error

    def _run_program(self, program: SqlProgram[Any]) -> Any:
        try:
            step = next(program)
            while True:
                # There is only one writer, so advisory locks are not needed.
                statement = step.statement if isinstance(step, CapacityCheck) else step
                step = program.send([] if isinstance(statement, AdvisoryLock) else self._execute(statement))
        except StopIteration as stop:
            return stop.value

    def _execute(self, statement: Statement) -> list[Row]:
        return list(self._cursor.execute(statement.sql, statement.parameters))


def _now_ms() -> int:
    return int(time.time() * 1000)


def _lock_file(path: str) -> int | None:
    if path == ":memory:":
        return None
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"The ledger {path} cannot be created ({error.strerror}): set QUINTAIN_LEDGER_URL to a writable path"
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise LedgerInUse(
            f"The ledger {path} is open in another process: SQLite serves one metadata service, and "
            "`quintain up` and `quintain serve metadata` have the same file by default. Stop that one, or give "
            "this one another QUINTAIN_LEDGER_URL"
        ) from None
    return handle


def _open_connection(path: str) -> apsw.Connection:
    try:
        return _connect_and_migrate(path)
    except (apsw.Error, OSError) as error:
        raise ConfigError(
            f"The ledger {path} cannot be opened ({type(error).__name__}: {error}): is it a ledger, and may this user "
            "write it? QUINTAIN_LEDGER_URL names it"
        ) from None


def _connect_and_migrate(path: str) -> apsw.Connection:
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < MIN_SQLITE_VERSION:
        raise ConfigError(f"SQLite {apsw.sqlite_lib_version()} is too old for a ledger: upgrade apsw")
    if path != ":memory:":
        # SQLite gives its other files the mode of this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = apsw.Connection(path)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    (current_version,) = next(iter(connection.execute("PRAGMA user_version")))
    if current_version > SCHEMA_VERSION:
        connection.close()
        raise ConfigError(
            f"The ledger {path} has schema {current_version}, and this release knows {SCHEMA_VERSION}: upgrade "
            "quintain, or use another QUINTAIN_LEDGER_URL"
        )
    with connection:
        for number, statements in enumerate(MIGRATIONS[current_version:], start=current_version + 1):
            for statement in (*statements, *SQLITE_STATEMENTS.get(number, ())):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    return connection

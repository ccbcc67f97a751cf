"""The ledger on SQLite: one process, one writer, WAL, ``synchronous = FULL``, group commit.

Operations that wait at the same time are committed in one transaction, each under its own savepoint; those of one kind
that follow each other run together where they can (`BatchOperation`). No result is returned before the commit is on
disk. A lock file keeps a second process from opening the same ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from quintain.errors import BudgetUnavailable, ConfigError, LedgerInUse
from quintain_metadata.schema import MIGRATIONS, SCHEMA_VERSION, SQLITE_STATEMENTS
from quintain_metadata.store import (
    AdvisoryLock,
    ForEach,
    LockRows,
    Moment,
    Operation,
    Returned,
    Row,
    SqlProgram,
    Statement,
    Step,
    no_ledger,
    require_not_empty,
    unwrap,
)

log = logging.getLogger(__name__)

#: Older versions of SQLite could lose WAL content when two connections reset it at the same time.
MIN_SQLITE_VERSION = (3, 51, 3)


def lock_file(path: str) -> int | None:
    """Lock the ledger for this process and return the lock's file handle; None for one in memory.

    Raises `ConfigError`, and `LedgerInUse` where another process has it.
    """
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


def open_connection(path: str) -> apsw.Connection:
    """Open the file, bring its schema to this release's version, and return the connection. Raises `ConfigError`."""
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
        require_not_empty(path)
        if not Path(path).exists():
            _create_file(path)
    connection = apsw.Connection(path)
    current_version = _version_of(connection, path)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    _migrate(connection, current_version)
    return connection


def _version_of(connection: apsw.Connection, path: str) -> int:
    """Return the version of the ledger's schema. Raises `ConfigError` where it is none that this release knows."""
    version: int = connection.pragma("user_version")
    refusal: ConfigError | None = None
    if path != ":memory:" and (version == 0 or not connection.table_exists("main", "session")):
        refusal = no_ledger(path)
    elif version > SCHEMA_VERSION:
        refusal = ConfigError(
            f"The ledger {path} has schema {version}, and this release knows {SCHEMA_VERSION}: upgrade "
            "quintain, or use another QUINTAIN_LEDGER_URL"
        )
    if refusal is not None:
        connection.close()
        raise refusal
    return version


def _create_file(path: str) -> None:
    """Create an empty ledger at once, so that a process that dies meanwhile leaves none. Raises `ConfigError`."""
    log_path, new_path = Path(f"{path}-wal"), Path(f"{path}.new")
    if log_path.exists() and log_path.stat().st_size:
        raise no_ledger(path)  # SQLite would write what the log has into the new file
    for each in (log_path, new_path, Path(f"{new_path}-journal")):
        each.unlink(missing_ok=True)
    # SQLite gives its other files the mode of this one.
    os.close(os.open(new_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    with contextlib.closing(apsw.Connection(str(new_path))) as connection:
        _migrate(connection, 0)
    new_path.replace(path)
    folder = os.open(Path(path).parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    log.info("This is a new ledger, without any session: %s", path)


def _migrate(connection: apsw.Connection, version: int) -> None:
    with connection:
        for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
            for statement in (*statements, *SQLITE_STATEMENTS.get(number, ())):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


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


class ThreadWriter:
    """The writer of a ledger file: commits on a thread, so that the event loop goes on while the disk is written."""

    def __init__(self, commit: CommitGroup, loop: asyncio.AbstractEventLoop) -> None:
        self._commit, self._loop = commit, loop
        self._batches: queue.SimpleQueue[WriteBatch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def put(self, batch: WriteBatch) -> None:
        """Submit a batch; it is committed together with the batches that wait."""
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


def _set_all_outcomes(group: list[WriteBatch], outcomes: list[list[Any]]) -> None:
    for batch, batch_outcomes in zip(group, outcomes, strict=True):
        batch.set_outcomes(batch_outcomes)


class _BatchFailed(Exception):
    """Operations could not run together; its cause is a defect."""


class SqliteLedger:
    """A ledger in one file, or in memory (``:memory:``) for tests and demos."""

    kind = "sqlite"

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lease_expiry_suspended_until = 0
        self._leases_lapse_until: int | None = None
        self._closed = False
        self._lock_handle = lock_file(path)
        try:
            self._connection = open_connection(path)
        except ConfigError:
            self._unlock()
            raise
        self._cursor = self._connection.cursor()
        self._writer = ThreadWriter(self._commit, loop)

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
        operations = [operation for batch in group for operation in batch.operations]
        try:
            outcomes = iter(self._run_transaction(operations))
        except apsw.Error as error:
            # Nothing of the group was committed. Each operation gets its own exception, because raising one changes it.
            self._roll_back()
            message = f"The ledger cannot be written ({type(error).__name__}: {error})"
            return [[BudgetUnavailable(message) for _ in batch.operations] for batch in group]
        return [list(itertools.islice(outcomes, len(batch.operations))) for batch in group]

    def _run_transaction(self, operations: list[Operation[Any]]) -> list[Any]:
        """Run operations in one transaction, in their order, and return the outcome of each after the commit."""
        moment = Moment(_now_ms(), self._lease_expiry_suspended_until, self._leases_lapse_until)
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            outcomes = self._run_in_batches(operations, moment)
        except _BatchFailed as failed:
            log.error("A defect while running operations together; each is run by itself", exc_info=failed.__cause__)
            self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = [self._run_operation(operation, moment) for operation in operations]
        self._connection.execute("COMMIT")
        return outcomes

    def _run_in_batches(self, operations: list[Operation[Any]], moment: Moment) -> list[Any]:
        outcomes: list[Any] = []
        for run_batch, group in itertools.groupby(operations, lambda operation: getattr(operation, "run_batch", None)):
            if run_batch is None:
                outcomes += [self._run_operation(operation, moment) for operation in group]
            else:
                outcomes += self._run_batch(run_batch(moment, list(group)))
        return outcomes

    def _run_batch(self, program: SqlProgram[list[Any]]) -> list[Any]:
        """Run operations of one kind together.

        There is no savepoint, for which SQLite would copy each page that the batch changes. Raises `_BatchFailed`.
        """
        try:
            outcomes: list[Any] = self._run_program(program)
        except apsw.Error as error:
            if isinstance(error, apsw.ConstraintError):
                raise _BatchFailed from error
            raise
        except Exception as defect:
            raise _BatchFailed from defect
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
        self._cursor.execute("SAVEPOINT operation")
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
            self._cursor.execute("RELEASE operation")
            return outcome
        self._cursor.execute("ROLLBACK TO operation")
        self._cursor.execute("RELEASE operation")
        return error

    def _run_program(self, program: SqlProgram[Any]) -> Any:
        try:
            step = next(program)
            while True:
                step = program.send(self._run_step(step))
        except StopIteration as stop:
            return stop.value

    def _run_step(self, step: Step) -> list[Row]:
        match step:
            case Statement(sql, parameters):
                return list(self._cursor.execute(sql, parameters))
            case ForEach(sql, all_parameters):
                self._cursor.executemany(sql, all_parameters)
                return []
            case LockRows():
                return self._run_step(step.statement)
            case AdvisoryLock():
                return []  # There is only one writer.


def _now_ms() -> int:
    return int(time.time() * 1000)

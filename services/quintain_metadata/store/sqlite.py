"""The ledger on SQLite: one process, one writer, WAL, ``synchronous = FULL``, group commit.

Operations that wait at the same time are committed in one transaction, each under its own savepoint. No result is
returned before the commit is on disk. A lock file keeps a second process from opening the same ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import queue
import threading
import time
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from quintain.errors import BudgetUnavailable, ConfigError, LedgerInUse
from quintain_metadata.store.base import (
    ForEach,
    LeaseExpiry,
    Lookup,
    Moment,
    Operation,
    Returned,
    Row,
    SqlProgram,
    Statement,
    no_ledger,
    require_not_empty,
)
from quintain_metadata.store.schema import MIGRATIONS, SCHEMA_VERSION, SQLITE_STATEMENTS

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
    connection = apsw.Connection(path, statementcachesize=STATEMENTS)
    current_version = _version_of(connection, path)
    # A temporary file for the few rows of a subquery would cost ten times as much as the statement that has it.
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "temp_store = MEMORY"):
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

#: How many keys one statement looks up at most. Lists are filled up to a power of two, so that few statements differ.
MAX_KEYS = 64

#: How many statements the connection keeps prepared.
STATEMENTS = 400


class _Submitted(NamedTuple):
    """An operation that waits for its commit, and the future for its outcome."""

    operation: Operation[Any]
    outcome: asyncio.Future[Any]


class _Outcome(NamedTuple):
    """What an operation returned, or the exception that rolled it back."""

    result: Any = None
    error: Exception | None = None


class SqliteLedger:
    """A ledger in one file, or in memory (``:memory:``) for tests and demos.

    A thread commits, so that the event loop goes on while the disk is written.
    """

    kind, leadership = "sqlite", None

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.lease_expiry = loop, LeaseExpiry()
        self._closed = False
        self._lock_handle = lock_file(path)
        try:
            self._connection = open_connection(path)
        except ConfigError:
            self._unlock()
            raise
        self._cursor = self._connection.cursor()
        self._queue: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._commit_groups, name="ledger", daemon=True)
        self._thread.start()

    async def transact(self, operation: Operation[Returned]) -> Returned:
        """Run one operation (`Ledger.transact`)."""
        if self._closed:
            raise BudgetUnavailable("The ledger is closed")
        outcome: asyncio.Future[Returned] = self._loop.create_future()
        self._queue.put(_Submitted(operation, outcome))
        return await outcome

    async def read(self, operation: Operation[Returned]) -> Returned:
        """Run one operation (`Ledger.read`): the thread that writes is the one that reads."""
        return await self.transact(operation)

    async def now(self) -> int:
        """Return this machine's clock, in milliseconds since the epoch."""
        return int(time.time() * 1000)

    async def close(self) -> None:
        """Finish the submitted operations, close the file and release its lock."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        self._connection.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock_handle is not None:
            os.close(self._lock_handle)

    def _commit_groups(self) -> None:
        """Commit what waits in one transaction, again and again: the work of the thread."""
        submitted = self._queue.get()
        while submitted is not None:
            group = [submitted]
            while len(group) < MAX_GROUP_OPERATIONS and not self._queue.empty():
                submitted = self._queue.get()
                if submitted is None:
                    break
                group.append(submitted)
            outcomes = self._commit(group)
            self._loop.call_soon_threadsafe(_set_outcomes, group, outcomes)
            if submitted is not None:
                submitted = self._queue.get()

    def _commit(self, group: list[_Submitted]) -> list[_Outcome]:
        """Run a group in one transaction; returns the outcome of each after the commit."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            moment = self.lease_expiry.moment(int(time.time() * 1000))
            outcomes = list(map(partial(self._run_operation, moment=moment, is_alone=len(group) == 1), group))
            self._connection.execute("COMMIT")
        except apsw.Error as error:
            # Nothing of the group was committed. Each operation gets its own exception, because raising one changes it.
            self._roll_back()
            message = f"The ledger cannot be written ({type(error).__name__}: {error})"
            return [_Outcome(error=BudgetUnavailable(message)) for _ in group]
        return outcomes

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error as error:
            # The thread must go on, to report this to later callers.
            log.error("The ledger cannot be rolled back: %s", error)

    def _run_operation(self, submitted: _Submitted, moment: Moment, *, is_alone: bool) -> _Outcome:
        """Run one operation; an exception rolls it back, and no other of its group.

        One that is alone in its transaction needs no savepoint, for which SQLite would copy each page that it changes.
        """
        if not is_alone:
            self._cursor.execute("SAVEPOINT operation")
        try:
            outcome = _Outcome(self._run_program(submitted.operation(moment)))
        except apsw.ConstraintError as broken:
            outcome = _Outcome(error=AssertionError(f"an operation broke the ledger's invariant: {broken}"))
        except apsw.Error:
            raise
        except Exception as refusal:
            outcome = _Outcome(error=refusal)
        if outcome.error is not None:
            self._connection.execute("ROLLBACK; BEGIN IMMEDIATE" if is_alone else "ROLLBACK TO operation")
        if not is_alone:
            self._cursor.execute("RELEASE operation")
        return outcome

    def _run_program(self, program: SqlProgram[Any]) -> Any:
        cursor = self._cursor
        try:
            step = next(program)
            while True:
                rows: list[Row] = []
                match step:
                    case Lookup(sql, keys, parameters):
                        for start in range(0, len(keys), MAX_KEYS):
                            page = keys[start : start + MAX_KEYS]
                            full = 1 << (len(page) - 1).bit_length()
                            filled = chain(chain.from_iterable(page), (*page[-1],) * (full - len(page)), parameters)
                            rows += cursor.execute(lookup_sql(sql, full, len(page[0])), tuple(filled))
                    case Statement(sql, parameters):
                        rows += cursor.execute(sql, parameters)
                    case ForEach(sql, all_parameters):
                        cursor.executemany(sql, all_parameters)
                step = program.send(rows)
        except StopIteration as stop:
            return stop.value


@lru_cache(maxsize=STATEMENTS)
def lookup_sql(sql: str, count: int, width: int) -> str:
    """Return the SQL of a `Lookup` of so many keys with so many columns each."""
    columns = ", ".join(f"key{number}" for number in range(1, width + 1))
    values = ", ".join([f"({', '.join('?' * width)})"] * count)
    return f"WITH RECURSIVE wanted ({columns}) AS (VALUES {values}) {sql}"


def _set_outcomes(group: list[_Submitted], outcomes: list[_Outcome]) -> None:
    """Resolve the futures, unless their callers were cancelled: what was committed stays committed."""
    for each, outcome in zip(group, outcomes, strict=True):
        if each.outcome.done():
            continue
        if outcome.error is not None:
            each.outcome.set_exception(outcome.error)
        else:
            each.outcome.set_result(outcome.result)

"""Opens the file of a ledger on SQLite: its lock, its settings and its migrations."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from pathlib import Path

import apsw

from quintain.errors import ConfigError, LedgerInUse
from quintain_metadata.ledger.migrations import MIGRATIONS, SCHEMA_VERSION, SQLITE_STATEMENTS
from quintain_metadata.ledger.url import no_ledger, require_not_empty

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

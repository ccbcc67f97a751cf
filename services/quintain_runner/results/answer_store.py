"""A store of answers: a SQLite file that keeps what targets answered, by address and by how often it was asked there.

A run has one beside its rows, and all runs of a machine may share one as a cache.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from quintain.errors import ConfigError

#: The name of a run's own store in its folder.
ANSWERS_FILE_NAME: Final = "answers.sqlite3"

_VERSION: Final = 2
_APPLICATION_ID: Final = 0x51_4E_41_4E

_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS answers (
    address TEXT NOT NULL, asking INTEGER NOT NULL, number TEXT NOT NULL, target TEXT NOT NULL, fingerprint TEXT,
    request BLOB NOT NULL, reply BLOB NOT NULL, state TEXT NOT NULL, answered_at INTEGER NOT NULL,
    used_on INTEGER NOT NULL, PRIMARY KEY (address, asking)
);
CREATE INDEX IF NOT EXISTS answers_by_use ON answers (used_on);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
COMMIT;
"""

_COLUMNS: Final = "address, asking, number, target, fingerprint, request, reply, state, answered_at"

#: How long a write waits for those of other processes, in seconds.
_LOCK_SECONDS: Final = 5.0

#: The pause before the file is tried again, in seconds.
_POLL_SECONDS: Final = 0.05

_DAY_SECONDS: Final = 86_400

_READ_SIZE: Final = 200


class StoreUnusable(ConfigError):
    """A store of answers cannot be used; the message says why, and what helps."""


class AskingState(StrEnum):
    """How an asking ended. The reply of a ``failed`` one, or of one ``inDoubt``, is a fault, and else a result.

    ``cached``: another run was answered. ``unusable``: its grader cannot read the result, so it is asked again.
    """

    ANSWERED = "answered"
    CACHED = "cached"
    UNUSABLE = "unusable"
    FAILED = "failed"
    IN_DOUBT = "inDoubt"

    @property
    def has_result(self) -> bool:
        """Whether the reply is a result."""
        return self not in (AskingState.FAILED, AskingState.IN_DOUBT)


class StoredAnswer(NamedTuple):
    """One asking: the request, how it ended, and the reply.

    ``number`` tells equal requests of a run from each other. ``answered_at`` is in milliseconds since the epoch.
    """

    address: str
    asking: int
    number: str
    target: str
    fingerprint: str | None
    request: bytes
    reply: bytes
    state: AskingState
    answered_at: int


class TargetSize(NamedTuple):
    """What a store has of one target: its answers, their bytes, and when the oldest and the last were given."""

    target: str
    answers: int
    bytes: int
    oldest_at: int
    latest_at: int


class AnswerStore:
    """An open store. From any thread, one at a time. Every method raises `StoreUnusable`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection

    @classmethod
    def open(cls, path: Path, *, is_read_only: bool = False, lock_seconds: float = _LOCK_SECONDS) -> Self:
        """Open a store, and make it where it is not there, unless it is only read. Its owner alone may read it."""
        with _named(path):
            if not is_read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)
            mode = "ro" if is_read_only else "rw"
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=lock_seconds,
                isolation_level=None,
                check_same_thread=False,
            )
        store = cls(path, connection)
        try:
            store._prepare(is_read_only=is_read_only)
        except BaseException:
            connection.close()
            raise
        return store

    def _prepare(self, *, is_read_only: bool) -> None:
        with _named(self.path):
            is_empty = not self._number("SELECT count(*) FROM sqlite_schema")
            if is_empty and not is_read_only:
                self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                self._set_write_ahead_log()
                self._connection.executescript(_SCHEMA)
            found = self._number("PRAGMA application_id"), self._number("PRAGMA user_version")
            if found[0] != _APPLICATION_ID:
                raise StoreUnusable(f"{self.path}: it is no store of answers; name another file")
            if found[1] != _VERSION:
                raise StoreUnusable(
                    f"{self.path}: it is of version {found[1]}, not {_VERSION}; remove it, or name another file"
                )
            if not is_read_only:
                self._set_write_ahead_log()
                self._connection.execute("PRAGMA synchronous = NORMAL")

    def _set_write_ahead_log(self) -> None:
        """Readers and a writer do not wait for each other then. SQLite itself does not wait for others that do this."""
        give_up_at = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(_POLL_SECONDS)
            else:
                return

    def find(self, address: str, asking: int = 0, *, since: float = 0, before: float = math.inf) -> StoredAnswer | None:
        """Return the last usable answer of an address, of this asking or a later one, that was given between these
        times, in milliseconds since the epoch."""
        rows = self._read(
            f"SELECT {_COLUMNS} FROM answers WHERE address = ? AND asking >= ? AND state IN ('answered', 'cached') "
            "AND answered_at >= ? AND answered_at < ? ORDER BY asking DESC LIMIT 1",
            (address, asking, since, before),
        )
        return next(map(_stored, rows), None)

    def find_last(self, address: str) -> StoredAnswer | None:
        """Return the last asking of an address, and one with a result before others."""
        rows = self._read(
            f"SELECT {_COLUMNS} FROM answers WHERE address = ? "
            "ORDER BY state NOT IN ('failed', 'inDoubt') DESC, asking DESC LIMIT 1",
            (address,),
        )
        return next(map(_stored, rows), None)

    def answers(self, target: str | None = None) -> Iterator[StoredAnswer]:
        """Iterate over all askings, or those of one target, in the order of their addresses."""
        place: tuple[str, int] = ("", 0)
        while rows := self._read(
            f"SELECT {_COLUMNS} FROM answers WHERE (address, asking) > (?, ?) AND (? IS NULL OR target = ?) "
            f"ORDER BY address, asking LIMIT {_READ_SIZE}",
            (*place, target, target),
        ):
            yield from map(_stored, rows)
            place = rows[-1][0], rows[-1][1]

    def write(self, answers: Iterable[StoredAnswer], used: Iterable[str] = (), *, now: float) -> None:
        """Keep these askings, and note that the answers of ``used`` addresses were used today, in one transaction."""
        today = int(now // _DAY_SECONDS)
        with _named(self.path), self._transaction():
            self._connection.executemany(
                f"INSERT OR REPLACE INTO answers ({_COLUMNS}, used_on) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(*answer, today) for answer in answers],
            )
            self._connection.executemany(
                "UPDATE answers SET used_on = ? WHERE address = ? AND used_on < ?",
                [(today, address, today) for address in used],
            )

    def write_fact(self, name: str, value: str) -> None:
        """Keep what is known of the whole store under a name."""
        with _named(self.path):
            self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def fact(self, name: str) -> str | None:
        """Return what is kept under a name, or None."""
        rows = self._read("SELECT value FROM facts WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    @property
    def is_empty(self) -> bool:
        """Whether it has no answer."""
        return not self._read("SELECT 1 FROM answers LIMIT 1")

    def sizes(self) -> list[TargetSize]:
        """Return what the store has of each target, by name."""
        rows = self._read(
            "SELECT target, count(*), sum(length(request) + length(reply)), min(answered_at), max(answered_at) "
            "FROM answers GROUP BY target ORDER BY target"
        )
        return [TargetSize(*row) for row in rows]

    @property
    def bytes(self) -> int:
        """The size of the file without its free pages."""
        with _named(self.path):
            pages = self._number("PRAGMA page_count") - self._number("PRAGMA freelist_count")
            return pages * self._number("PRAGMA page_size")

    def prune(self, *, before: float | None = None, max_bytes: int | None = None) -> int:
        """Delete what was answered before a time, in milliseconds since the epoch, and the least recently used, until
        the rest has at most ``max_bytes``; return how many answers went.
        """
        deleted = 0
        if before is not None:
            deleted += self._delete("answered_at < ?", int(before))
        while max_bytes is not None and self.bytes > max_bytes:
            share = max(1, self._number("SELECT count(*) FROM answers") // 20)
            places = f"rowid IN (SELECT rowid FROM answers ORDER BY used_on, answered_at LIMIT {share})"
            if not (count := self._delete(places)):
                break
            deleted += count
        with _named(self.path):
            self._connection.execute("PRAGMA incremental_vacuum").fetchall()
        return deleted

    def _delete(self, which: str, *values: object) -> int:
        with _named(self.path):
            return self._connection.execute(f"DELETE FROM answers WHERE {which}", values).rowcount

    def seal(self) -> None:
        """Leave one file that can also be read where nothing can be written."""
        with _named(self.path):
            self._connection.execute("PRAGMA journal_mode = DELETE").fetchall()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _read(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with _named(self.path):
            return self._connection.execute(query, values).fetchall()

    def _number(self, query: str) -> int:
        return int(self._connection.execute(query).fetchone()[0])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _stored(row: tuple[Any, ...]) -> StoredAnswer:
    answer = StoredAnswer(*row)
    return answer._replace(state=AskingState(answer.state))


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Raise what SQLite and the disk say as `StoreUnusable`, with what helps."""
    try:
        yield
    except OSError as error:
        raise StoreUnusable(f"{path}: it cannot be opened ({error.strerror}); name another file") from None
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        why = next((text for code, text in _REASONS.items() if name.startswith(code)), str(error))
        raise StoreUnusable(f"{path}: {why}") from None


#: What helps, by the beginning of SQLite's name of an error.
_REASONS: Final = {
    "SQLITE_NOTADB": "it is no store of answers; name another file",
    "SQLITE_CORRUPT": "it is damaged; remove it",
    "SQLITE_BUSY": "another process holds it",
    "SQLITE_LOCKED": "another process holds it",
    "SQLITE_READONLY": "it cannot be written to; change its rights, or name another file",
    "SQLITE_CANTOPEN": "it cannot be opened; change its rights, or name another file",
    "SQLITE_FULL": "the disk is full; make room",
    "SQLITE_IOERR": "the disk cannot be read or written",
}

"""Atomic replacement of files, and exclusive locks on results folders."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from quintain.errors import ConfigError, QuintainError


@contextmanager
def atomic_write(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Open a temporary file for writing that replaces ``path`` when the ``with`` block ends without an exception.

    Only this user can read the new file, unless ``mode`` says otherwise; the process's umask applies to it.

    The new content is on disk (fsync) before the replacement. Raises `QuintainError` if it cannot be written; the old
    file is kept then.

    Example::

        with atomic_write(Path("run.json")) as file:
            file.write(b"{}")
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        # A leftover of a crashed run is removed first, so that neither its content nor its mode is reused.
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise QuintainError(
            f"{path}: cannot be written ({error.strerror}); its old content is kept. Free disk space, and give the "
            "same command again"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(folder: Path, lock: Path) -> Iterator[None]:
    """Hold an exclusive lock on a results folder, so that no other run writes to it.

    ``lock`` is the path to lock: the folder itself, or a file in it. The folder is created if it does not exist. Raises
    `ConfigError` if another process holds the lock, or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDONLY if lock == folder else os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written to ({error.strerror}); give another --output") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"{folder}: another `quintain run` is writing there; wait for it, or give another --output"
            ) from None
        yield
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Write a folder's directory entries to disk (fsync), so that created or renamed files survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

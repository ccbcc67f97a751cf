"""Atomic replacement of files, and exclusive locks on result folders."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from quintain.errors import ConfigError, QuintainError


@contextmanager
def atomic_write(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write the new content to; it takes the old one's place when the block ends well.

    Raises `QuintainError` where the disk refuses it; the old content stays then.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        # What a crash left of another try is not written into, and its mode not taken over.
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
            f"{path}: cannot be written ({error.strerror}); what it held before is kept. Make room, and give the "
            "same command again"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(folder: Path, lock: Path) -> Iterator[None]:
    """Keep every other run out of a folder, by a lock on ``lock``: the folder itself, or a file in it.

    Raises `ConfigError` where another one is there, or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDONLY if lock == folder else os.O_RDWR | os.O_CREAT, 0o666)
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
    """Make the names in a folder as durable as the files behind them."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

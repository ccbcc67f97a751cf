"""Replacing a file in one step: after a crash there is the old content or the new, never a part of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from quintain.errors import QuintainError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write the new content to; it takes the old one's place when the block ends well.

    Raises `QuintainError` where the disk refuses it; the old content stays then.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        with temporary.open("wb") as file:
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


def sync_folder(folder: Path) -> None:
    """Make the names in a folder as durable as the files behind them."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

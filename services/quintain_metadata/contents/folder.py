"""Contents in a folder: one folder for each content, one file for each piece.

Names are ids and numbers that this service made; nothing of a caller's becomes a path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from quintain.errors import ConfigError, Overloaded

log = logging.getLogger(__name__)

Returned = TypeVar("Returned")

#: A folder of a content that nothing was written to for so long, in seconds, is of no ledger: no call lives as long.
ABANDONED_SECONDS = 3600.0

RETRY_AFTER_MS = 1000

_CONTENT_ID = re.compile(r"[0-9a-f]{32}")


class FolderContentStore:
    """Contents below one folder, which the metadata services of a fleet share, if there are several."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Create the folder if it is missing. Raises `ConfigError` where this user cannot write there."""
        self.max_bytes = max_bytes
        self._folder = folder
        probe = folder / f".{secrets.token_hex(8)}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe.mkdir(mode=0o700)
            probe.rmdir()
        except OSError as error:
            raise ConfigError(
                f"The content store {folder} cannot be written ({error.strerror}): set QUINTAIN_CONTENT_STORE to a "
                "folder that this user may write"
            ) from None

    async def write(self, content_id: str, number: int, data: bytes) -> None:
        """Store one piece (`ContentStore.write`)."""
        await _in_thread(lambda: _write_file(self._content_folder(content_id), str(number), data))

    async def read(self, content_id: str, number: int) -> bytes | None:
        """Return one piece (`ContentStore.read`)."""
        return await _in_thread(lambda: _read_file(self._content_folder(content_id) / str(number)))

    async def piece_numbers(self, content_id: str) -> set[int]:
        """Return the numbers of the stored pieces (`ContentStore.piece_numbers`)."""
        return await _in_thread(lambda: _numbered_files(self._content_folder(content_id)))

    async def delete(self, content_id: str) -> None:
        """Delete all pieces of a content (`ContentStore.delete`)."""
        await _in_thread(lambda: _delete_folder(self._content_folder(content_id)))

    async def delete_abandoned(self) -> None:
        """Delete the folders that nothing was written to for an hour (`ContentStore.delete_abandoned`)."""
        await _in_thread(self._delete_abandoned)

    def _content_folder(self, content_id: str) -> Path:
        assert _CONTENT_ID.fullmatch(content_id), "content ids are made by the ledger's rules"
        return self._folder / content_id

    def _delete_abandoned(self) -> None:
        oldest = time.time() - ABANDONED_SECONDS
        for folder in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if _CONTENT_ID.fullmatch(folder.name) and folder.stat().st_mtime < oldest:
                    _delete_folder(folder)


async def _in_thread(work: Callable[[], Returned]) -> Returned:
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        log.error("The content store cannot be used: %s", error)
        raise Overloaded("The content store cannot be used now", retry_after_ms=RETRY_AFTER_MS) from None


def _write_file(folder: Path, name: str, data: bytes) -> None:
    folder.mkdir(exist_ok=True, mode=0o700)
    path = folder / f".{secrets.token_hex(8)}"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # Whole or not at all, also if this process is killed here.
        path.replace(folder / name)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _read_file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _numbered_files(folder: Path) -> set[int]:
    try:
        return {int(path.name) for path in folder.iterdir() if path.name.isdecimal()}
    except FileNotFoundError:
        return set()


def _delete_folder(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)

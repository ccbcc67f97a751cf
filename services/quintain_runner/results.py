"""``results.jsonl``: rows appended and fsynced as they come, a torn last line cut, the latest row of a key kept."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from io import FileIO
from pathlib import Path

from pydantic import ValidationError

from quintain.batching import Batcher
from quintain.contracts.message import explain
from quintain.errors import ConfigError, QuintainError
from quintain_runner.atomic import replacing, sync_folder
from quintain_runner.rows import Key, Mark, Row

FILE_NAME = "results.jsonl"

#: How many rows travel to the disk together at most.
_MOST_TOGETHER = 1024


class ResultFile:
    """The rows of one output folder. Made by `open_results`, which holds the folder's lock."""

    def __init__(self, path: Path, kept: dict[Key, Mark], superseded: int) -> None:
        self.path = path
        self._kept, self._superseded = kept, superseded
        self._file = FileIO(path, "ab")
        self._size = path.stat().st_size
        self._batches = Batcher(self._write_batch, most=_MOST_TOGETHER)

    def kept(self) -> dict[Key, Mark]:
        """What the file held when it was opened: the latest row of each key."""
        return self._kept

    async def append(self, row: Row) -> None:
        """Write a row; returns when it is on the disk. Raises `QuintainError` where the disk refuses it."""
        self._superseded += row.key in self._kept
        await self._batches.add(row.model_dump_json(by_alias=True).encode() + b"\n")

    async def close(self, *, compacted: bool = False) -> None:
        """Wait until everything appended is on the disk, also what its owner no longer waits for.

        ``compacted`` takes out the rows that a newer one has superseded.
        """
        try:
            await self._batches.add(b"")
            if compacted and self._superseded:
                await asyncio.to_thread(_compact, self.path)
        finally:
            self._file.close()

    async def _write_batch(self, lines: list[bytes]) -> None:
        await asyncio.to_thread(self._write, b"".join(lines))

    def _write(self, lines: bytes) -> None:
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(self._size)
            raise QuintainError(
                f"{self.path}: a row cannot be written ({error.strerror}). The rows before it are kept: make room, "
                "and give the same command again"
            ) from None
        self._size += len(lines)


@asynccontextmanager
async def open_results(folder: Path) -> AsyncIterator[ResultFile]:
    """The rows of this folder, made where it is not there; compacted at the end, where all went well.

    Raises `ConfigError` where another run is writing there, or where the file holds what is no row.
    """
    lock = await asyncio.to_thread(_locked, folder)
    try:
        results = await asyncio.to_thread(_opened, folder / FILE_NAME)
        try:
            yield results
        except BaseException:
            # An interrupt too: what was appended goes to the disk before anything else.
            await results.close()
            raise
        await results.close(compacted=True)
    finally:
        os.close(lock)


def _locked(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written to ({error.strerror}); give another --output") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(
            f"{folder}: another `quintain run` is writing there; wait for it, or give another --output"
        ) from None
    return lock


def _opened(path: Path) -> ResultFile:
    kept: dict[Key, Mark] = {}
    superseded, whole = 0, 0
    path.touch()
    for row, end in _rows(path):
        superseded += row.key in kept
        kept[row.key] = Mark.of(row)
        whole = end
    os.truncate(path, whole)
    sync_folder(path.parent)
    return ResultFile(path, kept, superseded)


def _rows(path: Path) -> Iterator[tuple[Row, int]]:
    """Every whole row with the offset at which it ends; a torn last line is no row."""
    offset = 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for number, line in enumerate(file, start=1):
            offset += len(line)
            row = _row(line, f"{path}: line {number}", last=offset == size) if line.strip() else None
            if row is not None:
                yield row, offset


def _row(line: bytes, where: str, *, last: bool) -> Row | None:
    mend = "mend or remove the line, or give another --output"
    try:
        content = json.loads(line)
    except ValueError:
        if last:
            return None
        raise ConfigError(f"{where} is not JSON; {mend}") from None
    if last and not line.endswith(b"\n"):
        return None
    try:
        return Row.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{where} is not a row of this version ({explain(error)}); {mend}") from None


def _compact(path: Path) -> None:
    latest = {row.key: end for row, end in _rows(path)}
    ends = set(latest.values())
    with replacing(path) as new, path.open("rb") as old:
        offset = 0
        for line in old:
            offset += len(line)
            if offset in ends:
                new.write(line)

"""``results.jsonl``: rows appended and fsynced as they come, a torn last line cut, the latest row of a key kept."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from quintain.batching import Batcher
from quintain.contracts.message import explain
from quintain.errors import ConfigError, QuintainError
from quintain_runner.atomic import holding, replacing, sync_folder
from quintain_runner.kept import Kept
from quintain_runner.rows import Key, Row, Status

FILE_NAME = "results.jsonl"

#: How many rows travel to the disk together at most.
_MOST_TOGETHER = 1024


class _Line(NamedTuple):
    """A row, the bytes of its line, and the offset at which that ends."""

    row: Row
    line: bytes
    end: int


class ResultFile:
    """The rows of one output folder. Made by `open_results`, which holds the folder's lock."""

    def __init__(self, path: Path, kept: Kept) -> None:
        self.path = path
        #: What the file held when it was opened.
        self.kept = kept
        self._file = FileIO(path, "ab")
        self._size = path.stat().st_size
        self._batches = Batcher(self._write_batch, most=_MOST_TOGETHER)

    async def append(self, row: Row, *, supersedes: bool = False) -> None:
        """Write a row; returns when it is on the disk. ``supersedes``: the file has one of its key already.

        Raises `QuintainError` where the disk refuses it.
        """
        if supersedes:
            self.kept.supersede(row.key)
        await self._batches.add(row.to_line())

    async def close(self, *, compacted: bool = False) -> None:
        """Wait until everything appended is on the disk, also what its owner no longer waits for.

        ``compacted`` takes out the rows that a newer one has superseded.
        """
        try:
            await self._batches.add(b"")
            if compacted and self.kept.any_superseded:
                await asyncio.to_thread(_compact, self.path, self.kept)
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
    with holding(folder, folder):
        results = await asyncio.to_thread(_opened, folder / FILE_NAME)
        try:
            yield results
        except BaseException:
            # An interrupt too: what was appended goes to the disk before anything else.
            await results.close()
            raise
        await results.close(compacted=True)


def calls_in(folder: Path) -> int:
    """What the rows of this folder say that was charged for them."""
    return sum(tally.calls for tally in kept_in(folder).tallies.values())


def kept_in(folder: Path) -> Kept:
    """What the rows of this folder mean for going on; nothing where there are none yet."""
    kept = Kept()
    path = folder / FILE_NAME
    if path.is_file():
        for row, _, _ in _rows(path):
            kept.add(row)
    return kept


def rows_that_count(folder: Path, kept: Kept) -> Iterator[Row]:
    """The rows of this folder without the superseded ones, in their order; ``kept`` is what `kept_in` said of it.

    Raises `ConfigError` where the file holds what is no row.
    """
    return (line.row for line in _counting(folder / FILE_NAME, kept))


def _opened(path: Path) -> ResultFile:
    kept, whole = Kept(), 0
    path.touch()
    for row, _, end in _rows(path):
        kept.add(row)
        whole = end
    os.truncate(path, whole)
    sync_folder(path.parent)
    return ResultFile(path, kept)


def _rows(path: Path) -> Iterator[_Line]:
    """Every whole row; a torn last line is no row."""
    offset = 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for number, line in enumerate(file, start=1):
            offset += len(line)
            row = _row(line, f"{path}: line {number}", last=offset == size) if line.strip() else None
            if row is not None:
                yield _Line(row, line, offset)


def _row(line: bytes, where: str, *, last: bool) -> Row | None:
    if last and not line.endswith(b"\n"):
        return None
    try:
        return Row.model_validate_json(line)
    except ValidationError as error:
        mend = "mend or remove the line, or give another --output"
        if _is_json(line):
            raise ConfigError(f"{where} is not a row of this version ({explain(error)}); {mend}") from None
        if last:
            return None
        raise ConfigError(f"{where} is not JSON; {mend}") from None


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _compact(path: Path, kept: Kept) -> None:
    """Leave out what was superseded."""
    with replacing(path) as new:
        for counting in _counting(path, kept):
            new.write(counting.line)


def _counting(path: Path, kept: Kept) -> Iterator[_Line]:
    """Of a key with several rows the one that counts, and every other row."""
    if not path.is_file():
        return
    counts: dict[Key, int] = {}
    graded: set[Key] = set()
    for row, _, end in _rows(path) if kept.any_superseded else ():
        if kept.has_several(row.key) and row.key not in graded:
            counts[row.key] = end
            if row.status is Status.GRADED:
                graded.add(row.key)
    for line in _rows(path):
        if counts.get(line.row.key, line.end) == line.end:
            yield line

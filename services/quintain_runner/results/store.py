"""Stores rows in ``results.jsonl``: appends with fsync, cuts off an incomplete last line, drops superseded rows."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import threading
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from pydantic import ValidationError

from quintain.contracts.message import describe_validation_error
from quintain.errors import ConfigError, QuintainError
from quintain.runtime.concurrency import Batcher
from quintain.runtime.lazy_module import LazyModule
from quintain_runner.files import atomic_write, exclusive_lock, sync_folder
from quintain_runner.results.counts import ResumeState
from quintain_runner.results.row import Row, RowKey

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

_DIGEST_BYTES = 8

#: New hashes are collected in a set until there are this many, or an eighth of the sorted ones, and then merged into
#: the sorted array.
_MIN_MERGE_SIZE = 10_000


def key_hash(*parts: str | int) -> int:
    """The 64-bit BLAKE2b hash of a tuple of parts; ``("a", "b")`` and ``("ab",)`` have different hashes."""
    key = str(parts[0]) if len(parts) == 1 else json.dumps(parts)
    digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest)


class KeyHashSet:
    """A set of key hashes that only grows and takes about 8 bytes for each."""

    def __init__(self) -> None:
        self._sorted = array("Q")
        self._recent: set[int] = set()

    def __len__(self) -> int:
        """The number of hashes."""
        return len(self._sorted) + len(self._recent)

    def __contains__(self, value: int) -> bool:
        """Whether the set contains this hash."""
        if value in self._recent:
            return True
        index = bisect_left(self._sorted, value)
        return index < len(self._sorted) and self._sorted[index] == value

    def add(self, value: int) -> None:
        """Add a hash; it may be in the set already."""
        if value in self:
            return
        self._recent.add(value)
        if len(self._recent) >= max(_MIN_MERGE_SIZE, len(self._sorted) // 8):
            recent = np.sort(np.fromiter(self._recent, np.uint64, len(self._recent)))
            merged = np.concatenate([np.frombuffer(self._sorted, np.uint64), recent])
            # The stable sort merges two sorted sequences in linear time.
            merged.sort(kind="stable")
            self._sorted, self._recent = array("Q", merged.tobytes()), set()


def _hash_of(key: RowKey) -> int:
    """The hash of a key."""
    return key_hash(key.case_id, key.target, key.repeat, *(() if key.prompt is None else (key.prompt,)))


class RowIndex:
    """The offsets of the latest rows, by the hashes of their keys. Rows are added in the file's order."""

    def __init__(self) -> None:
        self._keys, self._offsets = array("Q"), array("Q")
        self._is_sorted = True
        self._has_superseded = False

    def __len__(self) -> int:
        self._sort()
        return len(self._keys)

    def add(self, key: RowKey, offset: int) -> None:
        """A row of this key stands at this offset."""
        self._keys.append(_hash_of(key))
        self._offsets.append(offset)
        self._is_sorted = False

    def offset_of(self, key: RowKey) -> int | None:
        """Where the latest row of this key stands; None where there is none."""
        self._sort()
        if not self._keys:
            return None
        name = _hash_of(key)
        position = bisect_left(self._keys, name)
        return self._offsets[position] if position < len(self._keys) and self._keys[position] == name else None

    @property
    def has_superseded(self) -> bool:
        """Whether some row of the file has a newer one."""
        self._sort()
        return self._has_superseded

    def _sort(self) -> None:
        if self._is_sorted or not self._keys:
            return
        keys, offsets = np.frombuffer(self._keys, np.uint64), np.frombuffer(self._offsets, np.uint64)
        order = np.lexsort((offsets, keys))
        keys, offsets = keys[order], offsets[order]
        is_latest = np.append(keys[1:] != keys[:-1], True)
        self._has_superseded = self._has_superseded or not bool(is_latest.all())
        self._keys, self._offsets = array("Q", keys[is_latest].tobytes()), array("Q", offsets[is_latest].tobytes())
        self._is_sorted = True


RESULTS_FILE_NAME = "results.jsonl"


class RowReader:
    """Finds the latest rows of a file by their keys, as an index of it says. From any thread; close it at the end."""

    def __init__(self, path: Path, index: RowIndex) -> None:
        self._index, self._file, self._reading = index, path.open("rb"), threading.Lock()

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Read the whole file, and index it."""
        index = RowIndex()
        for row, _, offset in _valid_lines(path):
            index.add(row.key, offset)
        return cls(path, index)

    def find(self, key: RowKey) -> Row | None:
        """The row of this key; None where there is none."""
        offset = self._index.offset_of(key)
        if offset is None:
            return None
        with self._reading:
            self._file.seek(offset)
            return Row.model_validate_json(self._file.readline())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


#: Rows that come within so many seconds go to the disk together, and so many at most.
_GATHER_SECONDS, _MAX_BATCH_ROWS = 0.02, 1024


class _ResultLine(NamedTuple):
    """A row, the bytes of its line, and the offset at which that begins."""

    row: Row
    line: bytes
    offset: int


class ResultFile:
    """The rows of one output folder. Made by `open_results`, which holds the folder's lock.

    Without ``keeps_content`` appended rows are written without texts.
    """

    def __init__(self, path: Path, index: RowIndex, resume_state: ResumeState, *, keeps_content: bool = True) -> None:
        self.path, self._keeps_content = path, keeps_content
        #: What the file held when it was opened, and what became of that by `replace`.
        self.resume_state = resume_state
        #: Whether rows came or went since it was opened.
        self.is_changed = False
        self._index, self._has_superseded = index, index.has_superseded
        self._file, self._reader = FileIO(path, "ab"), RowReader(path, index)
        self._size = path.stat().st_size
        self._batcher = Batcher(self._write_batch, max_batch=_MAX_BATCH_ROWS, gather_seconds=_GATHER_SECONDS)
        self._write_before_rows: Callable[[], None] = lambda: None

    def write_before_rows(self, write: Callable[[], None]) -> None:
        """Have this called before each batch of rows is written, in the same thread."""
        self._write_before_rows = write

    def find(self, key: RowKey) -> Row | None:
        """The row of this key that the file had when it was opened; None where it had none. From any thread."""
        return self._reader.find(key)

    def reader(self) -> RowReader:
        """A reader of the rows as they are on the disk now; see `RowReader`."""
        return RowReader.of_file(self.path)

    @property
    def rows_at_opening_count(self) -> int:
        """The number of rows that the file had when it was opened, without the superseded ones."""
        return len(self._index)

    def rows_at_opening(self) -> Iterator[Row]:
        """The rows that the file had when it was opened, without the superseded ones."""
        for row, _, offset in _valid_lines(self.path):
            if self._index.offset_of(row.key) == offset:
                yield row

    async def take_out(self, is_taken: Callable[[RowKey], bool]) -> None:
        """Take rows out of the file and of the counts; `find` still has them. Returns when that is on the disk."""
        await asyncio.to_thread(self._take_out, is_taken)

    def _take_out(self, is_taken: Callable[[RowKey], bool]) -> None:
        def stays(row: Row) -> bool:
            if not is_taken(row.key):
                return True
            self.resume_state.add_row(row, times=-1)
            return False

        _compact(self.path, stays)
        self._file.close()
        self._file, self._size, self._has_superseded = FileIO(self.path, "ab"), self.path.stat().st_size, False
        self.is_changed = True

    def current_rows(self) -> Iterator[Row]:
        """The rows as they are on the disk now; see `current_rows` of this module."""
        lines = _current_lines(self.path) if self._has_superseded else _valid_lines(self.path)
        return (line.row for line in lines)

    async def append(self, row: Row, *, supersedes: bool = False) -> None:
        """Write a row; returns when it is on the disk. ``supersedes``: the file has one of its key already.

        Raises `QuintainError` where the disk refuses it.
        """
        self.is_changed = True
        self._has_superseded = self._has_superseded or supersedes
        await self._batcher.add((row if self._keeps_content else row.without_content()).to_line())

    async def replace(self, replacements: Sequence[tuple[Row, Row]]) -> None:
        """Write the second row of each pair over the first, in the counts too; returns when all are on the disk."""
        for old, new in replacements:
            self.resume_state.add_row(old, times=-1)
            self.resume_state.add_row(new)
        await asyncio.gather(*(self.append(new, supersedes=True) for _, new in replacements))

    async def close(self, *, compact: bool = False) -> None:
        """Wait until everything appended is on the disk, also what its owner no longer waits for.

        ``compact`` takes out the rows that a newer one has superseded.
        """
        try:
            await self._batcher.add(b"")
            if compact and self._has_superseded:
                await asyncio.to_thread(_compact, self.path)
        finally:
            self._file.close()
            self._reader.close()

    async def _write_batch(self, lines: list[bytes]) -> None:
        await asyncio.to_thread(self._write, b"".join(lines))

    def _write(self, lines: bytes) -> None:
        self._write_before_rows()
        remaining = memoryview(lines)
        try:
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(self._size)
            raise QuintainError(
                f"{self.path}: a row cannot be written ({error.strerror}). The rows before it are kept: make room, "
                "and give the same command again"
            ) from None
        self._size += len(lines)


@asynccontextmanager
async def open_results(folder: Path, *, keeps_content: bool = True) -> AsyncIterator[ResultFile]:
    """The rows of this folder, made where it is not there; compacted at the end, where all went well.

    Without ``keeps_content`` new rows are written without texts.

    Raises `ConfigError` where another run is writing there, or where the file holds what is no row.
    """
    with exclusive_lock(folder, folder):
        results = await asyncio.to_thread(_open_file, folder / RESULTS_FILE_NAME, keeps_content=keeps_content)
        try:
            yield results
        except BaseException:
            # An interrupt too: what was appended goes to the disk before anything else.
            await results.close()
            raise
        await results.close(compact=True)


def read_resume_state(folder: Path) -> ResumeState:
    """The counts of the rows of this folder; nothing where there are none yet."""
    resume_state = ResumeState()
    for row in current_rows(folder):
        resume_state.add_row(row)
    return resume_state


def current_rows(folder: Path) -> Iterator[Row]:
    """The latest row of each key, in the file's order.

    Raises `ConfigError` where the file holds what is no row.
    """
    path = folder / RESULTS_FILE_NAME
    return (line.row for line in _current_lines(path)) if path.is_file() else iter(())


def _open_file(path: Path, *, keeps_content: bool) -> ResultFile:
    index, resume_state, valid_length = RowIndex(), ResumeState(), 0
    path.touch(mode=0o600)
    for row, line, offset in _valid_lines(path):
        index.add(row.key, offset)
        resume_state.add_row(row)
        valid_length = offset + len(line)
    os.truncate(path, valid_length)
    sync_folder(path.parent)
    results = ResultFile(path, index, resume_state, keeps_content=keeps_content)
    if index.has_superseded:
        results.resume_state = ResumeState()
        for row in results.rows_at_opening():
            results.resume_state.add_row(row)
    return results


def _valid_lines(path: Path) -> Iterator[_ResultLine]:
    """Every whole row; a torn last line is no row."""
    offset = 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for number, line in enumerate(file, start=1):
            start, offset = offset, offset + len(line)
            row = _parse_line(line, f"{path}: line {number}", last=offset == size) if line.strip() else None
            if row is not None:
                yield _ResultLine(row, line, start)


def _parse_line(line: bytes, where: str, *, last: bool) -> Row | None:
    if last and not line.endswith(b"\n"):
        return None
    try:
        return Row.model_validate_json(line)
    except ValidationError as error:
        fix = "mend or remove the line, or give another --output"
        if _is_json(line):
            raise ConfigError(
                f"{where} is not a row of this version ({describe_validation_error(error)}); {fix}"
            ) from None
        if last:
            return None
        raise ConfigError(f"{where} is not JSON; {fix}") from None


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _compact(path: Path, stays: Callable[[Row], bool] = lambda _: True) -> None:
    """Leave out what was superseded, and what does not stay."""
    with atomic_write(path, mode=stat.S_IMODE(path.stat().st_mode)) as new:
        for current in _current_lines(path):
            if stays(current.row):
                new.write(current.line)


def _current_lines(path: Path) -> Iterator[_ResultLine]:
    """The latest row of each key."""
    index = RowIndex()
    for row, _, offset in _valid_lines(path):
        index.add(row.key, offset)
    for line in _valid_lines(path):
        if index.offset_of(line.row.key) == line.offset:
            yield line

"""Stores rows in ``results.jsonl``: appends with fsync, truncates an incomplete last line, drops superseded rows."""

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

from quintain.contracts.message import describe_validation_error
from quintain.errors import ConfigError, QuintainError
from quintain.runtime.batching import Batcher
from quintain_runner.results.atomic_file import atomic_write, exclusive_lock, sync_folder
from quintain_runner.results.resume_state import ResumeState
from quintain_runner.results.row import Row, RowKey, RowStatus

FILE_NAME = "results.jsonl"

#: How many rows travel to the disk together at most.
_MAX_BATCH_ROWS = 1024


class _ResultLine(NamedTuple):
    """A row, the bytes of its line, and the offset at which that ends."""

    row: Row
    line: bytes
    end: int


class ResultFile:
    """The rows of one output folder. Made by `open_results`, which holds the folder's lock."""

    def __init__(self, path: Path, resume_state: ResumeState) -> None:
        self.path = path
        #: What the file held when it was opened.
        self.resume_state = resume_state
        self._file = FileIO(path, "ab")
        self._size = path.stat().st_size
        self._batcher = Batcher(self._write_batch, max_batch=_MAX_BATCH_ROWS)

    async def append(self, row: Row, *, supersedes: bool = False) -> None:
        """Write a row; returns when it is on the disk. ``supersedes``: the file has one of its key already.

        Raises `QuintainError` where the disk refuses it.
        """
        if supersedes:
            self.resume_state.mark_superseded(row.key)
        await self._batcher.add(row.to_line())

    async def close(self, *, compact: bool = False) -> None:
        """Wait until everything appended is on the disk, also what its owner no longer waits for.

        ``compact`` takes out the rows that a newer one has superseded.
        """
        try:
            await self._batcher.add(b"")
            if compact and self.resume_state.has_superseded:
                await asyncio.to_thread(_compact, self.path, self.resume_state)
        finally:
            self._file.close()

    async def _write_batch(self, lines: list[bytes]) -> None:
        await asyncio.to_thread(self._write, b"".join(lines))

    def _write(self, lines: bytes) -> None:
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
async def open_results(folder: Path) -> AsyncIterator[ResultFile]:
    """The rows of this folder, made where it is not there; compacted at the end, where all went well.

    Raises `ConfigError` where another run is writing there, or where the file holds what is no row.
    """
    with exclusive_lock(folder, folder):
        results = await asyncio.to_thread(_open_file, folder / FILE_NAME)
        try:
            yield results
        except BaseException:
            # An interrupt too: what was appended goes to the disk before anything else.
            await results.close()
            raise
        await results.close(compact=True)


def charged_calls(folder: Path) -> int:
    """What the rows of this folder say that was charged for them."""
    return sum(tally.calls for tally in read_resume_state(folder).tallies.values())


def read_resume_state(folder: Path) -> ResumeState:
    """What the rows of this folder mean for going on; nothing where there are none yet."""
    resume_state = ResumeState()
    path = folder / FILE_NAME
    if path.is_file():
        for row, _, _ in _valid_lines(path):
            resume_state.add_row(row)
    return resume_state


def current_rows(folder: Path, resume_state: ResumeState) -> Iterator[Row]:
    """The rows of this folder without the superseded ones, in their order; ``resume_state`` is what
    `read_resume_state` said of it.

    Raises `ConfigError` where the file holds what is no row.
    """
    return (line.row for line in _current_lines(folder / FILE_NAME, resume_state))


def _open_file(path: Path) -> ResultFile:
    resume_state, valid_length = ResumeState(), 0
    path.touch()
    for row, _, end in _valid_lines(path):
        resume_state.add_row(row)
        valid_length = end
    os.truncate(path, valid_length)
    sync_folder(path.parent)
    return ResultFile(path, resume_state)


def _valid_lines(path: Path) -> Iterator[_ResultLine]:
    """Every whole row; a torn last line is no row."""
    offset = 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for number, line in enumerate(file, start=1):
            offset += len(line)
            row = _parse_line(line, f"{path}: line {number}", last=offset == size) if line.strip() else None
            if row is not None:
                yield _ResultLine(row, line, offset)


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


def _compact(path: Path, resume_state: ResumeState) -> None:
    """Leave out what was superseded."""
    with atomic_write(path) as new:
        for current in _current_lines(path, resume_state):
            new.write(current.line)


def _current_lines(path: Path, resume_state: ResumeState) -> Iterator[_ResultLine]:
    """Of a key with several rows the one that counts, and every other row."""
    if not path.is_file():
        return
    current_ends: dict[RowKey, int] = {}
    graded: set[RowKey] = set()
    for row, _, end in _valid_lines(path) if resume_state.has_superseded else ():
        if resume_state.has_several_rows(row.key) and row.key not in graded:
            current_ends[row.key] = end
            if row.status is RowStatus.GRADED:
                graded.add(row.key)
    for line in _valid_lines(path):
        if current_ends.get(line.row.key, line.end) == line.end:
            yield line

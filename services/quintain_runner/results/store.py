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

#: The most rows written with one fsync.
_MAX_BATCH_ROWS = 1024


class _ResultLine(NamedTuple):
    """A row, its line as bytes, and the file offset of the end of the line."""

    row: Row
    line: bytes
    end: int


class ResultFile:
    """The open ``results.jsonl`` of a results folder. Created by `open_results`, which holds the folder's lock."""

    def __init__(self, path: Path, resume_state: ResumeState) -> None:
        self.path = path
        #: The state of the rows that the file contained when it was opened.
        self.resume_state = resume_state
        self._file = FileIO(path, "ab")
        self._size = path.stat().st_size
        self._batcher = Batcher(self._write_batch, max_batch=_MAX_BATCH_ROWS)

    async def append(self, row: Row, *, supersedes: bool = False) -> None:
        """Append a row; returns when it is on disk. ``supersedes`` says that the file already has a row of the same
        key.

        Raises `QuintainError` if the row cannot be written.
        """
        if supersedes:
            self.resume_state.mark_superseded(row.key)
        await self._batcher.add(row.to_line())

    async def close(self, *, compact: bool = False) -> None:
        """Wait until all appended rows are on disk, and close the file.

        ``compact`` removes superseded rows first.
        """
        try:
            await self._batcher.add(b"")
            if compact and self.resume_state.has_superseded:
                await asyncio.to_thread(_compact, self.path, self.resume_state)
        finally:
            self._file.close()

    async def _write_batch(self, lines: list[bytes]) -> None:
        """Write a batch of lines in a thread."""
        await asyncio.to_thread(self._write, b"".join(lines))

    def _write(self, lines: bytes) -> None:
        """Append the lines and sync them to disk; on an error, truncate the file to the complete rows."""
        remaining = memoryview(lines)
        try:
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(self._size)
            raise QuintainError(
                f"{self.path}: a row cannot be written ({error.strerror}). The rows before it are kept: free disk "
                "space, and give the same command again"
            ) from None
        self._size += len(lines)


@asynccontextmanager
async def open_results(folder: Path) -> AsyncIterator[ResultFile]:
    """Open the results of a folder for appending, and remove superseded rows at the end if no error occurred.

    The folder is created if it does not exist. Raises `ConfigError` if another run is writing to the folder, or if the
    file contains an invalid row.
    """
    with exclusive_lock(folder, folder):
        results = await asyncio.to_thread(_open_file, folder / FILE_NAME)
        try:
            yield results
        except BaseException:
            # Also on an interrupt: appended rows are written to disk first.
            await results.close()
            raise
        await results.close(compact=True)


def charged_calls(folder: Path) -> int:
    """The number of charged calls in the rows of a results folder."""
    return sum(tally.calls for tally in read_resume_state(folder).tallies.values())


def read_resume_state(folder: Path) -> ResumeState:
    """Read the resume state of a results folder; it is empty if there are no results yet.

    Raises `ConfigError` if the file contains an invalid row.
    """
    resume_state = ResumeState()
    path = folder / FILE_NAME
    if path.is_file():
        for row, _, _ in _valid_lines(path):
            resume_state.add_row(row)
    return resume_state


def current_rows(folder: Path, resume_state: ResumeState) -> Iterator[Row]:
    """Iterate over the rows of a results folder without the superseded ones, in the order of the file.

    ``resume_state`` is the result of `read_resume_state`. Raises `ConfigError` if the file contains an invalid row.
    """
    return (line.row for line in _current_lines(folder / FILE_NAME, resume_state))


def _open_file(path: Path) -> ResultFile:
    """Open the file for appending, after truncating an incomplete last line."""
    resume_state, valid_length = ResumeState(), 0
    path.touch()
    for row, _, end in _valid_lines(path):
        resume_state.add_row(row)
        valid_length = end
    os.truncate(path, valid_length)
    sync_folder(path.parent)
    return ResultFile(path, resume_state)


def _valid_lines(path: Path) -> Iterator[_ResultLine]:
    """Iterate over the complete rows; an incomplete last line, as a crash leaves it, is skipped."""
    offset = 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for number, line in enumerate(file, start=1):
            offset += len(line)
            row = _parse_line(line, f"{path}: line {number}", last=offset == size) if line.strip() else None
            if row is not None:
                yield _ResultLine(row, line, offset)


def _parse_line(line: bytes, where: str, *, last: bool) -> Row | None:
    """Parse a line; None for an incomplete last line. Raises `ConfigError` if it is not a valid row."""
    if last and not line.endswith(b"\n"):
        return None
    try:
        return Row.model_validate_json(line)
    except ValidationError as error:
        fix = "fix or remove the line, or give another --output"
        if _is_json(line):
            raise ConfigError(
                f"{where} is not a row of this version ({describe_validation_error(error)}); {fix}"
            ) from None
        if last:
            return None
        raise ConfigError(f"{where} is not JSON; {fix}") from None


def _is_json(line: bytes) -> bool:
    """Whether the line is valid JSON."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _compact(path: Path, resume_state: ResumeState) -> None:
    """Rewrite the file without superseded rows."""
    with atomic_write(path) as new:
        for current in _current_lines(path, resume_state):
            new.write(current.line)


def _current_lines(path: Path, resume_state: ResumeState) -> Iterator[_ResultLine]:
    """Iterate over the lines of current rows: of a key with several rows the first graded one, or else the last."""
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

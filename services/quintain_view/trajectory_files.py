"""Reads the trajectories of a results folder. Called in threads."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import BinaryIO

from quintain.contracts.remote_target import (
    MAX_TRAJECTORY_BYTES,
    TRAJECTORY_FOLDER,
    TRAJECTORY_SUFFIX,
    TRAJECTORY_VERSION,
    TrajectoryLine,
    TrajectoryStart,
)
from quintain.errors import BadRequest
from quintain_view.reading import ContentMissing
from quintain_view.trajectory_page import TrajectoryEntry, TrajectoryRecord, trajectory_entry

#: The record that `quintain run` writes.
RUN_FILE_NAME = "run.json"

#: How many trajectories a page of the list has.
TRAJECTORIES_PER_PAGE = 200

#: A list reads so many bytes of the beginning and of the end of a file; a last line with a long error is shorter.
_LISTED_BYTES = 160_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


def has_trajectories(folder: Path) -> bool:
    """Whether runs of hosted targets were recorded in this results folder."""
    return (folder / TRAJECTORY_FOLDER).is_dir()


def has_only_trajectories(folder: Path) -> bool:
    """Whether a folder holds recorded runs of hosted targets, and no run of `quintain run`."""
    return has_trajectories(folder) and not (folder / RUN_FILE_NAME).exists()


def list_trajectories(folder: Path, *, page: int = 1) -> tuple[list[TrajectoryEntry], bool]:
    """A page of the trajectories of a folder, the newest first, and whether there are more."""
    names = trajectory_names(folder)
    begin = (page - 1) * TRAJECTORIES_PER_PAGE
    entries = []
    for name in names[begin : begin + TRAJECTORIES_PER_PAGE]:
        try:
            with (folder / TRAJECTORY_FOLDER / name).open("rb") as file:
                entries.append(_entry(name, file))
        except OSError:
            # It was removed meanwhile, or may not be read.
            continue
    return entries, len(names) > begin + TRAJECTORIES_PER_PAGE


def trajectory_names(folder: Path) -> list[str]:
    """The names of a folder's trajectories, the newest first: names begin with the time."""
    try:
        names = [path.name for path in (folder / TRAJECTORY_FOLDER).iterdir()]
    except OSError:
        return []
    return sorted((name for name in names if name.endswith(TRAJECTORY_SUFFIX) and _NAME.fullmatch(name)), reverse=True)


def is_recording(folder: Path) -> bool:
    """Whether a recorder holds one of a folder's trajectories."""
    states = (trajectory_version(folder, name) for name in trajectory_names(folder))
    return any(state is not None and state[1] for state in states)


def read_trajectory(folder: Path, name: str) -> TrajectoryRecord:
    """Read one trajectory as far as it is written. Raises `ContentMissing`."""
    try:
        with _open(folder, name) as file:
            # The lock first: a run that ends in between has its last line then.
            is_written = _is_locked(file)
            data = file.read(2 * MAX_TRAJECTORY_BYTES)
    except OSError:
        raise ContentMissing(f"There is no trajectory {name} in this folder") from None
    first, *lines = data.split(b"\n")
    # Text after the last newline is still being written.
    parsed = [_line(line) for line in lines[:-1] if line]
    known = [line for line in parsed if line is not None]
    return TrajectoryRecord(name, _start(first), known, is_written, unreadable=len(parsed) - len(known))


def trajectory_version(folder: Path, name: str) -> tuple[int, bool] | None:
    """The size of a trajectory, and whether a recorder holds it; None if it cannot be read."""
    try:
        with _open(folder, name) as file:
            return (os.fstat(file.fileno()).st_size, _is_locked(file))
    except (OSError, ContentMissing):
        return None


def list_version(folder: Path) -> object:
    """What is another value when a trajectory was begun, or has ended."""
    entries, _ = list_trajectories(folder)
    return (len(trajectory_names(folder)), [(entry.name, entry.state) for entry in entries])


def _open(folder: Path, name: str) -> BinaryIO:
    if not _NAME.fullmatch(name) or not name.endswith(TRAJECTORY_SUFFIX):
        raise ContentMissing(f"There is no trajectory {name} in this folder")
    return (folder / TRAJECTORY_FOLDER / name).open("rb")


def _entry(name: str, file: BinaryIO) -> TrajectoryEntry:
    is_written = _is_locked(file)
    first = file.readline(_LISTED_BYTES)
    size = os.fstat(file.fileno()).st_size
    file.seek(max(len(first), size - _LISTED_BYTES))
    lines = file.read().split(b"\n")[:-1]
    last = _line(lines[-1]) if lines else None
    record = TrajectoryRecord(name, _start(first), [] if last is None else [last], is_written)
    return trajectory_entry(record, size)


def _is_locked(file: BinaryIO) -> bool:
    """Whether a recorder holds the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # A file system without locks: it is not known, and a run is not said to go on.
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _start(line: bytes) -> TrajectoryStart | None:
    try:
        start = TrajectoryStart.from_wire(line)
    except BadRequest:
        return None
    return start if start.schema_version == TRAJECTORY_VERSION else None


def _line(line: bytes) -> TrajectoryLine | None:
    try:
        return TrajectoryLine.from_wire(line)
    except BadRequest:
        return None

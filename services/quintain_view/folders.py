"""Finds results folders, names them in addresses, and keeps their indexes up to date while they are looked at."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from quintain.errors import ConfigError, QuintainError
from quintain.runtime.concurrency import cancel_and_wait
from quintain_runner.files import exclusive_lock
from quintain_runner.report.run_file import RunFile, read_run
from quintain_runner.results.store import RESULTS_FILE_NAME
from quintain_view.index_writer import IndexProgress, update_index_step
from quintain_view.run_list import RunSource
from quintain_view.trajectory_files import RUN_FILE_NAME, has_only_trajectories, has_trajectories, is_recording

#: What pages say of a run that has not written its record yet; they load themselves again.
UNRECORDED_TEXT = (
    f"There are results and no {RUN_FILE_NAME} yet: the run has just begun, or was stopped before it wrote one. "
    "This page shows the run as soon as there is one."
)

#: What a run may be named: no path, nothing hidden, and at most 100 characters, of which each can be seen.
_RUN_NAME = re.compile(r"[^./\s]([^/]{0,98}[^/\s])?")


class RunFolders:
    """The results folders of the given paths: each is one, or holds some.

    A run is named by its folder; of several with one name, the later ones have a number. Names stay while the server
    runs.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._names: dict[Path, str] = {}

    def check(self) -> None:
        """Raise `ConfigError` if a path that was named is no folder."""
        for path in self.paths:
            if path.exists() and not path.is_dir():
                raise ConfigError(f"{path}: it is a file; name a results folder, or a folder of them, such as runs")

    def sources(self) -> list[RunSource]:
        """Every run there is now."""
        return [self.source(folder) for folder in self._folders()]

    def source(self, folder: Path) -> RunSource:
        """The run of a folder, with its record or the reason why it has none."""
        try:
            run: RunFile | None = read_run(folder)
        except QuintainError as error:
            problem = UNRECORDED_TEXT if is_unrecorded(folder) else error.message
            problem = "" if has_only_trajectories(folder) else problem
            return RunSource(self._name_of(folder), str(folder), None, problem)
        return RunSource(self._name_of(folder), str(folder), run)

    def folder(self, name: str) -> Path | None:
        """The folder of a run's name; None if there is none."""
        for folder in self._folders():
            if self._name_of(folder) == name:
                return folder
        return None

    def only_run(self) -> str | None:
        """The name of the run whose folder was named alone; None if there may be others."""
        return self._name_of(self.paths[0]) if len(self.paths) == 1 and _is_results(self.paths[0]) else None

    def move(self, folder: Path, name: str | None) -> Path:
        """Rename a results folder, or without a ``name`` move it into the trash beside it; returns where it is then.

        It is moved under the locks of a run. Raises `ConfigError` if a run has them, the folder or the trash is a link,
        this process works within the folder, or the name is none or is taken.
        """
        if name is not None and not (name.isprintable() and _RUN_NAME.fullmatch(name)):
            raise ConfigError(f"{name!r}: a run's name has 1 to 100 visible characters, no /, and no . or space first")
        place = folder.absolute()
        trash = place.parent / ".trash"
        to = trash / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}" / place.name if name is None else place.with_name(name)
        if Path.cwd().is_relative_to(place.resolve()):
            raise ConfigError(f"{place}: quintain view was started in it; start it in another folder, and try again")
        if link := next((path for path in (place, trash) if path.is_symlink()), None):
            raise ConfigError(f"{link}: nothing is moved through a link; move what it leads to, or remove it")
        if is_recording(folder):
            raise ConfigError(f"{folder}: a run of a hosted target is recorded there; wait until it has ended")
        try:
            with exclusive_lock(place, place / ".lock"), exclusive_lock(place, place):
                # An empty folder takes the name, and its lock keeps runs out, until the results take its place.
                to.mkdir(mode=0o700, parents=True)
                with exclusive_lock(to, to):
                    place.rename(to)
        except OSError as error:
            raise ConfigError(f"{folder}: it cannot be moved to {to} ({error.strerror})") from None
        self.paths = tuple(to if path == folder and name is not None else path for path in self.paths)
        return to

    def _folders(self) -> Iterator[Path]:
        seen: set[Path] = set()
        for path in self.paths:
            folders = [path] if _is_results(path) else sorted(_children(path))
            for folder in folders:
                if folder not in seen:
                    seen.add(folder)
                    yield folder

    def _name_of(self, folder: Path) -> str:
        if folder not in self._names:
            plain = folder.resolve().name.encode(errors="replace").decode() or "run"
            taken, number, name = set(self._names.values()), 1, plain
            while name in taken:
                number += 1
                name = f"{plain}~{number}"
            self._names[folder] = name
        return self._names[folder]


def is_unrecorded(folder: Path) -> bool:
    """Whether a folder has the results of a run and no record of it yet."""
    return (folder / RESULTS_FILE_NAME).exists() and not (folder / RUN_FILE_NAME).exists()


def _is_results(folder: Path) -> bool:
    return (folder / RUN_FILE_NAME).exists() or (folder / RESULTS_FILE_NAME).exists() or has_trajectories(folder)


def _children(path: Path) -> list[Path]:
    try:
        return [child for child in path.iterdir() if child.is_dir() and _is_results(child)]
    except OSError:
        return []


log = logging.getLogger(__name__)

#: For how long a page waits for an index before it shows how far it is, in seconds.
PAGE_WAIT_SECONDS = 0.15

#: The bytes of a step: a page that waits for a thread's turn waits for no longer than this takes.
_SERVED_STEP_BYTES = 2_000_000


class IndexKeeper:
    """Indexes folders in the background; `progress` says how far each is."""

    def __init__(self) -> None:
        self._tasks: dict[Path, asyncio.Task[None]] = {}
        self._progress: dict[Path, IndexProgress] = {}
        self._seen: dict[Path, tuple[int, int, int]] = {}
        #: The reason why the index of a folder cannot be written.
        self.problems: dict[Path, str] = {}

    async def ensure(self, folder: Path, *, wait_seconds: float = PAGE_WAIT_SECONDS) -> IndexProgress:
        """Start to index a folder if its results changed, wait for a moment, and return how far the index is."""
        state = await asyncio.to_thread(results_state, folder)
        task = self._tasks.get(folder)
        if (task is None or task.done()) and self._seen.get(folder) != state:
            self._seen[folder] = state
            task = self._tasks[folder] = asyncio.create_task(self._index(folder), name=f"index {folder}")
        if task is not None and not task.done():
            await asyncio.wait([task], timeout=wait_seconds)
        return self._progress.get(folder, IndexProgress(0, max(1, state[0])))

    def progress_of(self, folder: Path) -> IndexProgress | None:
        """How far the index of a folder is; None if it was not looked at."""
        return self._progress.get(folder)

    def forget(self, folder: Path) -> None:
        """The index of this folder does not fit its results: the next look makes it anew."""
        self._seen.pop(folder, None)

    async def close(self) -> None:
        """Stop after the steps that are being done."""
        await cancel_and_wait(*self._tasks.values())

    async def _index(self, folder: Path) -> None:
        try:
            while True:
                progress = await asyncio.to_thread(_step, folder)
                self._progress[folder] = progress
                self.problems.pop(folder, None)
                if progress.is_complete:
                    return
        except QuintainError as error:
            self.problems[folder] = error.message
            log.warning("%s", error.message)


def results_state(folder: Path) -> tuple[int, int, int]:
    """The size, the time of change in nanoseconds and the number of the results file; zeros without one."""
    try:
        stat = (folder / RESULTS_FILE_NAME).stat()
    except OSError:
        return (0, 0, 0)
    return (stat.st_size, stat.st_mtime_ns, stat.st_ino)


def _step(folder: Path) -> IndexProgress:
    try:
        run = read_run(folder)
    except QuintainError:
        run = None
    return update_index_step(folder, run, max_bytes=_SERVED_STEP_BYTES)

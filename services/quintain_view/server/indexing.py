"""Keeps the indexes of the folders that are looked at up to date, each in a thread, a step at a time."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from quintain.errors import QuintainError
from quintain_runner import RESULTS_FILE_NAME, read_run
from quintain_view.index.writer import IndexProgress, update_index_step

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
        tasks = [task for task in self._tasks.values() if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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

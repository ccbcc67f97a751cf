"""Finds results folders, and names them in addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from quintain.errors import ConfigError, QuintainError
from quintain_runner import RESULTS_FILE_NAME, RunFile, read_run
from quintain_view.pages.run_list import RunSource
from quintain_view.reading.trajectories import RUN_FILE_NAME, has_only_trajectories, has_trajectories

#: What pages say of a run that has not written its record yet; they load themselves again.
UNRECORDED_TEXT = (
    f"There are results and no {RUN_FILE_NAME} yet: the run has just begun, or was stopped before it wrote one. "
    "This page shows the run as soon as there is one."
)


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

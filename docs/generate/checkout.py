"""The files of this checkout, without what runs, builds and people left in it."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Set
from fnmatch import fnmatch
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def tracked(*patterns: str) -> list[Path]:
    """Return the files with these patterns that git tracks, sorted; a ``**`` stands for any folders.

    Without git, as in an archive of the sources, those that .gitignore does not name.
    """
    return sorted({path for pattern in patterns for path in REPOSITORY.glob(pattern) if _is_tracked(path)})


def copy_tracked(source: Path, folder: Path) -> Path:
    """Copy what is tracked of a folder of the repository into another one, and return that."""
    for path in tracked(f"{source.relative_to(REPOSITORY)}/**/*"):
        place = folder / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    return folder


def _is_tracked(path: Path) -> bool:
    named = path.relative_to(REPOSITORY)
    if (files := _tracked_files(REPOSITORY)) is not None:
        return str(named) in files and path.is_file()
    return path.is_file() and not any(fnmatch(part, name) for part in named.parts for name in _ignored(REPOSITORY))


@functools.cache
def _tracked_files(folder: Path) -> Set[str] | None:
    """Return the paths that git tracks; None where it knows nothing of this folder."""
    try:
        words = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
        listed = subprocess.check_output(words, cwd=folder, stderr=subprocess.DEVNULL, text=True).split("\0")  # noqa: S603 -- constants
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return set(listed) if ".gitignore" in listed else None


@functools.cache
def _ignored(folder: Path) -> list[str]:
    lines = (folder / ".gitignore").read_text().splitlines()
    return [".git", *(line.strip("/") for line in lines if line)]

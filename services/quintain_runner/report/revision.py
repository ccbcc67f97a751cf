"""What a run was made with: the git revision, and the versions of quintain and Python."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

#: The timeout of a git command, in seconds; without an answer the record has no revision.
_GIT_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Revision:
    """A git commit. ``dirty`` says whether tracked files differ from it; untracked files are ignored."""

    commit: str
    dirty: bool

    def to_wire(self) -> dict[str, object]:
        """The JSON form in ``run.json``."""
        return {"commit": self.commit, "dirty": self.dirty}


def revision_of(folder: Path) -> Revision | None:
    """The git revision of the repository that contains ``folder``; None without a repository or without git."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changed is None else Revision(commit.strip(), bool(changed.strip()))


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of a git command, or None if it fails."""
    # A repository's settings may name programs to run: these options keep git from starting them.
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "--no-optional-locks", *arguments]
    try:
        completed = subprocess.run(  # noqa: S603 -- no shell, and no untrusted argument
            command, capture_output=True, text=True, errors="replace", timeout=_GIT_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return completed.stdout if completed.returncode == 0 else None


def installed_versions() -> dict[str, str]:
    """The versions of quintain, of Python and of the platform."""
    return {"quintain": _quintain_version(), "python": platform.python_version(), "platform": platform.platform()}


def _quintain_version() -> str:
    """The installed version of quintain."""
    try:
        return metadata.version("quintain")
    except metadata.PackageNotFoundError:
        # A checkout that is not installed as a package.
        return "unknown"

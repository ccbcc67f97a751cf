"""Which revision of a repository an evaluation was run from."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

#: A repository that answers no sooner is told nothing of, in seconds.
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit; ``dirty`` where tracked files differ from it. Files that git does not track say nothing."""

    commit: str
    dirty: bool

    def to_wire(self) -> dict[str, object]:
        """As ``run.json`` has it."""
        return {"commit": self.commit, "dirty": self.dirty}


def revision_of(folder: Path) -> Revision | None:
    """The revision of the repository that this folder is in; None where it is in none, or nobody has git."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changed is None else Revision(commit.strip(), bool(changed.strip()))


def _git(folder: Path, *words: str) -> str | None:
    # A repository's own settings may name programs: of them none that these words would start.
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "--no-optional-locks", *words]
    try:
        done = subprocess.run(  # noqa: S603 -- no shell, and nothing of it was written by anybody else
            command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None

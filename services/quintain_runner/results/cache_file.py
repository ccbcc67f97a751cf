"""The cache: the store of answers that all runs of a machine share, where it is, and how old its answers may be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from quintain.errors import ConfigError
from quintain_runner.results.answer_store import AnswerStore, StoreUnusable

#: The most bytes of a cache: beyond them the least recently used answers go.
MAX_CACHE_BYTES: Final = 2 * 1024**3

#: How old answers of the cache may be: a number of minutes, hours or days.
AGE_PATTERN: Final = r"[1-9][0-9]{0,5}[mhd]"

_UNIT_SECONDS: Final = {"m": 60.0, "h": 3_600.0, "d": 86_400.0}

#: File systems of other machines: SQLite's write-ahead log needs memory that all its users share.
_NETWORK_FILE_SYSTEMS: Final = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre"}
_MOUNTS: Final = Path("/proc/self/mounts")


class CacheSetting(NamedTuple):
    """The cache of a run: its file, and how old its answers may be, in seconds; None for any age."""

    path: Path
    max_age_seconds: float | None = None

    @classmethod
    def of(cls, option: str | None, age: str | None, env: Mapping[str, str]) -> CacheSetting | None:
        """Return what ``--cache`` and ``cache`` of the evaluation file say together; None for no cache.

        Raises `ConfigError` for an option that is neither an age nor a file.
        """
        said = age if option is None else option
        if said is None or said == "off":
            return None
        seconds = age_seconds(said)
        if seconds is None and not {".", "/"} & set(said):
            raise ConfigError(
                f"{said!r} is neither off, nor an age such as 30d, 12h or 90m, nor a file, whose name has a dot"
                " or a slash"
            )
        if seconds is None:
            return cls(Path(said).expanduser(), None if age is None else age_seconds(age))
        return cls(default_cache_path(env), seconds)


def age_seconds(text: str) -> float | None:
    """Return an age such as 30d in seconds; None where the text is none."""
    return float(text[:-1]) * _UNIT_SECONDS[text[-1]] if re.fullmatch(AGE_PATTERN, text) else None


def default_cache_path(env: Mapping[str, str]) -> Path:
    """Return the file of this user's cache: in ``XDG_CACHE_HOME``, else in ``~/.cache``."""
    folder = env.get("XDG_CACHE_HOME") or ""
    return (Path(folder) if folder.startswith("/") else Path.home() / ".cache") / "quintain" / "answers.sqlite3"


def open_cache(path: Path) -> AnswerStore:
    """Open the cache, and make it where it is not there. Raises `StoreUnusable`."""
    if (name := network_file_system(path)) is not None:
        raise StoreUnusable(f"{path}: a cache cannot be on a network file system ({name}); name a file of this machine")
    return AnswerStore.open(path)


def network_file_system(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Return the kind of the network file system that a file is on; None where it is on none, or nobody knows."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    found = ("", "")
    for _, point, kind, *_ in (line.split(" ") for line in lines):
        folder = point.replace("\\040", " ")
        if path.absolute().resolve().is_relative_to(folder) and len(folder) >= len(found[0]):
            found = folder, kind
    kind = found[1]
    return kind if kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse.") else None

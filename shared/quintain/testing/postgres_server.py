"""A PostgreSQL server's programs on this machine: found, or installed from Debian's packages."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from quintain.errors import QuintainError
from quintain.testing.commands import run_command
from quintain.testing.rabbitmq_server import services_held_back
from quintain.testing.watcher import Watcher

#: Debian keeps them off the PATH, one folder for each major version.
_PACKAGED = "/usr/lib/postgresql/*/bin"

_UPDATE_SECONDS = 300.0
_INSTALL_SECONDS = 1200.0
_CLUSTER_SETTINGS = Path("/etc/postgresql-common/createcluster.d")


def find_programs(environment: Mapping[str, str], packaged: str = _PACKAGED) -> Path | None:
    """The folder with ``initdb`` and ``postgres``, of the newest version where there are several; or None."""
    folders = [Path(folder) for folder in environment.get("PATH", "").split(os.pathsep) if folder]
    folders += sorted(Path("/").glob(packaged.lstrip("/")), key=_version, reverse=True)
    for folder in folders:
        if all(shutil.which(program, path=str(folder)) for program in ("initdb", "postgres")):
            return (folder / "postgres").resolve().parent  # what is on the PATH may be a link
    return None


def install_programs(environment: Mapping[str, str], say: Callable[[str], None]) -> Path:
    """Install Debian's package, without a cluster and without a service. Raises `QuintainError` where that fails."""
    if shutil.which("apt-get", path=environment.get("PATH")) is None:
        raise QuintainError("a PostgreSQL server is not on this machine, nor apt-get to install it")
    if os.geteuid() != 0:
        raise QuintainError("a PostgreSQL server is not on this machine, and only root may install it")
    say("installing postgresql from the distribution's packages (no cluster of its own is made or started)")
    quiet = {**environment, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ("apt-get", "-q", "-o", "DPkg::Lock::Timeout=120")
    run_command([*apt, "update"], environment=quiet, timeout_seconds=_UPDATE_SECONDS)
    with services_held_back(), no_cluster_made():
        packages: Sequence[str] = ("install", "-y", "--no-install-recommends", "postgresql")
        run_command([*apt, *packages], environment=quiet, timeout_seconds=_INSTALL_SECONDS)
    programs = find_programs(environment)
    if programs is None:
        raise QuintainError("apt-get installed postgresql, but its programs are in none of the known folders")
    return programs


@contextlib.contextmanager
def no_cluster_made(folder: Path = _CLUSTER_SETTINGS) -> Iterator[None]:
    """Debian makes a cluster when its package is installed; a user who wants one later gets it as ever."""
    setting = folder / "quintain-test.conf"
    watcher = Watcher('cat; rm -f "$1"', str(setting))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        setting.write_text("create_main_cluster = false\n", encoding="ascii")
        yield
    finally:
        watcher.finish()


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.parent.name.split(".") if part.isdigit())

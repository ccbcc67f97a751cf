"""Installs Debian packages for tests, one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.servers.cleanup import CleanupProcess
from support.servers.commands import run_command
from support.servers.errors import ServerUnavailable

Report = Callable[[str], None]

_UPDATE_SECONDS = 300.0
_INSTALL_SECONDS = 1200.0


@dataclass(frozen=True, slots=True)
class TemporaryFile:
    """A file that exists only while a package is installed; one that is there already is left as it is."""

    path: Path
    text: str
    mode: int = 0o644


#: Debian starts the services that it installs, on ports that the user's own server may have; this file forbids it.
NO_SERVICE_STARTS = TemporaryFile(Path("/usr/sbin/policy-rc.d"), "#!/bin/sh\nexit 101\n", 0o755)


@dataclass(frozen=True, slots=True)
class DebianPackages:
    """Packages that contain one program: how it is found, and what must hold while they are installed.

    ``find`` takes the environment and returns the program's path, or None where it is not on this machine.
    """

    names: tuple[str, ...]
    find: Callable[[Mapping[str, str]], Path | None]
    while_installing: tuple[TemporaryFile, ...] = field(default=(NO_SERVICE_STARTS,))

    def find_or_install(self, environment: Mapping[str, str], report: Report) -> Path:
        """Return the program's path, after installing it as root where it is missing.

        Raises `ServerUnavailable` where it is missing and cannot be installed.
        """
        with install_lock():  # a program whose installation is under way in another process is not complete
            program = self.find(environment)
            if program is not None:
                return program
            self._install(environment, report)
            program = self.find(environment)
        if program is None:
            raise ServerUnavailable(
                f"apt-get installed {self._list()}, but the program is in none of the known folders"
            )
        return program

    def _install(self, environment: Mapping[str, str], report: Report) -> None:
        if shutil.which("apt-get", path=environment.get("PATH")) is None:
            raise ServerUnavailable(f"{self._list()} is not on this machine, nor apt-get to install it")
        if os.geteuid() != 0:
            raise ServerUnavailable(f"{self._list()} is not on this machine, and only root may install it")
        report(f"installing {self._list()} from the distribution's packages")
        quiet = {**environment, "DEBIAN_FRONTEND": "noninteractive"}
        apt = ("apt-get", "-q", "-o", "DPkg::Lock::Timeout=120")
        run_command([*apt, "update"], environment=quiet, timeout_seconds=_UPDATE_SECONDS)
        with contextlib.ExitStack() as stack:
            for file in self.while_installing:
                stack.enter_context(written(file))
            words = ("install", "-y", "--no-install-recommends", *self.names)
            run_command([*apt, *words], environment=quiet, timeout_seconds=_INSTALL_SECONDS)

    def _list(self) -> str:
        return " and ".join(self.names)


@contextlib.contextmanager
def install_lock() -> Iterator[None]:
    """Hold this environment's lock for installations: parallel test processes install one after the other."""
    with (Path(sys.prefix) / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def written(file: TemporaryFile) -> Iterator[None]:
    """Write the file, and remove it at the end; nothing where it exists already."""
    if file.path.exists():
        yield
        return
    cleanup = CleanupProcess('cat; rm -f "$1"', str(file.path))
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_text(file.text, encoding="ascii")
        file.path.chmod(file.mode)
        yield
    finally:
        cleanup.finish()

"""A ``rabbitmq-server`` on this machine: found, or installed from Debian's packages."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from quintain.errors import BrokerUnavailable
from quintain.testing.commands import run_command
from quintain.testing.watcher import Watcher

#: Where packages put the real scripts; Debian puts only wrappers on the PATH.
_PACKAGED = ("/usr/lib/rabbitmq/bin", "/usr/lib/rabbitmq/lib/*/sbin")

_UPDATE_SECONDS = 300.0
_INSTALL_SECONDS = 1200.0
_POLICY = Path("/usr/sbin/policy-rc.d")


def find_server(environment: Mapping[str, str], packaged: Sequence[str] = _PACKAGED) -> Path | None:
    """The real ``rabbitmq-server`` script, or None.

    Links lead to the real one, which has ``rabbitmq-env`` beside it, or to the wrapper of Debian's package,
    which calls itself for ever where it is called by its own name. The wrapper turns root into the user
    ``rabbitmq``, refuses everybody else, and works in the packaged node's own folders: never the wrapper.
    """
    folders = [Path(folder) for folder in environment.get("PATH", "").split(os.pathsep) if folder]
    for pattern in packaged:
        folders += sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    for folder in folders:
        script = (folder / "rabbitmq-server").resolve()
        if script.name == "rabbitmq-server" and script.with_name("rabbitmq-env").is_file() and script.is_file():
            return script
    return None


def install_server(environment: Mapping[str, str], say: Callable[[str], None]) -> Path:
    """Install Debian's package, its own service left stopped. Raises `BrokerUnavailable` where that fails."""
    if shutil.which("apt-get", path=environment.get("PATH")) is None:
        raise BrokerUnavailable("rabbitmq-server is not on this machine, nor apt-get to install it")
    if os.geteuid() != 0:
        raise BrokerUnavailable("rabbitmq-server is not on this machine, and only root may install it")
    say("installing rabbitmq-server from the distribution's packages (its own service stays stopped)")
    quiet = {**environment, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ("apt-get", "-q", "-o", "DPkg::Lock::Timeout=120")
    run_command([*apt, "update"], environment=quiet, timeout_seconds=_UPDATE_SECONDS)
    with services_held_back():
        packages = ("install", "-y", "--no-install-recommends", "rabbitmq-server")
        run_command([*apt, *packages], environment=quiet, timeout_seconds=_INSTALL_SECONDS)
    server = find_server(environment)
    if server is None:
        raise BrokerUnavailable("apt-get installed rabbitmq-server, but its script is in none of the known folders")
    return server


@contextlib.contextmanager
def services_held_back(policy: Path = _POLICY) -> Iterator[None]:
    """Debian starts what it installs, on the ports that a user's own broker has; its policy file forbids it."""
    if policy.exists():  # the operator's own word on the matter
        yield
        return
    watcher = Watcher('cat; rm -f "$1"', str(policy))
    try:
        policy.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        policy.chmod(0o755)
        yield
    finally:
        watcher.finish()

"""Node.js and npm on this machine: found, or installed from Debian's packages; and packages from npm's registry."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from quintain.errors import QuintainError
from quintain.testing.commands import run_command

#: The oldest that has `fetch`; Debian 12 has this one.
OLDEST_NODE = 18

#: Packages are kept between runs, and go with the environment that the tests run in.
PEERS = Path(sys.prefix) / "peers"

_UPDATE_SECONDS = 300.0
_INSTALL_SECONDS = 600.0


def find_node(environment: Mapping[str, str], say: Callable[[str], None]) -> str:
    """The program ``node``. Raises `QuintainError` where there is none, it is too old, or it cannot be installed."""
    path = environment.get("PATH")
    if shutil.which("node", path=path) is None or shutil.which("npm", path=path) is None:
        _install_node(environment, say)
    node = shutil.which("node", path=path)
    if node is None:
        raise QuintainError("apt-get installed nodejs, but there is no node on the PATH")
    version = run_command([node, "--version"], environment=environment, timeout_seconds=30)
    found = re.match(r"v(\d+)\.", version)
    if found is None or int(found[1]) < OLDEST_NODE:
        raise QuintainError(f"{node} is {version}, and {OLDEST_NODE} is the oldest that will do")
    return node


def npm_package(name: str, version: str, environment: Mapping[str, str], say: Callable[[str], None]) -> Path:
    """The folder ``node_modules`` with this package and what it needs. Raises `QuintainError` where npm fails."""
    folder = PEERS / f"{name.replace('/', '-').lstrip('@')}-{version}"
    modules = folder / "node_modules"
    manifest = modules / name / "package.json"
    if manifest.is_file() and json.loads(manifest.read_text())["version"] == version:
        return modules
    say(f"installing {name}@{version} with npm, into {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    # What is optional are other vendors' binaries, hundreds of megabytes that nobody here starts.
    options = ("--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    words = ["npm", "install", "--prefix", str(folder), f"{name}@{version}", *options]
    run_command(words, environment=environment, timeout_seconds=_INSTALL_SECONDS)
    return modules


def _install_node(environment: Mapping[str, str], say: Callable[[str], None]) -> None:
    if shutil.which("apt-get", path=environment.get("PATH")) is None:
        raise QuintainError("node and npm are not on this machine, nor apt-get to install them")
    if os.geteuid() != 0:
        raise QuintainError("node and npm are not on this machine, and only root may install them")
    say("installing nodejs and npm from the distribution's packages")
    quiet = {**environment, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ("apt-get", "-q", "-o", "DPkg::Lock::Timeout=120")
    run_command([*apt, "update"], environment=quiet, timeout_seconds=_UPDATE_SECONDS)
    packages = ("install", "-y", "--no-install-recommends", "nodejs", "npm")
    run_command([*apt, *packages], environment=quiet, timeout_seconds=_INSTALL_SECONDS)

"""Node.js and npm: found on this machine, or installed from Debian's packages; and packages from npm's registry."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.servers.commands import run_command
from support.servers.errors import ServerUnavailable
from support.servers.packages import DebianPackages, Report, install_lock

#: The oldest that has `fetch`; Debian 12 has this one.
OLDEST_NODE = 18

#: npm packages are kept between runs, in the environment that the tests run in.
PEERS = Path(sys.prefix) / "peers"

_INSTALL_SECONDS = 600.0


def _find_programs(environment: Mapping[str, str]) -> Path | None:
    node, npm = (shutil.which(program, path=environment.get("PATH")) for program in ("node", "npm"))
    return Path(node) if node and npm else None


NODE = DebianPackages(("nodejs", "npm"), _find_programs)


def find_node(environment: Mapping[str, str], report: Report) -> str:
    """Return the program ``node``, installed where it is missing. Raises `ServerUnavailable` where it is too old or
    cannot be installed."""
    node = str(NODE.find_or_install(environment, report))
    version = run_command([node, "--version"], environment=environment, timeout_seconds=30)
    found = re.match(r"v(\d+)\.", version)
    if found is None or int(found[1]) < OLDEST_NODE:
        raise ServerUnavailable(f"{node} is {version}, and {OLDEST_NODE} is the oldest that will do")
    return node


def npm_package(
    name: str,
    version: str,
    environment: Mapping[str, str],
    report: Report,
    *,
    parent: Path = PEERS,
    beside: Sequence[str] = (),
) -> Path:
    """Return the folder ``node_modules`` with this package, what it needs and those ``beside``, below ``parent``.

    Raises `ServerUnavailable` where npm fails.
    """
    folder = parent / f"{name.replace('/', '-').lstrip('@')}-{version}"
    modules = folder / "node_modules"
    manifest = modules / name / "package.json"
    with install_lock():
        if manifest.is_file() and json.loads(manifest.read_text())["version"] == version:
            return modules
        report(f"installing {name}@{version} with npm, into {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        # The optional packages are other vendors' binaries, hundreds of megabytes that no test starts.
        options = ("--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        words = ["npm", "install", "--prefix", str(folder), f"{name}@{version}", *beside, *options]
        run_command(words, environment=environment, timeout_seconds=_INSTALL_SECONDS)
    return modules

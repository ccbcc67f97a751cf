"""Bubblewrap for tests: installed where it is missing, and why this machine has no sandbox."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from pathlib import Path

from quintain.errors import ConfigError
from quintain.programs.sandbox import Confinement, Sandbox
from quintain.settings import environment
from support.servers.errors import ServerUnavailable
from support.servers.packages import DebianPackages


def _find_bwrap(variables: Mapping[str, str]) -> Path | None:
    found = shutil.which("bwrap", path=variables.get("PATH"))
    return None if found is None else Path(found)


BUBBLEWRAP = DebianPackages(("bubblewrap",), _find_bwrap)


@functools.cache
def sandbox_refusal() -> str | None:
    """Why Quintain refuses a sandbox on this machine; None if it makes one."""
    try:
        BUBBLEWRAP.find_or_install(environment(), print)
    except ServerUnavailable as error:
        print(error)
    try:
        Confinement(sandbox=Sandbox()).check()
    except ConfigError as error:
        return error.message
    return None

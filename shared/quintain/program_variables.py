"""Finds the environment variables that a script reads, and those of them that it will not get."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from quintain.program import Program, script_of

#: Reading a variable, in Python, JavaScript and Ruby.
_READING = re.compile(
    r"""(?:\bos\.environ\[|\bos\.environ\.get\(|\bgetenv\(|\bprocess\.env\[|\bENV\[|\bENV\.fetch\()\s*["'](\w+)["']"""
    r"""|\bprocess\.env\.(\w+)"""
)

#: How much of a script is looked at, in bytes.
_MAX_SCRIPT_BYTES = 1024 * 1024


def script_path(program: Program) -> Path | None:
    """The script that a program runs: the argument of its interpreter; None if it runs none."""
    name, *arguments = program.argv
    script = script_of(name, arguments)
    return None if script is None else (program.cwd or Path.cwd()) / script


def withheld_variables(script: Path, given: Collection[str], env: Mapping[str, str]) -> list[str]:
    """Return the variables that a script reads, that ``env`` has, and that are not among ``given``."""
    try:
        with script.open("rb") as file:
            text = file.read(_MAX_SCRIPT_BYTES).decode(errors="replace")
    except OSError:
        return []
    read = {found[1] or found[2] for found in _READING.finditer(text)}
    return sorted(name for name in read & env.keys() if name not in given)

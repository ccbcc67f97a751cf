"""A program that a configuration names: its command, environment and rights, and why it cannot be started."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quintain.program_confinement import UNCONFINED, Confinement

#: Interpreters, without version numbers; their first argument with one of the suffixes is the script to run.
_INTERPRETERS = frozenset(
    {"python", "pypy", "uv", "node", "deno", "bun", "tsx", "ts-node", "sh", "bash", "dash", "zsh", "ruby", "perl"}
)
_SCRIPT_SUFFIXES = (".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".rb", ".pl")


class ProgramError(Exception):
    """Base class: a program did not run to its end."""


class CannotStart(ProgramError):
    """The program cannot be started; not a subclass of this error if memory, processes or open files are exhausted."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class ProgramNotFound(CannotStart):
    """The program or the working directory does not exist."""


class ProgramNotExecutable(CannotStart):
    """The file is not executable."""


class ProgramTimedOut(ProgramError):
    """The program did not end in time, and was killed."""


class TooMuchOutput(ProgramError):
    """The program exceeded its stdout limit, and was killed."""


_ERRORS: Mapping[int | None, type[CannotStart]] = {
    errno.ENOENT: ProgramNotFound,
    errno.ENOTDIR: ProgramNotFound,
    errno.EACCES: ProgramNotExecutable,
    errno.EPERM: ProgramNotExecutable,
    errno.ENOEXEC: ProgramNotExecutable,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to start; ``env`` is its whole environment, ``cwd`` defaults to this process's working directory."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None = None
    confinement: Confinement = UNCONFINED


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The result of a program; a negative exit code is the number of the signal that ended it."""

    exit_code: int
    stdout: bytes
    stderr: bytes


def start_error(number: int | None, reason: str) -> CannotStart:
    """Return the error of a program that could not be started, by the number of the system's error."""
    return _ERRORS.get(number, CannotStart)(reason)


def executable_of(program: str, env: Mapping[str, str]) -> str:
    """Return the program to start: ``python`` is this interpreter if the PATH of ``env`` has none, as on Debian."""
    if program == "python" and shutil.which(program, path=env.get("PATH", os.defpath)) is None:
        return sys.executable
    return program


def start_problem(program: Program) -> str | None:
    """Why a program cannot be started, as far as that can be found out without starting it; None if nothing is found.

    It checks that the program is executable, and that the script of an interpreter exists.
    """
    name, *arguments = program.argv
    folder = program.cwd or Path.cwd()
    if not folder.is_dir():
        return f"its working directory {folder} does not exist"
    executable = executable_of(name, program.env)
    if os.sep in executable:
        path = folder / executable
        if not path.is_file():
            return f"its command {name!r}: there is no program {path}; check the path"
        if not os.access(path, os.X_OK):
            return f"its command {name!r}: {path} is not executable; chmod +x it, or name its interpreter first"
    elif shutil.which(executable, path=program.env.get("PATH", os.defpath)) is None:
        return f"its command {name!r} is not on PATH; install it, or give its path"
    script = script_of(name, arguments)
    if script is not None and not (folder / script).exists():
        return f"its command: there is no file {folder / script}"
    return None


def check_rights(program: Program) -> None:
    """Check that this machine can confine a program as it says, and that the program then reaches what it runs.

    Blocks for some milliseconds. Raises `ConfigError`.
    """
    name, *arguments = program.argv
    folder = program.cwd or Path.cwd()
    files = []
    if (
        executable := shutil.which(executable_of(name, program.env), path=program.env.get("PATH", os.defpath))
    ) is not None:
        files = [folder / executable, (folder / executable).resolve()]
    if (script := script_of(name, arguments)) is not None:
        files.append(folder / script)
    program.confinement.check(files, [folder, *program.confinement.write], program.env)


def script_of(program: str, arguments: Sequence[str]) -> str | None:
    """The script that an interpreter runs; None if the program is not an interpreter, or runs code or a module."""
    if Path(program).name.rstrip(".0123456789") not in _INTERPRETERS:
        return None
    for argument in arguments:
        if argument in {"-c", "-e", "-m"}:
            return None
        if not argument.startswith("-") and argument.endswith(_SCRIPT_SUFFIXES):
            return argument
    return None

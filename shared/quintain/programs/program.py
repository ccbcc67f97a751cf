"""A program that a configuration names: its command, environment, rights and pipes, and why it cannot be started.

Variables are passed on by an allowlist, because nobody knows the names of all secrets of a machine.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

from quintain.contracts.credentials import mask_secrets
from quintain.errors import ConfigError
from quintain.programs.sandbox import UNCONFINED, Confinement

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


#: The marks of a program and of those that it runs in, each with a full stop at its end.
MARK_VARIABLE: Final = "QUINTAIN_PROGRAM"

#: What a program needs to be found, to find its files and libraries, and to reach the network.
ALLOWED_VARIABLES: Final = frozenset(
    {
        "PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "NODE_PATH", "TRACEPARENT",
        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
        MARK_VARIABLE, "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
    }
)  # fmt: skip

#: The beginnings of more names: the locale's categories.
ALLOWED_PREFIXES: Final = ("LC_",)

#: Names the variables of a program that are masked in what it writes to stderr and raises, with commas between them.
SECRET_NAMES_VARIABLE: Final = "QUINTAIN_SECRET_NAMES"  # noqa: S105 -- the name of a variable

#: Shorter values are no secrets, but words of every text; those that a configuration's ``env`` takes from elsewhere are
#: longer.
_MIN_SECRET_LENGTH, _MIN_REFERENCED_LENGTH = 4, 8

#: Quintain's own secrets: no program gets them, also where a configuration names them.
REFUSED_VARIABLES: Final = frozenset(
    {"QUINTAIN_ADMIN_TOKEN", "QUINTAIN_LEDGER_URL", "QUINTAIN_BROKER_URL", "QUINTAIN_SESSION_TOKEN"}
)


def program_environment(
    env: Mapping[str, str], *, env_from: Iterable[str] = (), own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of a program.

    It has the allowed variables of ``env``, those whose names ``env_from`` lists, and the program's ``own``; and it
    names those that are secrets: see `secrets_of`. Raises
    `ConfigError` if a listed variable is not set, or is a secret of Quintain itself.
    """
    names = list(env_from)
    for name in names:
        if name.removesuffix("_FILE") in REFUSED_VARIABLES:
            raise ConfigError(f"env_from: {name} is a secret of Quintain itself, which no program gets")
        if name not in env:
            raise ConfigError(f"env_from: {name} is not set; export it, or leave it out")
    allowed = {
        name: value
        for name, value in env.items()
        if name in ALLOWED_VARIABLES or name.startswith(ALLOWED_PREFIXES) or name in names
    }
    elsewhere = [value for name, value in env.items() if _is_elsewhere(name, value)]
    secret = [name for name in names if name not in ALLOWED_VARIABLES]
    secret += [name for name, value in (own or {}).items() if any(each in value for each in elsewhere)]
    marked = {SECRET_NAMES_VARIABLE: ",".join(secret)} if secret else {}
    return {**allowed, **(own or {}), **marked}


def _is_elsewhere(name: str, value: str) -> bool:
    """Whether a variable may be a secret to which a program's own ``env`` refers."""
    is_allowed = name in ALLOWED_VARIABLES or name.startswith(ALLOWED_PREFIXES)
    return not is_allowed and len(value) >= _MIN_REFERENCED_LENGTH and not value.startswith("/")


def secrets_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets in the environment of a program, for `quintain.contracts.credentials.mask_secrets`."""
    values = (env.get(name, "") for name in env.get(SECRET_NAMES_VARIABLE, "").split(","))
    return tuple(value for value in values if len(value) >= _MIN_SECRET_LENGTH)


class LimitedOutput(asyncio.Protocol):
    """Keeps the first ``limit`` bytes of a pipe, and closes it when more arrive.

    The future ``overflowed`` is done when the limit is exceeded, ``ended`` when the pipe is closed. ``on_data`` is
    called whenever some have come.
    """

    def __init__(self, limit: int, on_data: Callable[[], object] = lambda: None) -> None:
        self._limit, self._on_data = limit, on_data
        self._transport: asyncio.BaseTransport | None = None
        self.data = bytearray()
        loop = asyncio.get_running_loop()
        self.overflowed: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implements `asyncio.Protocol.connection_made`."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Implements `asyncio.Protocol.data_received`."""
        self._on_data()
        fits = self._limit - len(self.data)
        self.data += data[:fits]
        if len(data) > fits and self._transport is not None and not self.overflowed.done():
            self.overflowed.set_result(None)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Implements `asyncio.Protocol.connection_lost`."""
        if not self.ended.done():
            self.ended.set_result(None)


class OutputTail(LimitedOutput):
    """Keeps the last ``limit`` bytes of a pipe."""

    def text(self, env: Mapping[str, str]) -> str:
        """Return what was kept, with the secrets masked of a program with this environment."""
        return mask_secrets(self.data.decode(errors="replace").strip(), secrets_of(env))

    def data_received(self, data: bytes) -> None:
        """Implements `asyncio.Protocol.data_received`."""
        self._on_data()
        self.data += data
        del self.data[: -self._limit]


@asynccontextmanager
async def read_pipe(protocol: asyncio.Protocol) -> AsyncIterator[FileIO]:
    """Open a pipe that this protocol reads; yields the program's end, to be closed here once the program has started.

    asyncio's own subprocess pipes do not report the program's end while one of its children holds them open.
    """
    reading, writing = os.pipe()
    with FileIO(writing, "wb") as program_end:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: protocol, FileIO(reading, "rb"))
        try:
            yield program_end
        finally:
            transport.close()


@asynccontextmanager
async def write_pipe() -> AsyncIterator[tuple[FileIO, asyncio.WriteTransport]]:
    """Open a pipe to write to; yields the program's end, to be closed once the program has started, and the writer."""
    reading, writing = os.pipe()
    with FileIO(reading, "rb") as program_end:
        loop = asyncio.get_running_loop()
        writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, FileIO(writing, "wb"))
        try:
            yield program_end, writer
        finally:
            # Abort instead of close: data that is still buffered is for a process that has ended.
            if writer.get_write_buffer_size() or not writer.is_closing():
                writer.abort()


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
    """The result of a program; a negative exit code is the number of the signal that ended it.

    Secrets are masked in ``stderr``.
    """

    exit_code: int
    stdout: bytes
    stderr: str


def describe_end(exit_code: int | None, stderr: str) -> str:
    """Say how a program ended, and what it wrote to stderr: ``exit code 3: no such file``.

    A negative code is the number of a signal; None is a program that runs on, and has closed its stdout.
    """
    how = f"exit code {exit_code}" if exit_code is None or exit_code >= 0 else f"killed by signal {-exit_code}"
    how = "it closed its stdout" if exit_code is None else how
    return f"{how}: {stderr}" if stderr else f"{how}, and it wrote nothing on stderr"


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

"""Starting programs: each in a session of its own, bounded in time and output, and ended with its whole process group.

`run_program` runs a program to its end; `start_process` and `end_process` are for long-running programs, with the pipes
of `read_pipe` and `write_pipe`. They raise the errors of this module, which a service translates into its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO

#: How much of the end of stderr `run_program` keeps, in bytes.
STDERR_BYTES = 4096

#: How long to wait for the end of a pipe after the process group was killed, in seconds: only a process that has left
#: the group can still hold the pipe open.
DRAIN_SECONDS = 1.0

#: Interpreters, without version numbers; their first argument with one of the suffixes is the script to run.
_INTERPRETERS = frozenset(
    {"python", "pypy", "uv", "node", "deno", "bun", "tsx", "ts-node", "sh", "bash", "dash", "zsh", "ruby", "perl"}
)
_SCRIPT_SUFFIXES = (".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".rb", ".pl")

#: A standard stream of a program: a file, a pipe's end, a file descriptor, `asyncio.subprocess.DEVNULL` or the like;
#: None inherits this process's own.
Stream = IO[bytes] | int | None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The result of a program; a negative exit code is the number of the signal that ended it."""

    exit_code: int
    stdout: bytes
    stderr: bytes


async def run_program(
    program: Program, *, stdin: bytes = b"", stdout_limit: int, timeout_seconds: float | None = None
) -> Finished:
    """Run a program to its end; ``stdout_limit`` is in bytes, and the last `STDERR_BYTES` of stderr are kept.

    No process of the process group survives, whatever the outcome. Raises `CannotStart`, `ProgramTimedOut` and
    `TooMuchOutput`.

        finished = await run_program(Program(argv=["sort"], env={}), stdin=b"b\\na\\n", stdout_limit=1000)
    """
    output, errors = LimitedOutput(stdout_limit), OutputTail(STDERR_BYTES)
    async with write_pipe() as (stdin_end, writer), read_pipe(output) as stdout_end, read_pipe(errors) as stderr_end:
        writer.write(stdin)
        writer.close()
        try:
            async with asyncio.timeout(timeout_seconds):
                with stdin_end, stdout_end, stderr_end:
                    process = await start_process(program, stdin=stdin_end, stdout=stdout_end, stderr=stderr_end)
                exit_code = await _exit_code(process, output.overflowed)
        except TimeoutError:
            raise ProgramTimedOut from None
        await asyncio.wait((output.ended, errors.ended), timeout=DRAIN_SECONDS)
    if output.overflowed.done():
        raise TooMuchOutput
    return Finished(exit_code=exit_code, stdout=bytes(output.data), stderr=bytes(errors.data))


async def start_process(
    program: Program,
    *,
    stdin: Stream = DEVNULL,
    stdout: Stream = DEVNULL,
    stderr: Stream = None,
    pass_fds: Collection[int] = (),
) -> Process:
    """Start a program, which `end_process` ends; a cancellation before this returns kills its process group.

    Raises `CannotStart`. The caller must close its own copies of the pipe ends passed here, or readers do not see the
    end of the program's output.
    """
    name, *arguments = program.argv
    creating = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            executable_of(name, program.env),
            *arguments,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=program.cwd,
            env=dict(program.env),
            pass_fds=pass_fds,
            start_new_session=True,
        )
    )
    try:
        # asyncio kills a process whose creation is cancelled, but not the children that it has started by then.
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        # A callback, because a second cancellation would end the wait below before the process exists.
        creating.add_done_callback(_kill_created)
        await asyncio.wait((creating,))
        raise
    except OSError as error:
        kind = _ERRORS.get(error.errno, CannotStart)
        raise kind(error.strerror or str(error)) from None


async def end_process(process: Process, grace_seconds: float = 0) -> bool:
    """Wait ``grace_seconds`` for a process of `start_process` to end, then kill what is left of its process group.

    Returns whether the process ended by itself. Request its end first: by a signal, or by closing its stdin.
    """
    try:
        async with asyncio.timeout(grace_seconds):
            await process.wait()
    except TimeoutError:
        return False
    else:
        return True
    finally:
        _kill_group(process)
        await process.wait()


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
    script = _script_of(name, arguments)
    if script is not None and not (folder / script).exists():
        return f"its command: there is no file {folder / script}"
    return None


def _script_of(program: str, arguments: Sequence[str]) -> str | None:
    """The script that an interpreter runs; None if the program is not an interpreter, or runs code or a module."""
    if Path(program).name.rstrip(".0123456789") not in _INTERPRETERS:
        return None
    for argument in arguments:
        if argument in {"-c", "-e", "-m"}:
            return None
        if not argument.startswith("-") and argument.endswith(_SCRIPT_SUFFIXES):
            return argument
    return None


class LimitedOutput(asyncio.Protocol):
    """Keeps the first ``limit`` bytes of a pipe, and closes it when more arrive.

    The future ``overflowed`` is done when the limit is exceeded, ``ended`` when the pipe is closed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
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

    def data_received(self, data: bytes) -> None:
        """Implements `asyncio.Protocol.data_received`."""
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


def _kill_created(creating: asyncio.Future[Process]) -> None:
    if not creating.cancelled() and creating.exception() is None:
        _kill_group(creating.result())


async def _exit_code(process: Process, overflowed: asyncio.Future[None]) -> int:
    exiting = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait((exiting, overflowed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Also if the program has ended: processes that it left behind would hold its pipes open.
        _kill_group(process)
        await exiting
    return exiting.result()


def _kill_group(process: Process) -> None:
    # The program leads its process group, whose id thus equals its pid; the group may have ended already.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)

"""Starts programs, each in a session of its own, bounded in time and output, and ends them with all their processes.

`run_program` runs a program to its end, `running_program` is for one that stays running, and `run_to_file` blocks: they
are for programs that a configuration names. `start_process` and `end_process` are for this package's own services.

Each program has a variable that its processes inherit, and Linux shows the environments of processes below ``/proc``:
so those are found that left their process group with ``setsid``. Elsewhere nothing is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from quintain.programs.program import (
    MARK_VARIABLE,
    Finished,
    LimitedOutput,
    OutputTail,
    Program,
    ProgramTimedOut,
    TooMuchOutput,
    executable_of,
    read_pipe,
    start_error,
    write_pipe,
)
from quintain.programs.sandbox_port import SandboxPort
from quintain.runtime.concurrency import IdleLimit

#: How long to wait for processes that are just starting, in seconds; see `_has_no_environment_yet`.
_STARTING_SECONDS = 0.5

#: The place of a process's start among the fields after its name in ``/proc/PID/stat``, and how many of its units are
#: a second.
_START_FIELD = 19
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

_READ_BYTES = 131_072

#: How much of a command line is told, in characters.
_COMMAND_CHARACTERS = 80


class ProcessMark:
    """A mark of one program: `variables` are for its environment, and `kill` ends all that inherited them.

    With ``inherited`` it is the mark that this process was started with. Raises `KeyError` where it has none.
    """

    def __init__(self, env: Mapping[str, str], *, inherited: bool = False) -> None:
        # A program may be Quintain itself, whose programs then have both marks.
        marks = env[MARK_VARIABLE] if inherited else f"{env.get(MARK_VARIABLE, '')}{secrets.token_hex(12)}."
        self.variables = {MARK_VARIABLE: marks}
        self._own = marks.split(".")[-2].encode() + b"."
        self._inherited = inherited
        self._made = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0.0

    def find(self) -> set[int]:
        """Return the processes with this mark; with ``inherited`` also this process's children without it."""
        return self._find()[0]

    def kill(self, spared: Collection[int] = ()) -> list[str]:
        """Kill all processes with this mark: they, and those that they start meanwhile, are ended or ending.

        Returns their command lines. This process and the ``spared`` ones are left alone.
        """
        killed: set[int] = set()
        commands: list[str] = []
        deadline = time.monotonic() + _STARTING_SECONDS
        while True:
            found, starting = self._find()
            found -= {os.getpid(), *spared}
            for pid in found - killed:
                words = (_read(f"/proc/{pid}/cmdline") or b"").decode(errors="replace").split("\0")
                commands.append(" ".join(words).strip()[:_COMMAND_CHARACTERS] or str(pid))
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            # A killed process starts no others, so only the new ones may have.
            if found <= killed and (not starting or time.monotonic() > deadline):
                return commands
            killed |= found
            if starting:
                time.sleep(0.001)

    def _find(self) -> tuple[set[int], bool]:
        """Return the marked processes, and whether there is one of which that is not known yet."""
        found = _children() if self._inherited else set()
        starting = False
        for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():  # noqa: PTH112, PTH208 -- Path is slow
            if not name.isdigit():
                continue
            environment = _read(f"/proc/{name}/environ")
            if environment is None:
                continue
            if self._own in environment:
                found.add(int(name))
            elif not environment:
                starting = starting or self._has_no_environment_yet(name)
        return found, starting

    def _has_no_environment_yet(self, name: str) -> bool:
        """Whether a process without an environment may get one: it began after this mark, and is no zombie.

        While a process replaces its program (``execve``), its environment is empty for a moment.
        """
        try:
            Path(f"/proc/{name}/exe").readlink()
        except OSError:
            return False
        stat = (_read(f"/proc/{name}/stat") or b"").rpartition(b")")[2].split()
        return len(stat) > _START_FIELD and int(stat[_START_FIELD]) / _TICKS_PER_SECOND >= self._made - 1


#: Linux: a process becomes the parent of those of its descendants whose own parent has ended.
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of its descendants that are left without one; elsewhere than on Linux do nothing.

    So a mark that it inherited also finds those that left their session and their environment.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Take the exit codes of all children that have ended, so that none of them stays a zombie.

    It takes those of the program's own `subprocess.Popen` too: call it where nobody waits for one.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _children() -> set[int]:
    """The running children of this process, whatever their environment."""
    listed = [_read(f"{thread}/children") or b"" for thread in Path("/proc/self/task").glob("*")]
    return {int(pid) for pids in listed for pid in pids.split() if _is_running(int(pid))}


def _is_running(pid: int) -> bool:
    """Whether a process is no zombie."""
    return b") Z " not in (_read(f"/proc/{pid}/stat") or b") Z ")


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal, as by SIGSTOP, and does not run until it is continued.

    One that a debugger holds is not stopped in this sense. Elsewhere than on Linux no process is.
    """
    return b") T " in (_read(f"/proc/{pid}/stat") or b"")


def _read(path: str) -> bytes | None:
    """The beginning of a small file; None if the process has ended, or is another user's."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(descriptor, _READ_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)


#: How much of the end of stderr `run_program` keeps, in bytes.
STDERR_BYTES = 4096

#: How long to wait for the end of a pipe after the program was ended, in seconds.
DRAIN_SECONDS = 1.0

#: A standard stream of a program: a file, a pipe's end, a file descriptor, `asyncio.subprocess.DEVNULL` or the like;
#: None inherits this process's own.
Stream = IO[bytes] | int | None


async def run_program(
    program: Program,
    *,
    stdin: bytes = b"",
    stdout_limit: int,
    timeout_seconds: float | None = None,
    idle_seconds: float | None = None,
) -> Finished:
    """Run a program to its end; ``stdout_limit`` is in bytes, and the last `STDERR_BYTES` of stderr are kept.

    No process that it started survives, whatever the outcome; `docs/operate.md` says what can escape. Raises
    `CannotStart`, `ProgramTimedOut`, also where it has written nothing for ``idle_seconds``, and `TooMuchOutput`.

        finished = await run_program(Program(argv=["sort"], env={}), stdin=b"b\\na\\n", stdout_limit=1000)
    """
    idle = IdleLimit(idle_seconds)
    output, errors = LimitedOutput(stdout_limit, idle.touch), OutputTail(STDERR_BYTES, idle.touch)
    async with write_pipe() as (stdin_end, writer), read_pipe(output) as stdout_end, read_pipe(errors) as stderr_end:
        writer.write(stdin)
        writer.close()
        try:
            async with (
                asyncio.timeout(timeout_seconds),
                idle.watch(),
                running_program(program, stdin=stdin_end, stdout=stdout_end, stderr=stderr_end) as process,
            ):
                exit_code = await _exit_code(process, output.overflowed)
        except TimeoutError:
            raise ProgramTimedOut from None
        await asyncio.wait((output.ended, errors.ended), timeout=DRAIN_SECONDS)
    if output.overflowed.done():
        raise TooMuchOutput
    return Finished(exit_code=exit_code, stdout=bytes(output.data), stderr=errors.text(program.env))


@asynccontextmanager
async def running_program(
    program: Program, *, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]
) -> AsyncIterator[Process]:
    """Start a program, and kill it and all processes that it started at the end of the block.

    The streams are closed here once the program has them. Raises `CannotStart`.
    """
    mark = ProcessMark(program.env)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(mark.kill)
        port = stack.enter_context(SandboxPort(program.confinement.gateway)) if program.confinement.sandbox else None
        with stdin, stdout, stderr:
            process = await start_process(
                _confined(program, mark, port),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=() if port is None else (port.program_fd,),
                mark=mark,
            )
        stack.push_async_callback(end_process, process)
        if port is not None:
            await stack.enter_async_context(port.opened())
        yield process


def run_to_file(program: Program, *, stdout: IO[bytes], stderr: IO[bytes]) -> int:
    """Run a program to its end without input, and return its exit code. Blocks. Raises `CannotStart`."""
    mark = ProcessMark(program.env)
    with contextlib.ExitStack() as stack:
        stack.callback(mark.kill)
        port = stack.enter_context(SandboxPort(None)) if program.confinement.sandbox else None
        confined = _confined(program, mark, port)
        try:
            process = subprocess.Popen(  # noqa: S603 -- the operator's own program
                confined.argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=program.cwd,
                env=confined.env,
                pass_fds=() if port is None else (port.program_fd,),
                start_new_session=True,
                **program.confinement.user_options(),
            )
        except OSError as error:
            raise start_error(error.errno, error.strerror or str(error)) from None
        with process:
            try:
                if port is not None:
                    port.wait_until_started()
                return process.wait()
            finally:
                _kill_group(process.pid)


async def start_process(
    program: Program,
    *,
    stdin: Stream = DEVNULL,
    stdout: Stream = DEVNULL,
    stderr: Stream = None,
    pass_fds: Collection[int] = (),
    mark: ProcessMark | None = None,
) -> Process:
    """Start a program, which `end_process` ends; a cancellation before this returns kills its process group.

    The processes with the ``mark`` are killed, too. Raises `CannotStart`. The caller must close its own copies of the
    pipe ends passed here, or readers do not see the end of the program's output.
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
            **program.confinement.user_options(),
        )
    )

    try:
        # asyncio kills a process whose creation is cancelled, but not the children that it has started by then.
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        # A task of its own, because a second cancellation would end the wait below before the process exists.
        await asyncio.wait((asyncio.ensure_future(_end_created(creating, mark)),))
        raise
    except OSError as error:
        raise start_error(error.errno, error.strerror or str(error)) from None


async def _end_created(creating: asyncio.Future[Process], mark: ProcessMark | None) -> None:
    await asyncio.wait((creating,))
    if creating.cancelled() or creating.exception() is not None:
        return
    process = creating.result()
    _kill_group(process.pid)
    if mark is not None:
        mark.kill()
    # A loop that ends before it has heard of the end of its process leaves it to nobody.
    await process.wait()


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
        _kill_group(process.pid)
        await process.wait()


def _confined(program: Program, mark: ProcessMark, port: SandboxPort | None) -> Program:
    """The program as it is started: marked, with another user's environment, and in its sandbox."""
    name, *arguments = program.argv
    env = {**mark.variables, **program.confinement.environment(program.env)}
    env |= mark.variables
    wrapper = () if port is None else program.confinement.wrapper(program.cwd, env, port.program_fd)
    return replace(program, argv=[*wrapper, executable_of(name, env), *arguments], env=env)


async def _exit_code(process: Process, overflowed: asyncio.Future[None]) -> int:
    exiting = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait((exiting, overflowed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Also if the program has ended: processes that it left behind would hold its pipes open.
        _kill_group(process.pid)
        await exiting
    return exiting.result()


def _kill_group(leader: int) -> None:
    # The program leads its process group, whose id thus equals its pid; the group may have ended already.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)

"""Starting programs: each in a session of its own, bounded in time and output, and ended with all its processes.

`run_program` runs a program to its end, and `start_program` starts one that stays running: both are for programs that a
configuration names. `start_process` and `end_process` are for this package's own services. They raise the errors of
`quintain.program`, which a service translates into its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Collection
from typing import IO

from quintain.process_pipes import LimitedOutput, OutputTail, read_pipe, write_pipe
from quintain.program import (
    Finished,
    Program,
    ProgramTimedOut,
    TooMuchOutput,
    executable_of,
    start_error,
)
from quintain.supervised_process import SupervisedProcess, start_program

#: How much of the end of stderr `run_program` keeps, in bytes.
STDERR_BYTES = 4096

#: How long to wait for the end of a pipe after the program was ended, in seconds.
DRAIN_SECONDS = 1.0

#: A standard stream of a program: a file, a pipe's end, a file descriptor, `asyncio.subprocess.DEVNULL` or the like;
#: None inherits this process's own.
Stream = IO[bytes] | int | None


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
                    process = await start_program(program, stdin=stdin_end, stdout=stdout_end, stderr=stderr_end)
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
        raise start_error(error.errno, error.strerror or str(error)) from None


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


def _kill_created(creating: asyncio.Future[Process]) -> None:
    if not creating.cancelled() and creating.exception() is None:
        _kill_group(creating.result())


async def _exit_code(process: SupervisedProcess, overflowed: asyncio.Future[None]) -> int:
    exiting = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait((exiting, overflowed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await process.end()
        await exiting
    return exiting.result()


def _kill_group(process: Process) -> None:
    # The program leads its process group, whose id thus equals its pid; the group may have ended already.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)

"""Starts graders' commands in process groups of their own: one for each answer, or a pool that is kept running."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from quintain.contracts.credentials import mask_tokens
from quintain.programs.processes import DRAIN_SECONDS, STDERR_BYTES, run_program, running_program
from quintain.programs.program import (
    CannotStart,
    OutputTail,
    Program,
    ProgramTimedOut,
    TooMuchOutput,
    read_pipe,
    write_pipe,
)
from quintain.programs.sandbox import UNCONFINED, Confinement
from quintain_runner.graders.verdict import GraderError

#: The most bytes that a grader may print on stdout.
STDOUT_LIMIT = 8 * 1024 * 1024

#: The most characters of a crashed grader's stderr that its error shows.
MAX_STDERR_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderCommand:
    """The command of a grader: its arguments, working folder, environment and timeout in seconds.

    ``files_folder`` is where files for it are written, which its confinement lets it read.
    """

    argv: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]
    timeout_seconds: float
    confinement: Confinement = UNCONFINED
    files_folder: Path | None = None

    @property
    def program(self) -> Program:
        """The command as a program to start."""
        return Program(argv=self.argv, cwd=self.folder, env=self.env, confinement=self.confinement)


async def run_grader(command: GraderCommand, stdin: bytes) -> bytes:
    """Run a grader until it ends and return what it printed on stdout.

    Raises `GraderError` if it cannot be started, crashes, prints more than `STDOUT_LIMIT`, or exceeds its timeout. In
    every case, also on cancellation, its whole process group is killed.
    """
    try:
        finished = await run_program(
            command.program, stdin=stdin, stdout_limit=STDOUT_LIMIT, timeout_seconds=command.timeout_seconds
        )
    except CannotStart as error:
        raise cannot_start(command, error) from None
    except ProgramTimedOut:
        raise GraderError(timeout_message(command.timeout_seconds)) from None
    except TooMuchOutput:
        raise GraderError(
            f"It printed more than {STDOUT_LIMIT // 1024**2} MiB on stdout; print the verdict alone"
        ) from None
    if finished.exit_code != 0:
        raise GraderError(crash_message(finished.exit_code, finished.stderr))
    return finished.stdout


def cannot_start(command: GraderCommand, error: CannotStart) -> GraderError:
    """The error of a grader whose program cannot be started."""
    return GraderError(
        f"Its command {command.argv[0]!r} cannot be started in {command.folder} ({error.reason}); check the path, and "
        "that it may be executed"
    )


def timeout_message(timeout_seconds: float) -> str:
    """The message about a grader that exceeded its timeout, in seconds."""
    return (
        f"It hung past its timeout of {timeout_seconds:g} s and was killed; raise its timeout_seconds, or find out "
        "what it waits for"
    )


def crash_message(exit_code: int, stderr: bytes) -> str:
    """The message about a crashed grader: its exit code or signal, and the end of its stderr with tokens masked."""
    how = f"exit code {exit_code}" if exit_code > 0 else f"killed by signal {-exit_code}"
    last = mask_tokens(stderr.decode(errors="replace")).strip()[-MAX_STDERR_CHARACTERS:]
    return f"It crashed ({how}): {last}" if last else f"It crashed ({how}) and wrote nothing on stderr"


class ProcessEnded(GraderError):
    """The process ended with exit code 0 before it replied."""


class GraderProcess:
    """A running grader process, in its own process group. Created by `start`; `stop` kills the whole group."""

    def __init__(self, command: GraderCommand) -> None:
        self._command = command
        self._stack = contextlib.AsyncExitStack()
        self._errors = OutputTail(STDERR_BYTES)
        self._next_line: asyncio.Future[bytes]

    @classmethod
    async def start(cls, command: GraderCommand) -> Self:
        """Start a process. Raises `GraderError` if it cannot be process."""
        process = cls(command)
        try:
            await process._start()
        except BaseException:
            await process.stop()
            raise
        return process

    @property
    def is_usable(self) -> bool:
        """Whether the process can take a line: it is running and has printed nothing that was not requested."""
        return not self._next_line.done()

    async def request(self, line: bytes) -> bytes:
        """Send one line and return the reply line.

        Raises `GraderError` if the process crashes, exceeds the timeout, or replies with more than `STDOUT_LIMIT`.
        After an error or a cancellation the process must be stopped.
        """
        self._writer.write(line + b"\n")
        try:
            async with asyncio.timeout(self._command.timeout_seconds):
                reply = await asyncio.shield(self._next_line)
        except TimeoutError:
            raise GraderError(timeout_message(self._command.timeout_seconds)) from None
        except ValueError:
            raise GraderError(f"It printed a line of more than {STDOUT_LIMIT // 1024**2} MiB") from None
        if not reply.endswith(b"\n"):
            raise await self._read_failure()
        self._next_line = asyncio.ensure_future(self._reader.readline())
        return reply

    async def stop(self) -> None:
        """Kill the process and every process it started, and close its pipes."""
        await self._stack.aclose()

    async def _start(self) -> None:
        """Start the process with pipes, and begin to read its first line."""
        self._reader = asyncio.StreamReader(limit=STDOUT_LIMIT)
        stdin, self._writer = await self._stack.enter_async_context(write_pipe())
        stdout = await self._stack.enter_async_context(read_pipe(asyncio.StreamReaderProtocol(self._reader)))
        stderr = await self._stack.enter_async_context(read_pipe(self._errors))
        try:
            running = running_program(self._command.program, stdin=stdin, stdout=stdout, stderr=stderr)
            self._process = await self._stack.enter_async_context(running)
        except CannotStart as error:
            raise cannot_start(self._command, error) from None
        self._next_line = asyncio.ensure_future(self._reader.readline())
        self._stack.push_async_callback(_cancel_read, self._next_line)

    async def _read_failure(self) -> GraderError:
        """The error of a process that closed its stdout: its exit code and the end of its stderr."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._process.wait()
                await asyncio.shield(self._errors.ended)
        exit_code = self._process.returncode
        fix = "print one line of JSON for each line of stdin"
        if exit_code is None:
            return GraderError(f"It closed its stdout before it printed a verdict; {fix}")
        if exit_code == 0:
            return ProcessEnded(f"It ended without a verdict on this case; {fix}")
        return GraderError(crash_message(exit_code, bytes(self._errors.data)))


async def _cancel_read(reading: asyncio.Future[bytes]) -> None:
    """Cancel a pending read and wait for it."""
    reading.cancel()
    await asyncio.wait([reading])
    if not reading.cancelled():
        # Retrieved, so that asyncio does not log "exception was never retrieved".
        reading.exception()


class GraderProcessPool:
    """Grader processes that are reused for many cases.

    It starts a process whenever all are busy, so the caller bounds their number. Use it in an ``async with`` block.
    """

    def __init__(self, command: GraderCommand) -> None:
        self._command = command
        self._idle: list[GraderProcess] = []

    async def request(self, line: bytes) -> bytes:
        """Send a line to an idle or new process and return its reply.

        Raises `GraderError`; only the process that failed is stopped.
        """
        # The process that was used last is taken first: its memory is most likely still in the caches.
        while self._idle:
            process = self._idle.pop()
            if not process.is_usable:
                await process.stop()
                continue
            # A process that exits after its earlier cases has not processed this line, so another one may.
            with contextlib.suppress(ProcessEnded):
                return await self._request(process, line)
        return await self._request(await GraderProcess.start(self._command), line)

    async def _request(self, process: GraderProcess, line: bytes) -> bytes:
        """Send a line to this process; it becomes idle again, or is stopped after an error."""
        try:
            reply = await process.request(line)
        except BaseException:
            await process.stop()
            raise
        self._idle.append(process)
        return reply

    async def __aenter__(self) -> Self:
        """Return the pool; processes are started on demand."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the idle processes at the end of the block."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(process.stop() for process in idle))

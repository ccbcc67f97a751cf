"""Starts graders' commands in process groups of their own: one for each answer, or a pool that is kept running."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from quintain.programs.line_program import LineProgram, ProgramEnded, line_program
from quintain.programs.processes import run_program
from quintain.programs.program import CannotStart, Program, ProgramTimedOut, TooMuchOutput, describe_end
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


def crash_message(exit_code: int, stderr: str) -> str:
    """The message about a crashed grader: its exit code or signal, and the end of its stderr."""
    return f"It crashed, {describe_end(exit_code, stderr[-MAX_STDERR_CHARACTERS:])}"


class ProcessEnded(GraderError):
    """The process ended with exit code 0 before it replied."""


class GraderProcess:
    """A running grader process, in its own process group. Created by `start`; `stop` kills the whole group."""

    def __init__(self, command: GraderCommand, program: LineProgram, stack: contextlib.AsyncExitStack) -> None:
        self._command, self._program, self._stack = command, program, stack

    @classmethod
    async def start(cls, command: GraderCommand) -> Self:
        """Start a process. Raises `GraderError` if it cannot be started."""
        stack = contextlib.AsyncExitStack()
        try:
            program = await stack.enter_async_context(line_program(command.program, line_limit=STDOUT_LIMIT))
        except CannotStart as error:
            raise cannot_start(command, error) from None
        return cls(command, program, stack)

    @property
    def is_usable(self) -> bool:
        """Whether the process can take a line: it is running and has printed nothing that was not requested."""
        return self._program.is_quiet

    async def request(self, line: bytes) -> bytes:
        """Send one line and return the reply line.

        Raises `GraderError` if the process crashes, exceeds the timeout, or replies with more than `STDOUT_LIMIT`.
        After an error or a cancellation the process must be stopped.
        """
        self._program.send(line)
        try:
            async with asyncio.timeout(self._command.timeout_seconds):
                return await self._program.read()
        except TimeoutError:
            raise GraderError(timeout_message(self._command.timeout_seconds)) from None
        except TooMuchOutput:
            raise GraderError(f"It printed a line of more than {STDOUT_LIMIT // 1024**2} MiB") from None
        except ProgramEnded as ended:
            fix = "print one line of JSON for each line of stdin"
            if ended.exit_code is None:
                raise GraderError(f"It closed its stdout before it printed a verdict; {fix}") from None
            if ended.exit_code == 0:
                raise ProcessEnded(f"It ended without a verdict on this case; {fix}") from None
            raise GraderError(crash_message(ended.exit_code, self._program.stderr)) from None

    async def stop(self) -> None:
        """Kill the process and every process it started, and close its pipes."""
        await self._stack.aclose()


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

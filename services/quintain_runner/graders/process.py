"""Runs a grader's command in its own process group: JSON on stdin, JSON on stdout, with a timeout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quintain.contracts.token import mask_tokens
from quintain.process import run_program
from quintain.program import CannotStart, Program, ProgramTimedOut, TooMuchOutput
from quintain.program_confinement import UNCONFINED, Confinement
from quintain_runner.graders.verdict_parser import GraderError

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

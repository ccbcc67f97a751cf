"""Running a grader's executable: JSON on stdin, JSON on stdout, in a process group that never outlives it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from quintain.contracts.token import mask
from quintain_runner.pipes import Collector, TailCollector, collecting
from quintain_runner.verdict import GraderError

#: The most a grader may print on stdout, in bytes.
STDOUT_LIMIT = 8 * 1024 * 1024

#: How much of what a crashed grader wrote on stderr its error tells, in characters.
STDERR_TOLD = 300

#: How long the end of stdout is waited for once the process is gone, in seconds: only a process that left the
#: group (a daemon) can still hold it.
_DRAIN_SECONDS = 1.0


#: What the name of a script ends with.
_SCRIPTS = (".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".rb", ".pl")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderCommand:
    """What to run, where, with which environment, and for how long at most."""

    argv: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]
    timeout_seconds: float


async def run_grader(command: GraderCommand, stdin: bytes) -> bytes:
    """Run a grader to its end and return what it printed on stdout.

    Raises `GraderError` where it cannot be started, crashes, prints too much, or hangs past its timeout. Whatever
    happens, a cancel too, nothing of its process group is left running.
    """
    out, err = Collector(STDOUT_LIMIT), TailCollector(4 * STDERR_TOLD)
    with tempfile.TemporaryFile() as question:
        # A file, not a pipe: a grader that never reads its stdin is no special case.
        question.write(stdin)
        question.seek(0)
        async with collecting(out) as stdout, collecting(err) as stderr:
            process = await start_grader(command, question, stdout, stderr)
            stdout.close()
            stderr.close()
            try:
                async with asyncio.timeout(command.timeout_seconds):
                    await process.wait()
            except TimeoutError:
                raise GraderError(hang_sentence(command.timeout_seconds)) from None
            finally:
                kill_group(process.pid)
                await process.wait()
            await _ended(out)
            await _ended(err)
    if out.overflowed:
        raise GraderError(f"It printed more than {STDOUT_LIMIT // 1024**2} MiB on stdout; print the verdict alone")
    if process.returncode != 0:
        raise GraderError(crash_sentence(process.returncode or 0, err.data))
    return out.data


def hang_sentence(timeout_seconds: float) -> str:
    """What is said of a grader that took too long."""
    return (
        f"It hung past its timeout of {timeout_seconds:g} s and was killed; raise its timeout_seconds, or see what it "
        "waits for"
    )


def crash_sentence(exit_code: int, stderr: bytes) -> str:
    """How a grader crashed: its exit code or signal, and the end of what it wrote on stderr, tokens masked."""
    how = f"exit code {exit_code}" if exit_code > 0 else f"killed by signal {-exit_code}"
    last = mask(stderr.decode(errors="replace")).strip()[-STDERR_TOLD:]
    return f"It crashed ({how}): {last}" if last else f"It crashed ({how}) and wrote nothing on stderr"


async def start_grader(command: GraderCommand, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> Process:
    """Start a grader's program in a group of its own. Raises `GraderError` where it cannot be."""
    program, *rest = command.argv
    try:
        return await asyncio.create_subprocess_exec(
            _found(program, command.env),
            *rest,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=command.folder,
            env=command.env,
            start_new_session=True,
        )
    except OSError as error:
        raise GraderError(
            f"Its command {program!r} cannot be started in {command.folder} ({error.strerror}); check the path, "
            "and that it may be executed"
        ) from None


def mistake_in(command: GraderCommand) -> str | None:
    """Why a program cannot be started as far as can be told without starting it; None where nothing speaks against it.

    Of a script that an interpreter is to run it is looked at whether the file is there.
    """
    program, *rest = command.argv
    found = _found(program, command.env)
    if os.sep in found:
        path = command.folder / found
        if not path.is_file() or not os.access(path, os.X_OK):
            return f"its command {program!r}: there is no program {path} that may be executed"
    elif shutil.which(found, path=command.env.get("PATH", os.defpath)) is None:
        return f"its command {program!r} is on no path; install it, or give its path"
    script = next((word for word in rest if word.endswith(_SCRIPTS) and not word.startswith("-")), None)
    if script is not None and not (command.folder / script).exists():
        return f"its command: there is no file {command.folder / script}"
    return None


def _found(program: str, env: Mapping[str, str]) -> str:
    # Debian has python3 and no python: there, and in a virtualenv nobody activated, it is the runner's own.
    if program == "python" and shutil.which(program, path=env.get("PATH", os.defpath)) is None:
        return sys.executable
    return program


def kill_group(group: int) -> None:
    """Kill all of a process group that still runs."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        # All of it has ended.
        return


async def _ended(collector: Collector) -> None:
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            await collector.ended.wait()
    except TimeoutError:
        # What a daemon may still write is not the grader's verdict.
        return

"""Running one program to its end: in a process group of its own, its output bounded, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

#: What is kept of stderr, its end, in bytes.
STDERR_BYTES = 4096

#: How long to wait for a pipe's end once the program has ended, and for the end of a program that was killed, in
#: seconds: a process that left the group with the pipe in its hands must not hold the answer up.
_DRAIN_SECONDS = 1.0


class TooMuchOutput(Exception):
    """The program printed more than it may, and was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run, and how. Nothing is inherited: ``env`` is all its environment."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes = b""
    most_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a program ended. A negative exit code is the signal that ended it."""

    exit_code: int
    stdout: bytes
    stderr: bytes


async def run_program(program: Program) -> Finished:
    """Run to the end. Raises `OSError` where it cannot start, `TooMuchOutput`.

    However this ends, cancelled included, the whole process group is dead.
    """
    loop = asyncio.get_running_loop()
    # A start that is cut off half-way would leave pipes open and the program's children alive: it always ends.
    starting = loop.create_task(_start(program))
    try:
        transport, output = await asyncio.shield(starting)
        return await _finish(transport, output)
    finally:
        await asyncio.shield(loop.create_task(_end(starting)))


async def _start(program: Program) -> _Running:
    transport, output = await asyncio.get_running_loop().subprocess_exec(
        lambda: _Output(program.most_bytes),
        *program.argv,
        cwd=program.cwd,
        env=dict(program.env),
        start_new_session=True,
    )
    pipe = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
    if program.stdin:
        pipe.write(program.stdin)
    pipe.close()
    return transport, output


async def _finish(transport: asyncio.SubprocessTransport, output: _Output) -> Finished:
    await asyncio.wait((output.exited, output.overflowed), return_when=asyncio.FIRST_COMPLETED)
    if not output.overflowed.done():
        # What it left behind would hold the pipes open.
        _kill_group(transport)
        await asyncio.wait((output.closed,), timeout=_DRAIN_SECONDS)
    if output.overflowed.done():
        raise TooMuchOutput
    exit_code = transport.get_returncode()
    assert exit_code is not None
    return Finished(exit_code=exit_code, stdout=bytes(output.stdout), stderr=bytes(output.stderr))


async def _end(starting: asyncio.Task[_Running]) -> None:
    await asyncio.wait((starting,))
    if starting.cancelled() or starting.exception() is not None:
        return
    transport, output = starting.result()
    _kill_group(transport)
    # Closing before the loop has heard of the end would take the exit code from under its watcher.
    await asyncio.wait((output.exited,), timeout=_DRAIN_SECONDS)
    transport.close()


class _Output(asyncio.SubprocessProtocol):
    """Collects what a program says. A program's end shows at once, whoever still holds its pipes."""

    def __init__(self, most_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        self._most_bytes = most_bytes
        self.stdout, self.stderr = bytearray(), bytearray()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.overflowed: asyncio.Future[None] = loop.create_future()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.stderr += data
            del self.stderr[:-STDERR_BYTES]
        elif len(self.stdout) + len(data) <= self._most_bytes:
            self.stdout += data
        elif not self.overflowed.done():
            self.overflowed.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


#: A program that has started, and what it says.
_Running = tuple[asyncio.SubprocessTransport, _Output]


def _kill_group(transport: asyncio.SubprocessTransport) -> None:
    # The program leads its group, so its id is the group's; the group may be gone already.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(transport.get_pid(), signal.SIGKILL)

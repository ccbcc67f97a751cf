"""A running program that is given lines and prints lines, one message each."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quintain.programs.processes import DRAIN_SECONDS, STDERR_BYTES, end_process, running_program
from quintain.programs.program import OutputTail, Program, ProgramError, TooMuchOutput, read_pipe, write_pipe


class ProgramEnded(ProgramError):
    """The program printed no other line, and closed its stdout: with its end, or with no exit code while it runs on.

    A negative exit code is the number of a signal.
    """

    def __init__(self, exit_code: int | None) -> None:
        self.exit_code = exit_code
        super().__init__()


@asynccontextmanager
async def line_program(program: Program, *, line_limit: int) -> AsyncIterator[LineProgram]:
    """Start a program, and end it with all its processes at the end of the block; ``line_limit`` is in bytes.

    Raises `CannotStart`.
    """
    lines, errors = _Lines(line_limit), OutputTail(STDERR_BYTES)
    async with (
        write_pipe() as (stdin_end, writer),
        read_pipe(lines) as stdout_end,
        read_pipe(errors) as stderr_end,
        running_program(program, stdin=stdin_end, stdout=stdout_end, stderr=stderr_end) as process,
    ):
        watching = asyncio.ensure_future(_watch(process, lines))
        try:
            yield LineProgram(program, process, writer, lines, errors)
        finally:
            watching.cancel()


async def _watch(process: Process, lines: _Lines) -> None:
    """Note the end of the program: its pipe may be held open by another process that it started."""
    await process.wait()
    await end_process(process)
    await asyncio.wait((lines.ended,), timeout=DRAIN_SECONDS)
    lines.connection_lost(None)


class LineProgram:
    """A program that runs."""

    def __init__(
        self, program: Program, process: Process, writer: asyncio.WriteTransport, lines: _Lines, errors: OutputTail
    ) -> None:
        self._env = program.env
        self._process, self._writer, self._lines, self._errors = process, writer, lines, errors

    def send(self, line: bytes) -> None:
        """Give it a line; a program that has ended does not get it."""
        self._writer.write(line + b"\n")

    def send_all(self, text: bytes) -> None:
        """Give it a text, and close its stdin."""
        self._writer.write(text)
        self._writer.close()

    async def read(self) -> bytes:
        """Return the next line that it prints, without its end. Raises `ProgramEnded` and `TooMuchOutput`."""
        line = await self._lines.read()
        if line is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self._process.wait()
                    await asyncio.shield(self._errors.ended)
            raise ProgramEnded(self._process.returncode)
        return line

    @property
    def is_quiet(self) -> bool:
        """Whether it runs and can print, and has printed nothing that was not read."""
        is_open = self._process.returncode is None and not self._lines.ended.done()
        return is_open and not self._lines.has_unread

    @property
    def stderr(self) -> str:
        """The end of what it wrote to stderr, with secrets masked."""
        return self._errors.text(self._env)

    async def finish(self, grace_seconds: float) -> None:
        """Close its stdin, and wait up to ``grace_seconds`` for it to end."""
        self._writer.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._process.wait()


class _Lines(asyncio.Protocol):
    """Splits a pipe into lines, and reads no further than two lines of the largest size ahead."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._transport: asyncio.ReadTransport | None = None
        self._data = bytearray()
        self._searched = 0
        self._changed = asyncio.Event()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_unread(self) -> bool:
        return bool(self._data)

    async def read(self) -> bytes | None:
        """Return the next line; None after the last. Raises `TooMuchOutput` for one over the limit."""
        while True:
            end = self._data.find(b"\n", self._searched)
            if end > self._limit or (end < 0 and len(self._data) > self._limit):
                raise TooMuchOutput
            if end >= 0:
                return self._take(end, end + 1)
            self._searched = len(self._data)
            if self.ended.done():
                return self._take(len(self._data), len(self._data)) if self._data else None
            self._changed.clear()
            await self._changed.wait()

    def _take(self, end: int, next_start: int) -> bytes:
        line = bytes(self._data[:end])
        del self._data[:next_start]
        self._searched = 0
        if self._transport is not None and len(self._data) <= self._limit and not self.ended.done():
            self._transport.resume_reading()
        return line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport), "the reading end of a pipe"
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > self._limit and self._transport is not None:
            self._transport.pause_reading()
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        self._changed.set()

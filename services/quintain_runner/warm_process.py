"""A grader's program that is kept warm: a line of JSON in, a line of JSON out, in order, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio.subprocess import Process
from io import FileIO
from typing import Self

from quintain_runner.grader_process import (
    STDERR_TOLD,
    STDOUT_LIMIT,
    GraderCommand,
    crash_sentence,
    hang_sentence,
    kill_group,
    start_grader,
)
from quintain_runner.pipes import TailCollector, collecting
from quintain_runner.verdict import GraderError

#: How long an ended process's last words on stderr are waited for, in seconds: a daemon may hold the pipe's other end.
_DRAIN_SECONDS = 1.0


class Ended(GraderError):
    """The process ended, of its own accord, without a reply."""


class WarmProcess:
    """A process of its own group, spoken to by lines. Made by `start`; `end` leaves nothing of it running."""

    def __init__(self, command: GraderCommand) -> None:
        self._command = command
        self._stack = contextlib.AsyncExitStack()
        self._errors = TailCollector(4 * STDERR_TOLD)
        self._next: asyncio.Future[bytes]

    @classmethod
    async def start(cls, command: GraderCommand) -> Self:
        """Start a program. Raises `GraderError` where it cannot be."""
        started = cls(command)
        try:
            await started._start()
        except BaseException:
            await started.end()
            raise
        return started

    @property
    def is_usable(self) -> bool:
        """Whether it may be given a line: it lives, and has said nothing that nobody asked for."""
        return not self._next.done()

    async def ask(self, line: bytes) -> bytes:
        """Its reply to this line, without the line's end.

        Raises `GraderError` where it crashes, hangs past the timeout or replies with too long a line: then, and after
        a cancel, it must be ended.
        """
        self._writer.write(line + b"\n")
        try:
            async with asyncio.timeout(self._command.timeout_seconds):
                reply = await asyncio.shield(self._next)
        except TimeoutError:
            raise GraderError(hang_sentence(self._command.timeout_seconds)) from None
        except ValueError:
            raise GraderError(f"It printed a line of more than {STDOUT_LIMIT // 1024**2} MiB") from None
        if not reply.endswith(b"\n"):
            raise await self._failure()
        self._next = asyncio.ensure_future(self._reader.readline())
        return reply

    async def end(self) -> None:
        """End it, with whatever it started."""
        await self._stack.aclose()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        reading, out = os.pipe()
        stdin, writing = os.pipe()
        with FileIO(out, "wb") as stdout_end, FileIO(stdin, "rb") as stdin_end:
            self._reader = asyncio.StreamReader(limit=STDOUT_LIMIT)
            protocol = asyncio.StreamReaderProtocol(self._reader)
            read_transport, _ = await loop.connect_read_pipe(lambda: protocol, FileIO(reading, "rb"))
            self._stack.callback(read_transport.close)
            self._writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, FileIO(writing, "wb"))
            self._stack.callback(_abort, self._writer)
            with await self._stack.enter_async_context(collecting(self._errors)) as stderr_end:
                self._process = await start_grader(self._command, stdin_end, stdout_end, stderr_end)
            self._stack.push_async_callback(_kill, self._process)
        self._next = asyncio.ensure_future(self._reader.readline())
        self._stack.push_async_callback(_forget, self._next)

    async def _failure(self) -> GraderError:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._process.wait()
                await self._errors.ended.wait()
        exit_code = self._process.returncode
        mend = "print one line of JSON for each line of stdin"
        if exit_code is None:
            return GraderError(f"It closed its stdout before it had a verdict; {mend}")
        if exit_code == 0:
            return Ended(f"It ended without a word on this case; {mend}")
        return GraderError(crash_sentence(exit_code, self._errors.data))


def _abort(writer: asyncio.WriteTransport) -> None:
    # Not close: what is still to be written is for a process that has ended. Whose other end is gone is closed already.
    if not writer.is_closing():
        writer.abort()


async def _kill(process: Process) -> None:
    kill_group(process.pid)
    await process.wait()


async def _forget(reading: asyncio.Future[bytes]) -> None:
    reading.cancel()
    await asyncio.wait([reading])
    if not reading.cancelled():
        # Looked at, so that nobody warns that nobody looked.
        reading.exception()

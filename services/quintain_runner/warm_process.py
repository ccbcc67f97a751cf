"""A grader's program that is kept warm: a line of JSON in, a line of JSON out, in order, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

from quintain.process import (
    DRAIN_SECONDS,
    STDERR_BYTES,
    CannotStart,
    OutputTail,
    end_process,
    read_pipe,
    start_process,
    write_pipe,
)
from quintain_runner.grader_process import STDOUT_LIMIT, GraderCommand, cannot_start, crash_sentence, hang_sentence
from quintain_runner.verdict import GraderError


class Ended(GraderError):
    """The process ended, of its own accord, without a reply."""


class WarmProcess:
    """A process of its own group, spoken to by lines. Made by `start`; `end` leaves nothing of it running."""

    def __init__(self, command: GraderCommand) -> None:
        self._command = command
        self._stack = contextlib.AsyncExitStack()
        self._errors = OutputTail(STDERR_BYTES)
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
        self._reader = asyncio.StreamReader(limit=STDOUT_LIMIT)
        stdin, self._writer = await self._stack.enter_async_context(write_pipe())
        stdout = await self._stack.enter_async_context(read_pipe(asyncio.StreamReaderProtocol(self._reader)))
        stderr = await self._stack.enter_async_context(read_pipe(self._errors))
        try:
            with stdin, stdout, stderr:
                self._process = await start_process(self._command.program, stdin=stdin, stdout=stdout, stderr=stderr)
        except CannotStart as error:
            raise cannot_start(self._command, error) from None
        self._stack.push_async_callback(end_process, self._process)
        self._next = asyncio.ensure_future(self._reader.readline())
        self._stack.push_async_callback(_forget, self._next)

    async def _failure(self) -> GraderError:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._process.wait()
                await asyncio.shield(self._errors.ended)
        exit_code = self._process.returncode
        mend = "print one line of JSON for each line of stdin"
        if exit_code is None:
            return GraderError(f"It closed its stdout before it had a verdict; {mend}")
        if exit_code == 0:
            return Ended(f"It ended without a word on this case; {mend}")
        return GraderError(crash_sentence(exit_code, bytes(self._errors.data)))


async def _forget(reading: asyncio.Future[bytes]) -> None:
    reading.cancel()
    await asyncio.wait([reading])
    if not reading.cancelled():
        # Looked at, so that nobody warns that nobody looked.
        reading.exception()

"""A pool of grader processes that stay running: one line of JSON in and one line out for each case.

A process that crashes or exceeds its timeout is killed and replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
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
from quintain_runner.graders.process import STDOUT_LIMIT, GraderCommand, cannot_start, crash_message, timeout_message
from quintain_runner.graders.verdict_parser import GraderError


class ProcessEnded(GraderError):
    """The process ended, of its own accord, without a reply."""


class GraderProcess:
    """A process of its own group, spoken to by lines. Made by `start`; `stop` leaves nothing of it running."""

    def __init__(self, command: GraderCommand) -> None:
        self._command = command
        self._stack = contextlib.AsyncExitStack()
        self._errors = OutputTail(STDERR_BYTES)
        self._next_line: asyncio.Future[bytes]

    @classmethod
    async def start(cls, command: GraderCommand) -> Self:
        """Start a program. Raises `GraderError` where it cannot be."""
        started = cls(command)
        try:
            await started._start()
        except BaseException:
            await started.stop()
            raise
        return started

    @property
    def is_usable(self) -> bool:
        """Whether it may be given a line: it lives, and has said nothing that nobody asked for."""
        return not self._next_line.done()

    async def request(self, line: bytes) -> bytes:
        """Its reply to this line, without the line's end.

        Raises `GraderError` where it crashes, hangs past the timeout or replies with too long a line: then, and after
        a cancel, it must be ended.
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
        self._next_line = asyncio.ensure_future(self._reader.readline())
        self._stack.push_async_callback(_cancel_read, self._next_line)

    async def _read_failure(self) -> GraderError:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._process.wait()
                await asyncio.shield(self._errors.ended)
        exit_code = self._process.returncode
        fix = "print one line of JSON for each line of stdin"
        if exit_code is None:
            return GraderError(f"It closed its stdout before it had a verdict; {fix}")
        if exit_code == 0:
            return ProcessEnded(f"It ended without a word on this case; {fix}")
        return GraderError(crash_message(exit_code, bytes(self._errors.data)))


async def _cancel_read(reading: asyncio.Future[bytes]) -> None:
    reading.cancel()
    await asyncio.wait([reading])
    if not reading.cancelled():
        # Looked at, so that nobody warns that nobody looked.
        reading.exception()


class GraderProcessPool:
    """As many processes as cases are graded at the same time; whoever asks bounds that. Use it in an ``async with``."""

    def __init__(self, command: GraderCommand) -> None:
        self._command = command
        self._idle: list[GraderProcess] = []

    async def request(self, line: bytes) -> bytes:
        """A process's reply to this line. Raises `GraderError`; the process that failed is ended, and no other."""
        # The one that worked last is the warmest.
        while self._idle:
            process = self._idle.pop()
            if not process.is_usable:
                await process.stop()
                continue
            # One that had enough of its earlier cases has not looked at this one.
            with contextlib.suppress(ProcessEnded):
                return await self._request(process, line)
        return await self._request(await GraderProcess.start(self._command), line)

    async def _request(self, process: GraderProcess, line: bytes) -> bytes:
        try:
            reply = await process.request(line)
        except BaseException:
            await process.stop()
            raise
        self._idle.append(process)
        return reply

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        idle, self._idle = self._idle, []
        await asyncio.gather(*(process.stop() for process in idle))

"""Warm processes of one grader: taken for a case, given back, and replaced where one crashed or hung."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from quintain_runner.grader_process import GraderCommand
from quintain_runner.warm_process import Ended, WarmProcess


class WarmPool:
    """As many processes as cases are graded at the same time; whoever asks bounds that. Use it in an ``async with``."""

    def __init__(self, command: GraderCommand) -> None:
        self._command = command
        self._idle: list[WarmProcess] = []

    async def ask(self, line: bytes) -> bytes:
        """A process's reply to this line. Raises `GraderError`; the process that failed is ended, and no other."""
        # The one that worked last is the warmest.
        while self._idle:
            process = self._idle.pop()
            if not process.is_usable:
                await process.end()
                continue
            # One that had enough of its earlier cases has not looked at this one.
            with contextlib.suppress(Ended):
                return await self._ask(process, line)
        return await self._ask(await WarmProcess.start(self._command), line)

    async def _ask(self, process: WarmProcess, line: bytes) -> bytes:
        try:
            reply = await process.ask(line)
        except BaseException:
            await process.end()
            raise
        self._idle.append(process)
        return reply

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        idle, self._idle = self._idle, []
        await asyncio.gather(*(process.end() for process in idle))

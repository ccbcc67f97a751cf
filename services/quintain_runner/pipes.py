"""One end of a pipe, read on the loop and bounded: what a process writes is kept up to a limit.

asyncio's own subprocess pipes cannot be closed while a runaway grandchild holds the other end; these can.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import FileIO


class Collector(asyncio.Protocol):
    """Keeps the first ``limit`` bytes; closes the pipe when more come, so that the writer stops too."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._transport: asyncio.BaseTransport | None = None
        self.overflowed = False
        self.ended = asyncio.Event()

    @property
    def data(self) -> bytes:
        """What was written so far."""
        return bytes(self._data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data[: self._limit - len(self._data) + 1]
        if len(self._data) > self._limit and self._transport is not None:
            self.overflowed = True
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


class TailCollector(Collector):
    """Keeps the last ``limit`` bytes of however many come."""

    def data_received(self, data: bytes) -> None:
        self._data += data
        del self._data[: -self._limit]


@asynccontextmanager
async def collecting(collector: Collector) -> AsyncIterator[FileIO]:
    """A pipe into the collector. Yields the end to write to: close it once a process has its own copy."""
    reading, writing = os.pipe()
    with FileIO(writing, "wb") as writer:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: collector, FileIO(reading, "rb"))
        try:
            yield writer
        finally:
            transport.close()

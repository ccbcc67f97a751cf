"""Pipes to and from programs, bounded in what is kept."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import FileIO


class LimitedOutput(asyncio.Protocol):
    """Keeps the first ``limit`` bytes of a pipe, and closes it when more arrive.

    The future ``overflowed`` is done when the limit is exceeded, ``ended`` when the pipe is closed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._transport: asyncio.BaseTransport | None = None
        self.data = bytearray()
        loop = asyncio.get_running_loop()
        self.overflowed: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implements `asyncio.Protocol.connection_made`."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Implements `asyncio.Protocol.data_received`."""
        fits = self._limit - len(self.data)
        self.data += data[:fits]
        if len(data) > fits and self._transport is not None and not self.overflowed.done():
            self.overflowed.set_result(None)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Implements `asyncio.Protocol.connection_lost`."""
        if not self.ended.done():
            self.ended.set_result(None)


class OutputTail(LimitedOutput):
    """Keeps the last ``limit`` bytes of a pipe."""

    def data_received(self, data: bytes) -> None:
        """Implements `asyncio.Protocol.data_received`."""
        self.data += data
        del self.data[: -self._limit]


@asynccontextmanager
async def read_pipe(protocol: asyncio.Protocol) -> AsyncIterator[FileIO]:
    """Open a pipe that this protocol reads; yields the program's end, to be closed here once the program has started.

    asyncio's own subprocess pipes do not report the program's end while one of its children holds them open.
    """
    reading, writing = os.pipe()
    with FileIO(writing, "wb") as program_end:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: protocol, FileIO(reading, "rb"))
        try:
            yield program_end
        finally:
            transport.close()


@asynccontextmanager
async def write_pipe() -> AsyncIterator[tuple[FileIO, asyncio.WriteTransport]]:
    """Open a pipe to write to; yields the program's end, to be closed once the program has started, and the writer."""
    reading, writing = os.pipe()
    with FileIO(reading, "rb") as program_end:
        loop = asyncio.get_running_loop()
        writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, FileIO(writing, "wb"))
        try:
            yield program_end, writer
        finally:
            # Abort instead of close: data that is still buffered is for a process that has ended.
            if writer.get_write_buffer_size() or not writer.is_closing():
                writer.abort()

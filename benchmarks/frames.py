"""A TCP proxy before a broker that counts what goes through it: bytes, and AMQP's own publishes and deliveries."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass

#: What AMQP 0-9-1 begins with, before the first frame.
GREETING_BYTES = 8
#: Frame type, channel and payload length; the payload is followed by one byte that ends the frame.
HEAD = struct.Struct(">BHI")
METHOD_FRAME = 1
PUBLISH, DELIVER = (60, 40), (60, 60)


@dataclass(slots=True)
class FrameCounts:
    """What went through, in both directions."""

    bytes: int = 0
    publishes: int = 0
    deliveries: int = 0

    def since(self, before: FrameCounts) -> FrameCounts:
        """What came after."""
        return FrameCounts(
            self.bytes - before.bytes, self.publishes - before.publishes, self.deliveries - before.deliveries
        )

    def copy(self) -> FrameCounts:
        """As it is now."""
        return FrameCounts(self.bytes, self.publishes, self.deliveries)


class Frames:
    """One direction of one connection, read as frames."""

    def __init__(self, counted: FrameCounts, *, greeting: bool) -> None:
        self._counted = counted
        self._rest = bytearray()
        self._skip = GREETING_BYTES if greeting else 0

    def feed(self, data: bytes) -> None:
        """Count what has come."""
        self._counted.bytes += len(data)
        self._rest += data
        if self._skip:
            if len(self._rest) < self._skip:
                return
            del self._rest[: self._skip]
            self._skip = 0
        while len(self._rest) >= HEAD.size:
            kind, _, size = HEAD.unpack_from(self._rest)
            if len(self._rest) < HEAD.size + size + 1:
                return
            if kind == METHOD_FRAME:
                method = struct.unpack_from(">HH", self._rest, HEAD.size)
                self._counted.publishes += method == PUBLISH
                self._counted.deliveries += method == DELIVER
            del self._rest[: HEAD.size + size + 1]


@contextlib.asynccontextmanager
async def counting_proxy(host: str, port: int) -> AsyncIterator[tuple[int, FrameCounts]]:
    """A proxy to this broker: its port, and what it counts."""
    counted = FrameCounts()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: Frames) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                frames.feed(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(host, port)
        await asyncio.gather(
            pump(reader, up_writer, Frames(counted, greeting=True)),
            pump(up_reader, writer, Frames(counted, greeting=False)),
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], counted
    finally:
        server.close()

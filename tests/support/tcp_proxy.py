"""A TCP proxy that breaks connections on purpose: cut without a word, or stalled with the socket left open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class TcpProxy:
    """Forwards a loopback port to another, until told to misbehave."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        #: The sockets of both sides of every connection that is deserted; nothing of theirs is forwarded any more.
        self._blackholed: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.refusing = False
        #: Drop all connections, once, when a client sends this.
        self.drops_at: bytes | None = None
        self.port = 0

    def drop_connections(self) -> None:
        """Abort every connection: what was in the buffers is lost."""
        for writer in list(self._writers):
            writer.transport.abort()

    def stall(self) -> None:
        """Forward nothing more, and close nothing."""
        self._flowing.clear()

    def blackhole(self) -> None:
        """Forward nothing more of the connections there are, and tell neither side: new ones are served. So ends a
        connection whose machine lost its power, or whose route went elsewhere: no FIN ever comes."""
        self._blackholed |= self._writers

    def resume(self) -> None:
        """Forward again."""
        self._flowing.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, both ways."""
        if self.refusing:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        try:
            await asyncio.gather(self._pump(reader, up_writer), self._pump(up_reader, writer))
        finally:
            closed = {writer, up_writer}
            self._writers -= closed
            self._blackholed -= closed
            for each in closed:
                each.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                if self.drops_at is not None and self.drops_at in data:
                    self.drops_at = None
                    self.drop_connections()
                if writer not in self._blackholed:
                    writer.write(data)
                    await writer.drain()
        if writer not in self._blackholed:
            writer.close()


@contextlib.asynccontextmanager
async def open_tcp_proxy(host: str, port: int) -> AsyncIterator[TcpProxy]:
    """A running proxy in front of a port."""
    proxy = TcpProxy(host, port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        proxy.resume()
        proxy.drop_connections()
        server.close()

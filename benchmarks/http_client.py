"""A load over HTTP that costs little: keep-alive connections, requests as bytes, answers read and dropped."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit


class Connection:
    """One connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def request(self, request: bytes) -> bytes:
        """The body of the answer, which must be a 200."""
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if b"\r\ncontent-length: " in head:
            length = int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
            body = await self._reader.readexactly(length)
        else:
            body = await self._chunks()
        if not head.startswith(b"http/1.1 200 "):
            raise SystemExit(f"{head.decode()}{body.decode()}")
        return body

    async def _chunks(self) -> bytes:
        body = bytearray()
        while length := int(await self._reader.readline(), 16):
            body += await self._reader.readexactly(length)
            await self._reader.readline()
        await self._reader.readline()
        return bytes(body)

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


def request_for(url: str, token: str, path: str, body: object) -> bytes:
    """A whole request."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


@contextlib.asynccontextmanager
async def open_clients(url: str, request: bytes, connections: int) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    """A function that sends the request on a connection that is free; so many may be under way."""
    where = urlsplit(url)
    free = [Connection(*await asyncio.open_connection(where.hostname, where.port)) for _ in range(connections)]
    every = list(free)

    async def call() -> bytes:
        connection = free.pop()
        body = await connection.request(request)
        free.append(connection)
        return body

    try:
        yield call
    finally:
        for one in every:
            one.close()

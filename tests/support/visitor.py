"""A client of the gateway over real sockets: with a token, or byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2


class Visitor:
    """One token's HTTP client."""

    def __init__(self, http: httpx2.AsyncClient, token: str) -> None:
        self.http, self.token = http, token

    async def get(self, path: str) -> tuple[int, Any]:
        response = await self.http.get(path)
        return response.status_code, response.json() if response.content else None

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        response = await self.http.post(path, content=encoded(body))
        return response.status_code, response.json()

    async def send(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        response = await self.http.request(method, path, content=None if body is None else encoded(body))
        return response.status_code, response.json() if response.content else None

    async def count(self) -> int:
        return int((await self.get("/info"))[1]["callCount"])


def encoded(body: object) -> bytes:
    """A body as it goes over the wire: bytes as they are."""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


@contextlib.asynccontextmanager
async def visiting(url: str, token: str = "") -> AsyncIterator[Visitor]:
    """A visitor with this token, or with none."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=30, verify=False) as http:
        yield Visitor(http, token)


@dataclass(frozen=True)
class Answered:
    """What came over a socket before it was closed."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Socket:
    """One connection, written and read as bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answered | None:
        """One answer with its whole body; None where it was closed without one."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        status, *lines = head.decode().rstrip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Answered(int(status.split()[1]), headers, body)

    async def closed(self, seconds: float = 10) -> bytes:
        """What else comes until the other side closes."""
        async with asyncio.timeout(seconds):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Socket]:
    """A connection to the host and port of this URL."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        yield Socket(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """A request's line and headers, with the blank line after them."""
    lines = [f"{method} {path} HTTP/1.1", "Host: gateway", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()

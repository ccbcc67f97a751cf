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


class GatewayClient:
    """One token's HTTP client."""

    def __init__(self, http: httpx2.AsyncClient, token: str) -> None:
        self.http, self.token = http, token

    async def get(self, path: str) -> tuple[int, Any]:
        response = await self.http.get(path)
        return response.status_code, response.json() if response.content else None

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        response = await self.http.post(path, content=encode_body(body))
        return response.status_code, response.json()

    async def send(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        response = await self.http.request(method, path, content=None if body is None else encode_body(body))
        return response.status_code, response.json() if response.content else None

    async def read_call_count(self) -> int:
        return int((await self.get("/info"))[1]["callCount"])


def encode_body(body: object) -> bytes:
    """A body as it goes over the wire: bytes as they are."""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


@contextlib.asynccontextmanager
async def open_gateway_client(url: str, token: str = "") -> AsyncIterator[GatewayClient]:
    """A visitor with this token, or with none."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=30, verify=False) as http:
        yield GatewayClient(http, token)


@dataclass(frozen=True)
class RawResponse:
    """What came over a socket before it was closed."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RawConnection:
    """One connection, written and read as bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_response(self) -> RawResponse | None:
        """One answer with its whole body; None where it was closed without one."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        status, *lines = head.decode().rstrip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return RawResponse(int(status.split()[1]), headers, body)

    async def read_until_closed(self, seconds: float = 10) -> bytes:
        """What else comes until the other side closes."""
        async with asyncio.timeout(seconds):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@contextlib.asynccontextmanager
async def open_raw_connection(url: str) -> AsyncIterator[RawConnection]:
    """A connection to the host and port of this URL."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def request_head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """A request's line and headers, with the blank line after them."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()

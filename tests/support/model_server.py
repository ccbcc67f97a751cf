"""A model provider's HTTP API on a loopback socket, scripted per test: what it answers, and how it misbehaves."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ScriptedResponse:
    """How one request is answered.

    ``delay_seconds`` is the pause before it; ``stall`` never answers; ``close_after`` closes after so many bytes of the
    answer, headers included; ``trickle_seconds`` is the pause after each single byte of the body.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: object = None
    delay_seconds: float = 0
    stall: bool = False
    close_after: int | None = None
    trickle_seconds: float = 0

    def as_bytes(self) -> bytes:
        """The whole answer as it goes over the wire; a body that is no text is sent as JSON."""
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **self.headers}
        head = [f"HTTP/1.1 {self.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*head, "", ""]).encode() + body


@dataclass(frozen=True, kw_only=True)
class StreamedResponse:
    """How one request is answered by server-sent events, each sent by itself, so many seconds apart.

    ``event_count`` of them are, or all; ``then`` the body ends as it should, the connection closes or is reset in the
    middle of the body, or nothing more comes. An unframed body has no length and no chunks: it ends with its
    connection.
    """

    events: Sequence[bytes]
    event_count: int | None = None
    then: Literal["end", "close", "reset", "stall"] = "end"
    framed: bool = True
    apart_seconds: float = 0.0

    @property
    def head(self) -> bytes:
        """The answer's status line and headers."""
        framing = "transfer-encoding: chunked" if self.framed else "connection: close"
        return f"HTTP/1.1 200 Scripted\r\ncontent-type: text/event-stream\r\n{framing}\r\n\r\n".encode()

    def frame(self, data: bytes) -> bytes:
        """A piece of the body, or its end where it is empty, as it goes over the wire."""
        return f"{len(data):x}\r\n".encode() + data + b"\r\n" if self.framed else data


@dataclass(frozen=True, kw_only=True)
class ReceivedRequest:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, object]:
        """The body, read as JSON."""
        read: dict[str, object] = json.loads(self.raw)
        return read


class ModelServer:
    """Answers requests by `responses`, the last one for ever, or by `response_for` where that is set; keeps what it was
    asked."""

    def __init__(self) -> None:
        self.responses: list[ScriptedResponse | StreamedResponse] = []
        #: Chooses by what is asked: one server that misbehaves to some and not to others.
        self.response_for: Callable[[ReceivedRequest], ScriptedResponse | StreamedResponse] | None = None
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        #: Set when a request has come in whole.
        self.arrived = asyncio.Event()
        #: Set when a client went away while its request was stalled, or while a stream was on its way.
        self.disconnected = asyncio.Event()
        self.url = ""

    def set_responses(self, *responses: ScriptedResponse | StreamedResponse) -> None:
        """Answer the next requests so, one script each."""
        self.responses = list(responses)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it ends."""
        self.connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer_one(reader, writer):
                    pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _read_request(reader)
        self.requests.append(request)
        self.arrived.set()
        response = self._next_response(request)
        if isinstance(response, StreamedResponse):
            return await self._stream(response, reader, writer)
        if response.stall:
            return await self._stall(reader)
        if response.delay_seconds:
            await asyncio.sleep(response.delay_seconds)
        answer = response.as_bytes()
        if response.trickle_seconds:
            await _trickle(answer, response.trickle_seconds, reader, writer)
            return False
        writer.write(answer if response.close_after is None else answer[: response.close_after])
        await writer.drain()
        return response.close_after is None

    async def _stream(
        self, response: StreamedResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        writer.write(response.head)
        try:
            for event in response.events[: response.event_count]:
                writer.write(response.frame(event))
                await writer.drain()
                await asyncio.sleep(response.apart_seconds)
        except ConnectionError:
            # A client that has heard enough may go before all is sent.
            self.disconnected.set()
            raise
        if response.then == "stall":
            return await self._stall(reader)
        if response.then == "reset":
            # To close a socket that lingers for 0 s is to reset its connection.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        if response.then == "end":
            writer.write(response.frame(b""))
            await writer.drain()
        return response.then == "end" and response.framed

    async def _stall(self, reader: asyncio.StreamReader) -> bool:
        # A client that waits sends nothing more; the read ends when it goes away, and fails if it had not read all.
        with suppress(ConnectionError):
            await reader.read(1)
        self.disconnected.set()
        return False

    def _next_response(self, request: ReceivedRequest) -> ScriptedResponse | StreamedResponse:
        if self.response_for is not None:
            return self.response_for(request)
        return self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]


async def _trickle(answer: bytes, seconds: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The head at once, the body byte by byte, until all is sent or the client has gone."""
    head, _, body = answer.partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    for index in range(len(body)):
        writer.write(body[index : index + 1])
        await writer.drain()
        with suppress(TimeoutError):
            # A client that still reads sends nothing; this ends early when it goes away.
            await asyncio.wait_for(reader.read(1), seconds)
            return


async def _read_request(reader: asyncio.StreamReader) -> ReceivedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    pairs = (line.split(":", 1) for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, value in pairs}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return ReceivedRequest(method=method, path=path, headers=headers, raw=raw)


@asynccontextmanager
async def model_server() -> AsyncIterator[ModelServer]:
    """A server of its own port, gone at the end with all its connections."""
    stub = ModelServer()
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(stub.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield stub
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()

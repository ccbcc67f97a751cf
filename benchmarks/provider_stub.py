"""A server that speaks OpenAI's chat completions at little cost: `/SIZE/v1` answers with so many bytes, and
`/SIZE/DELAY/v1` whole after so many milliseconds.

    python benchmarks/provider_stub.py PORT [CERTIFICATE KEY]

It prints the time, by the clock of all processes, of each request that comes a second or more after the one before. A
stream has 50 chunks, 4 ms apart. The standard library alone is imported.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import ssl
import sys
import time

CHUNKS, APART_SECONDS = 50, 0.004

#: After so many seconds without a request, the next one is the first of a run.
SILENCE_SECONDS = 1.0
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
HEAD = {"id": "chatcmpl-1", "created": 1, "model": "stub"}


@functools.cache
def whole(size: int) -> bytes:
    """The response of a whole answer."""
    message = {"role": "assistant", "content": "x" * size}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = json.dumps({**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@functools.cache
def pieces(size: int) -> list[bytes]:
    """The pieces of a streamed answer, the head in the first."""

    def chunk(delta: dict[str, str], **fields: object) -> dict[str, object]:
        choice = {"index": 0, "delta": delta, "finish_reason": None, **fields}
        return {**HEAD, "object": "chat.completion.chunk", "choices": [choice]}

    events: list[object] = [chunk({"content": "x" * (size // CHUNKS)}) for _ in range(CHUNKS)]
    end = [chunk({}, finish_reason="stop"), {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}]
    texts = [f"data: {json.dumps(event)}\n\n" for event in events]
    texts[-1] += "".join(f"data: {json.dumps(event)}\n\n" for event in end) + "data: [DONE]\n\n"
    parts = [f"{len(text):x}\r\n{text}\r\n".encode() for text in texts]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head + parts[0], *parts[1:-1], parts[-1] + b"0\r\n\r\n"]


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    last_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep where answers go."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._request = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        """Answer a request that is whole."""
        self._request += data
        head, _, body = self._request.partition(b"\r\n\r\n")
        found = re.search(rb"(?i)^POST /(\d+)(?:/(\d+))?/v1/.*\r\ncontent-length: *(\d+)", head, re.DOTALL)
        if found is None or len(body) < int(found[3]):
            return
        self._request.clear()
        now, before = time.monotonic(), Connection.last_at
        Connection.last_at = now
        if now - before >= SILENCE_SECONDS:
            print(f"first {now}", flush=True)
        if re.search(rb'"stream": ?true', body):
            self._send(pieces(int(found[1])), 0, asyncio.get_running_loop().time())
        elif found[2] is None:
            self._transport.write(whole(int(found[1])))
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(int(found[2]) / 1000, self._transport.write, whole(int(found[1])))

    def _send(self, parts: list[bytes], number: int, began: float) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(parts[number])
        if number + 1 < len(parts):
            when = began + (number + 1) * APART_SECONDS
            asyncio.get_running_loop().call_at(when, self._send, parts, number + 1, began)


async def serve(port: int, certificate: list[str]) -> None:
    """Serve until the process ends."""
    context = None
    if certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, ssl=context, backlog=1000)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2:]))

"""Reads the bodies of a provider's answers, whole or as they come, up to the size that fits into a reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp

from quintain.contracts.limits import MAX_BODY_BYTES
from quintain.errors import ReplyTooLarge
from quintain_worker.providers.provider import next_join

#: The largest answer of a provider, in bytes: a larger one fits into no reply.
MAX_ANSWER_BYTES = 2 * MAX_BODY_BYTES

#: The longest stream, in bytes: its events say more about each piece than the piece is long.
MAX_STREAM_BYTES = 4 * MAX_ANSWER_BYTES

#: From so many bytes on, a piece of a stream is followed by the next one without a pause.
MIN_BULK_BYTES = 64 * 1024


async def read_body(response: aiohttp.ClientResponse) -> bytes:
    """Read a whole body. Raises `ReplyTooLarge` for one that fits into no reply."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise ReplyTooLarge(f"The provider's answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


async def read_stream(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield a body as it comes, joined as chunks are (`next_join`).

    Raises `ReplyTooLarge` for one that is longer than any answer.
    """
    size, loop = 0, asyncio.get_running_loop()
    paused: asyncio.Transport | None = None
    resume: asyncio.TimerHandle | None = None
    try:
        while piece := await response.content.readany():
            size += len(piece)
            if size > MAX_STREAM_BYTES:
                raise ReplyTooLarge(f"The provider's stream has more than {MAX_STREAM_BYTES} bytes")
            yield piece
            # Without a connection all of it was read.
            paused = None if response.connection is None else response.connection.transport
            if paused is not None and len(piece) < MIN_BULK_BYTES:
                # What comes until then is left to the system: to read each event alone costs more than the event.
                paused.pause_reading()
                resume = loop.call_at(next_join(loop.time()), paused.resume_reading)
    finally:
        if resume is not None:
            resume.cancel()
        if paused is not None:
            paused.resume_reading()

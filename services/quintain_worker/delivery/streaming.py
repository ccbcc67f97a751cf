"""Sends chunks and progress messages to callers that asked for them, before the final reply.

These messages are best effort: a message that cannot be sent is dropped, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.contracts.chunk import Chunk, Progress, ReasoningChunk, ToolCallChunk
from quintain.contracts.strings import replace_surrogates
from quintain.errors import BusError
from quintain.routes import CHUNK_TYPE, PROGRESS_TYPE, REQUEST_ID_HEADER
from quintain.topology import REPLY
from quintain_worker.providers.provider import Delta

log = logging.getLogger(__name__)

#: Interim messages expire after this time, in seconds: they are of no use later.
EXPIRATION_SECONDS = 30.0

#: Default interval of progress messages, in seconds.
PROGRESS_SECONDS = 10.0


async def send_interim(bus: Bus, delivery: Delivery, request_id: str, message: Chunk | Progress) -> None:
    """Publish a chunk or progress message to the caller's reply queue. Raises `BusError`."""
    envelope = Envelope(
        body=message.to_wire(),
        type=CHUNK_TYPE if isinstance(message, Chunk) else PROGRESS_TYPE,
        correlation_id=delivery.correlation_id,
        headers={REQUEST_ID_HEADER: request_id},
        expiration_ms=int(EXPIRATION_SECONDS * 1000),
        persistent=False,
    )
    await bus.publish(REPLY, delivery.reply_to or "", envelope, timeout_seconds=EXPIRATION_SECONDS)


@contextlib.asynccontextmanager
async def report_progress(
    interval_seconds: float, attempt: int, send: Callable[[Progress], Awaitable[None]]
) -> AsyncIterator[None]:
    """Send a progress message every ``interval_seconds`` while the context is open.

    Stops at the first message that cannot be sent.
    """

    async def send_periodically() -> None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                await send(Progress(attempt=attempt, elapsed_ms=int((loop.time() - started_at) * 1000)))
            except BusError as error:
                log.info("Progress messages of a call are no longer sent: %s", error.message)
                return

    task = asyncio.get_running_loop().create_task(send_periodically(), name="progress")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class ChunkSender:
    """Streams the text, the tool calls and the reasoning of one attempt to the caller, in numbered chunks.

    ``first_attempt`` is added to the number of the try to get the attempt number of a chunk.
    """

    def __init__(self, bus: Bus, delivery: Delivery, request_id: str, *, first_attempt: int) -> None:
        self._bus, self._delivery, self._request_id, self._first_attempt = bus, delivery, request_id, first_attempt
        self._attempt, self._seq = 0, 0
        self._unsent: list[Delta] = []
        self._has_unsent = asyncio.Event()
        self._send_task = asyncio.get_running_loop().create_task(self._send_chunks(), name="chunks")

    def add(self, try_number: int, delta: Delta) -> None:
        """Queue a piece of the answer; pieces of the same text that wait are sent as one chunk.

        A new try discards those of the last.
        """
        attempt = self._first_attempt + try_number
        if attempt != self._attempt:
            self._attempt, self._seq, self._unsent = attempt, 0, []
        joined = _join(self._unsent[-1], delta) if self._unsent else None
        if joined is None:
            self._unsent.append(delta)
        else:
            self._unsent[-1] = joined
        self._has_unsent.set()

    async def close(self) -> None:
        """Stop sending: the reply with the whole answer follows."""
        self._send_task.cancel()
        await asyncio.gather(self._send_task, return_exceptions=True)

    async def _send_chunks(self) -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            while self._unsent:
                chunk = self._chunk(self._unsent.pop(0))
                self._seq += 1
                try:
                    await send_interim(self._bus, self._delivery, self._request_id, chunk)
                except BusError as error:
                    log.info("Chunks of an answer are no longer sent: %s", error.message)
                    return

    def _chunk(self, delta: Delta) -> Chunk:
        if isinstance(delta, str):
            return Chunk(attempt=self._attempt, seq=self._seq, delta=replace_surrogates(delta))
        if isinstance(delta, ReasoningChunk):
            return Chunk(attempt=self._attempt, seq=self._seq, delta="", reasoning=delta)
        return Chunk(attempt=self._attempt, seq=self._seq, delta="", tool_call=delta)


def _join(first: Delta, second: Delta) -> Delta | None:
    """Return two pieces as one, or None if they are not of the same text, call or reasoning."""
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if isinstance(first, ToolCallChunk) and isinstance(second, ToolCallChunk):
        is_same = first.index == second.index and second.id is None
        return first.model_copy(update={"arguments": first.arguments + second.arguments}) if is_same else None
    if isinstance(first, ReasoningChunk) and isinstance(second, ReasoningChunk):
        is_same = first.index == second.index and first.signature is None
        return second.model_copy(update={"text": first.text + second.text}) if is_same else None
    return None

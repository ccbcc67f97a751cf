"""What a caller that asked for it is told before the one final answer. It is a courtesy: nothing waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.contracts.invoke import Chunk, Progress
from quintain.errors import BusError
from quintain.routes import CHUNK_TYPE, PROGRESS_TYPE, REQUEST_ID_HEADER
from quintain.topology import REPLY

log = logging.getLogger(__name__)

#: What is not taken by then is of no use any more, in seconds.
USEFUL_SECONDS = 30.0

#: A call that takes longer says that it still runs, and says so again each time that this has passed, in seconds.
PROGRESS_SECONDS = 10.0


async def say_before(bus: Bus, delivery: Delivery, request_id: str, said: Chunk | Progress) -> None:
    """Send it to whoever waits for the answer to this delivery. Raises `BusError`."""
    envelope = Envelope(
        body=said.to_wire(),
        type=CHUNK_TYPE if isinstance(said, Chunk) else PROGRESS_TYPE,
        correlation_id=delivery.correlation_id,
        headers={REQUEST_ID_HEADER: request_id},
        expiration_ms=int(USEFUL_SECONDS * 1000),
        persistent=False,
    )
    await bus.publish(REPLY, delivery.reply_to or "", envelope, timeout=USEFUL_SECONDS)


@contextlib.asynccontextmanager
async def progress(
    every_seconds: float, attempt: int, say: Callable[[Progress], Awaitable[None]]
) -> AsyncIterator[None]:
    """Say again and again that this attempt runs, for as long as it does. Whoever has gone is told no more."""

    async def beat() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            await asyncio.sleep(every_seconds)
            try:
                await say(Progress(attempt=attempt, elapsed_ms=int((loop.time() - began) * 1000)))
            except BusError as error:
                log.info("The progress of a call is no longer told: %s", error.message)
                return

    beating = asyncio.get_running_loop().create_task(beat(), name="progress")
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)

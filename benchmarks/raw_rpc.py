"""The peer: request and reply over plain aio-pika, as one would write it by hand. No budget, no ledger, no recovery.

Run as a program it is the server; `raw_rpc_client` is the client. Both confirm their publishes, one reply queue serves
all calls, and replies are matched by correlation id.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

QUEUE = "benchmark.raw"


async def serve(url: str) -> None:
    """Answer every request with its own body."""
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=200)
    queue = await channel.declare_queue(QUEUE, durable=True)

    async def answer(request: AbstractIncomingMessage) -> None:
        reply = aio_pika.Message(request.body, correlation_id=request.correlation_id)
        await channel.default_exchange.publish(reply, request.reply_to or "")
        await request.ack()

    await queue.consume(answer)
    print("ready", flush=True)
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def raw_rpc_client(url: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A function that makes one call and waits for its reply."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        replies = await channel.declare_queue(exclusive=True)
        waiting: dict[str, asyncio.Future[bytes]] = {}

        async def on_reply(reply: AbstractIncomingMessage) -> None:
            await reply.ack()
            waiting.pop(reply.correlation_id or "").set_result(reply.body)

        await replies.consume(on_reply)

        async def call() -> None:
            correlation_id = uuid.uuid4().hex
            future = waiting[correlation_id] = asyncio.get_running_loop().create_future()
            message = aio_pika.Message(
                b'{"question": "How are you?"}', correlation_id=correlation_id, reply_to=replies.name
            )
            await channel.default_exchange.publish(message, QUEUE)
            await future

        yield call


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))

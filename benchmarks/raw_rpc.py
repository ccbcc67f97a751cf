"""The peer: request and reply over plain aio-pika, as one would write it by hand. No budget, no ledger, no recovery.

Run as a program it is the server; `raw_rpc_client` is the client. The queue is a durable quorum queue, both sides
confirm their publishes, one reply queue serves all calls, and replies are matched by correlation id. The same client
calls Quintain from the words of its protocol alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage

QUEUE = "benchmark.raw"

RawCall = Callable[[bytes], Awaitable[bytes]]


async def serve(url: str, delay_seconds: float) -> None:
    """Answer every request with a few words, after a while."""
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=1000)
    queue = await channel.declare_queue(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})

    async def answer(request: AbstractIncomingMessage) -> None:
        if delay_seconds:
            await asyncio.sleep(delay_seconds)
        reply = aio_pika.Message(b'{"rawText": "fine"}', correlation_id=request.correlation_id)
        await channel.default_exchange.publish(reply, request.reply_to or "")
        await request.ack()

    await queue.consume(answer)
    print("ready", flush=True)
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def raw_rpc_client(url: str, token: str = "") -> AsyncIterator[RawCall]:
    """A function that makes one call and waits for its reply; with a session's token it calls Quintain."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        replies = await channel.declare_queue(f"quintain.reply.{uuid.uuid4().hex}", auto_delete=True, durable=True)
        exchange, key, headers = await _address(channel, token)
        if token:
            await replies.bind("quintain.reply", replies.name)
        waiting: dict[str, asyncio.Future[bytes]] = {}

        async def on_reply(reply: AbstractIncomingMessage) -> None:
            await reply.ack()
            waiting.pop(reply.correlation_id or "").set_result(reply.body)

        await replies.consume(on_reply)

        async def call(body: bytes) -> bytes:
            correlation_id = uuid.uuid4().hex
            future = waiting[correlation_id] = asyncio.get_running_loop().create_future()
            message = aio_pika.Message(
                body,
                content_type="application/json",
                correlation_id=correlation_id,
                reply_to=replies.name,
                type="invoke",
                headers=dict(headers),
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            await exchange.publish(message, key)
            reply: bytes = await future
            return reply

        yield call


async def _address(channel: AbstractChannel, token: str) -> tuple[AbstractExchange, str, dict[str, str]]:
    if not token:
        return channel.default_exchange, QUEUE, {}
    return await channel.get_exchange("quintain.invoke", ensure=False), "", {"x-quintain-session": token}


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0))

"""FastStream's `request()`: one subscriber, and one broker object, which makes one request at a time."""

from __future__ import annotations

import asyncio

from faststream.rabbit import QueueType, RabbitBroker, RabbitQueue

from closed_loop import READY, answer_loads
from peer_programs.program import ANSWER, QUESTION, Arguments, answer_after, run

QUEUE = RabbitQueue("benchmark.faststream", queue_type=QueueType.QUORUM, durable=True)


async def serve(arguments: Arguments) -> None:
    broker = RabbitBroker(arguments.url, logger=None)

    @broker.subscriber(QUEUE)
    async def answer(question: str) -> str:
        return await answer_after(arguments.delay)

    await broker.start()
    print(READY, flush=True)
    await asyncio.Event().wait()


async def call(arguments: Arguments) -> None:
    async with RabbitBroker(arguments.url, logger=None) as broker:

        async def one() -> None:
            reply = await broker.request(QUESTION, queue=QUEUE)
            assert await reply.decode() == ANSWER

        await answer_loads(one)


if __name__ == "__main__":
    run({"server": serve, "client": call})

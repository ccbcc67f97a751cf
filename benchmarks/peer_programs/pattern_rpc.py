"""`aio_pika.patterns.RPC`: one method, and its result queue as it comes."""

from __future__ import annotations

import asyncio

import aio_pika
from aio_pika.patterns import RPC

from closed_loop import READY, answer_loads
from peer_programs.program import ANSWER, QUESTION, Arguments, answer_after, run

METHOD = "benchmark.pattern"


async def serve(arguments: Arguments) -> None:
    async def answer(*, question: str) -> str:
        return await answer_after(arguments.delay)

    connection = await aio_pika.connect(arguments.url)
    rpc = await RPC.create(await connection.channel())
    await rpc.register(METHOD, answer, durable=True, arguments={"x-queue-type": "quorum"})
    print(READY, flush=True)
    await asyncio.Event().wait()


async def call(arguments: Arguments) -> None:
    async with await aio_pika.connect(arguments.url) as connection:
        rpc = await RPC.create(await connection.channel())

        async def one() -> None:
            assert await rpc.call(METHOD, {"question": QUESTION}) == ANSWER

        await answer_loads(one)


if __name__ == "__main__":
    run({"server": serve, "client": call})

"""taskiq: `kiq()` over AMQP, then `wait_result()`, which asks the result backend, a PostgreSQL table, every 0.2 s."""

from __future__ import annotations

from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker
from taskiq_pg.asyncpg import AsyncpgResultBackend

from closed_loop import READY, answer_loads
from peer_programs.program import ANSWER, QUESTION, Arguments, answer_after, run

#: Its prefetch is 10, which would also be the most calls that run; its receiver runs 100 by itself.
PREFETCH = 100


def made_broker(arguments: Arguments) -> AioPikaBroker:
    return AioPikaBroker(arguments.url, qos=PREFETCH).with_result_backend(AsyncpgResultBackend(arguments.store))


async def serve(arguments: Arguments) -> None:
    broker = made_broker(arguments)

    @broker.task(task_name="answer")
    async def answer(question: str) -> str:
        return await answer_after(arguments.delay)

    broker.is_worker_process = True
    await broker.startup()
    print(READY, flush=True)
    await run_receiver_task(broker)


async def call(arguments: Arguments) -> None:
    broker = made_broker(arguments)

    @broker.task(task_name="answer")
    async def answer(question: str) -> str:
        raise NotImplementedError  # the server's

    await broker.startup()

    async def one() -> None:
        result = await (await answer.kiq(QUESTION)).wait_result()
        assert result.return_value == ANSWER

    await answer_loads(one)
    await broker.shutdown()


if __name__ == "__main__":
    run({"server": serve, "client": call})

"""Celery: `delay()` over AMQP, then `get()` from the ``rpc://`` result backend.

The client blocks: each caller is a thread, and Celery gives each thread a connection and a queue of results of its own.
The server has as many processes as cores; for calls that wait it has threads, as its documentation says.
"""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from celery import Celery
from celery.signals import worker_ready

from closed_loop import READY, answer_loads
from peer_programs.program import ANSWER, QUESTION, Arguments, run

MAX_THREADS = 1000
WAITING_POOL = ["--pool=threads", "--concurrency=100"]


def made_app(arguments: Arguments) -> Celery:
    app = Celery("benchmark", broker=arguments.url, backend="rpc://")
    app.conf.update(task_default_queue="benchmark.celery", task_default_queue_type="quorum")

    @app.task(name="answer")
    def answer(question: str) -> str:
        if arguments.delay:
            time.sleep(arguments.delay)
        return ANSWER

    return app


def serve(arguments: Arguments) -> None:
    @worker_ready.connect(weak=False)
    def say(**_: object) -> None:
        print(READY, file=sys.__stdout__, flush=True)  # the worker writes what is printed into its log

    pool = WAITING_POOL if arguments.delay else []
    made_app(arguments).worker_main(["worker", "--loglevel=ERROR", *pool])


async def call(arguments: Arguments) -> None:
    answer = made_app(arguments).tasks["answer"]

    def one() -> None:
        assert answer.delay(QUESTION).get() == ANSWER

    with ThreadPoolExecutor(MAX_THREADS) as threads:
        loop = asyncio.get_running_loop()
        await answer_loads(lambda: loop.run_in_executor(threads, one))


if __name__ == "__main__":
    run({"server": serve, "client": call})

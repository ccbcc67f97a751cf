"""A fleet with something to do, for pictures: real services in this process, over the memory transport."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path

from quintain.client.client import connect_admin
from quintain.errors import BudgetExhausted, ProviderFailed
from support.memory_fleet import MemoryFleet, memory_fleet
from support.thread_host import LoopThread

CONFIG = """
targets:
  support-bot:
    provider: mock
    delay_ms: 900
    max_concurrency: 4
    token_usage: {input: 420, output: 160}
    price: {input_per_million: 3, output_per_million: 15}
  support-bot-small: {provider: mock, delay_ms: 250, token_usage: {input: 410, output: 90}}
  judge: {provider: mock, delay_ms: 500, token_usage: {input: 900, output: 40}}
  search: {provider: mock, delay_ms: 60, fail_rate: 0.05, max_tries: 1}
  archive: {provider: mock, delay_ms: 100}
  draft: {provider: mock, delay_ms: 100}
"""

#: How many calls are on their way to each target at once.
_CALLERS = {"support-bot": 9, "support-bot-small": 3, "judge": 2, "search": 1, "archive": 1}

#: For how long the fleet has been busy when it is shown, in seconds.
_BUSY_SECONDS = 12


@contextlib.contextmanager
def busy_fleet() -> Iterator[str]:
    """Run it in a thread while the block runs; the address of its gateway."""
    thread, stop, ready = LoopThread("fleet"), asyncio.Event(), Future[str]()

    async def run(folder: Path) -> None:
        async with _started(folder) as address:
            ready.set_result(address)
            await stop.wait()

    with tempfile.TemporaryDirectory() as name:
        running = asyncio.run_coroutine_threadsafe(run(Path(name)), thread.loop)
        running.add_done_callback(lambda ended: ready.done() or ready.set_exception(ended.exception() or OSError()))
        try:
            yield ready.result(120)
        finally:
            thread.loop.call_soon_threadsafe(stop.set)
            running.result(60)
            thread.close()


@contextlib.asynccontextmanager
async def _started(folder: Path) -> AsyncIterator[str]:
    async with memory_fleet(folder, CONFIG) as fleet, asyncio.TaskGroup() as group:
        budgets = {"support-bot": 2_000, "support-bot-small": 400, "judge": 600, "search": 5_000, "archive": 20}
        tasks = [group.create_task(_call(fleet, name, budget)) for name, budget in budgets.items()]
        running = fleet.running
        async with connect_admin(running.broker_url, running.admin_token, memory=running.memory) as admin:
            await admin.pause("draft", 3_600)
        await asyncio.sleep(_BUSY_SECONDS)
        yield fleet.gateway_url
        for task in tasks:
            task.cancel()


async def _call(fleet: MemoryFleet, target: str, budget: int) -> None:
    async with fleet.client(target, budget, label=f"nightly: {target}") as client:

        async def ask() -> None:
            while True:
                try:
                    await client.invoke("What is the capital of France?")
                except BudgetExhausted:
                    return
                except ProviderFailed:
                    continue

        await asyncio.gather(*(ask() for _ in range(_CALLERS[target])))
        # The session stays open, and its budget is shown as spent.
        await asyncio.Event().wait()

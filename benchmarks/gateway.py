"""Calls per second through the gateway, by connections and sessions, and the start of `quintain up`.

`quintain up` is every service in one process, with the memory transport and the ledger on disk. The load comes from
this process, over connections that are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from calls import Options
from harness import Result, Side, compare, running_fleet
from http_client import open_clients, request_for
from quintain.settings import environment
from servers import free_port

CONFIG = """
targets:
  bench: {provider: mock, response: fine, token_usage: {input: 7, output: 2}, max_concurrency: 200}
  slow: {provider: mock, response: fine, delay_ms: 50, max_concurrency: 200}
  slower: {provider: mock, response: fine, delay_ms: 1000, max_concurrency: 200}
"""
ONE = {"question": "How are you?"}


@dataclass(frozen=True, slots=True)
class ProxyUnderTest:
    """Where one side answers, and its processes."""

    url: str
    token: str
    processes: Mapping[str, int]


@contextlib.contextmanager
def quintain_up(folder: Path) -> Iterator[ProxyUnderTest]:
    """Ours."""
    (folder / "quintain.yaml").write_text(CONFIG)
    words = [sys.executable, "-m", "quintain_cli", "up", "--port", "0", "--max-calls", "100000000", "--json"]
    env = {**environment(), "QUINTAIN_STATE_DIR": str(folder / "state")}
    for name in ("QUINTAIN_BROKER_URL", "QUINTAIN_LEDGER_URL", "QUINTAIN_CONFIG"):
        env.pop(name, None)
    running = subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert running.stdout is not None
    try:
        facts = json.loads(running.stdout.readline() or "{}")
        if not facts:
            raise SystemExit("quintain up did not start")
        yield ProxyUnderTest(facts["gatewayUrl"], facts["token"], {"quintain up": running.pid})
    finally:
        running.terminate()
        running.wait(30)


async def connections(options: Options) -> list[Result]:
    """Calls over HTTP at so many connections, of one session, and of 32 beside it."""
    results = []
    port = free_port()
    with running_fleet(options.url, options.folder, gateway_port=port, broker_pid=options.broker_pid) as fleet:
        tokens = [(await fleet.open_session()).token for _ in range(32)]
        for count in (1, 32, 256):
            async with contextlib.AsyncExitStack() as stack:
                sides = []
                for name, used in (("one session", tokens[:1]), ("32 sessions", tokens)):
                    pool = await stack.enter_async_context(open_pool(f"http://127.0.0.1:{port}", used, count))
                    sides.append(Side(name=name, call=pool, processes=fleet.pids))
                results += await compare(
                    "gateway, connections", str(count), sides, count, options.seconds, options.rounds
                )
    return results


@contextlib.asynccontextmanager
async def open_pool(url: str, tokens: list[str], count: int) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A function that makes one call over a connection that is free; the sessions take turns at them."""
    async with contextlib.AsyncExitStack() as stack:
        requests = [request_for(url, tokens[number % len(tokens)], "/invoke", ONE) for number in range(count)]
        free = [await stack.enter_async_context(open_clients(url, request, 1)) for request in requests]

        async def call() -> None:
            one = free.pop(0)
            await one()
            free.append(one)

        yield call


async def cold_start(options: Options) -> list[Result]:
    """From the start of `quintain up` to the first answer over HTTP, beside a Python process that does nothing."""

    async def nothing() -> None:
        await (await asyncio.create_subprocess_exec(sys.executable, "-c", "pass")).wait()

    async def first_answer() -> None:
        await asyncio.to_thread(answer_once)

    def answer_once() -> None:
        with tempfile.TemporaryDirectory() as folder, quintain_up(Path(folder)) as proxy:
            asyncio.run(one_call(proxy))

    sides = [Side(name="python -c pass", call=nothing), Side(name="quintain up, first answer", call=first_answer)]
    return await compare("cold start", "", sides, 1, 0.1, options.rounds)


async def one_call(proxy: ProxyUnderTest) -> None:
    """One call through a proxy."""
    async with open_clients(proxy.url, request_for(proxy.url, proxy.token, "/invoke", ONE), 1) as call:
        await call()

"""Calls per second and latency through the gateway, beside AgentV's own proxy in the same run; batches too.

    make bench                          # both benchmarks
    python benchmarks/gateway.py --seconds 10

Ours is `quintain up`: every service in one process, the memory transport, the ledger on disk. The peer is the proxy
of @agentv/core, as its code grader starts it, under node: a counter in memory. Both have providers that answer at
once, and after 50 ms; the load comes from this process, over connections that are kept; the rounds alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from calls import Options
from harness import Result, Round, Side, compare, measure, running_fleet
from http_client import open_clients, request_for
from quintain.settings import environment
from servers import ServerUnavailable, find_node, free_port, npm_package

HERE = Path(__file__).parent
AGENTV, AGENTV_VERSION = "@agentv/core", "4.42.4"
CONFIG = """
targets:
  bench: {provider: mock, response: fine, token_usage: {input: 7, output: 2}, max_concurrency: 200}
  slow: {provider: mock, response: fine, delay_ms: 50, max_concurrency: 200}
"""
CONNECTIONS = 32
BATCH = 50
ONE = {"question": "How are you?"}
MANY = {"requests": [{"question": "How are you?", "target": "slow"}] * BATCH}


def log_line(line: str) -> None:
    """A line for whoever watches."""
    print(line, flush=True)


@dataclass(frozen=True, slots=True)
class ProxyUnderTest:
    """Where one side answers."""

    url: str
    token: str


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
        yield ProxyUnderTest(facts["gatewayUrl"], facts["token"])
    finally:
        running.terminate()
        running.wait(30)


@contextlib.contextmanager
def agentv_proxy(folder: Path) -> Iterator[ProxyUnderTest]:
    """The peer, as long as its grader runs. Raises `ServerUnavailable` where it cannot be had."""
    node = find_node(environment(), log_line)
    modules = npm_package(AGENTV, AGENTV_VERSION, environment(), log_line)
    told, script = folder / "proxy", modules.parent / "agentv_peer.mjs"
    shutil.copyfile(HERE / "agentv_peer.mjs", script)  # node looks for packages beside the script
    running = subprocess.Popen([node, str(script), str(told)], start_new_session=True)
    try:
        ends = time.monotonic() + 60
        while not (told.exists() and told.read_text().count("\n") == 2):
            if running.poll() is not None or time.monotonic() > ends:
                raise SystemExit("AgentV's proxy did not start")
            time.sleep(0.05)
        url, token = told.read_text().split()
        yield ProxyUnderTest(url, token)
    finally:
        os.killpg(running.pid, signal.SIGTERM)  # the grader's own process too
        running.wait(30)


async def calls_through(proxy: ProxyUnderTest, seconds: float) -> Round:
    """One round of calls at all connections."""
    request = request_for(proxy.url, proxy.token, "/invoke", ONE)
    async with open_clients(proxy.url, request, CONNECTIONS) as call:
        await measure(call, CONNECTIONS, 0.5)
        return await measure(call, CONNECTIONS, seconds)


async def batch_through(proxy: ProxyUnderTest) -> float:
    """How long one batch takes, in milliseconds."""
    request = request_for(proxy.url, proxy.token, "/invokeBatch", MANY)
    async with open_clients(proxy.url, request, 1) as call:
        began = time.perf_counter()
        answers = json.loads(await call())["responses"]
        took = (time.perf_counter() - began) * 1000
    assert [answer["rawText"] for answer in answers] == ["fine"] * BATCH
    return took


async def compare_proxies(
    sides: dict[str, ProxyUnderTest], seconds: float, rounds: int
) -> dict[str, dict[str, object]]:
    """Both sides in turn; of each the median round, and the median batch."""
    called: dict[str, list[Round]] = {name: [] for name in sides}
    batched: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, proxy in sides.items():
            called[name].append(await calls_through(proxy, seconds))
            batched[name].append(await batch_through(proxy))
    return {
        name: {
            "calls": asdict(sorted(called[name], key=lambda one: one.rate)[rounds // 2]),
            "batchMs": round(statistics.median(batched[name]), 1),
        }
        for name in sides
    }


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


def show(rows: dict[str, dict[str, object]], how: str) -> None:
    """The table; the ratio is ours to the peer's."""
    table = Table(title=f"through HTTP, {how}", title_justify="left")
    for column in ("", "calls /s", "p50 ms", "p99 ms", f"batch of {BATCH} × 50 ms, ms"):
        table.add_column(column, justify="right")
    rounds = {name: Round(**row["calls"]) for name, row in rows.items()}  # type: ignore[arg-type]
    for name, one in rounds.items():
        cells = (f"{one.rate:,.0f}", f"{one.p50_ms:.1f}", f"{one.p99_ms:.1f}", f"{rows[name]['batchMs']:,.0f}")
        table.add_row(name, *cells)
    if len(rounds) == 2:
        ours, peer = rounds.values()
        mine, theirs = (float(str(row["batchMs"])) for row in rows.values())
        ratios = (ours.rate / peer.rate, ours.p50_ms / peer.p50_ms, ours.p99_ms / peer.p99_ms, mine / theirs)
        table.add_row("ratio", *(f"{ratio:.2f}" for ratio in ratios))
    Console().print(table)


def main() -> None:
    """Measure, show, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each round takes")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, both sides in turn")
    options = parser.parse_args()
    missing = ""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = {"quintain": stack.enter_context(quintain_up(folder))}
        try:
            sides["agentv"] = stack.enter_context(agentv_proxy(folder))
        except ServerUnavailable as error:
            missing = str(error)
            log_line(f"AgentV is NOT MEASURED: {missing}")
        rows = asyncio.run(compare_proxies(sides, options.seconds, options.rounds))
    python = f"{platform.python_implementation()} {platform.python_version()}"
    how = f"{CONNECTIONS} connections, {python}, {os.cpu_count()} cores"
    show(rows, how)
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / "gateway.json").write_text(json.dumps({"how": how, "missing": missing, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

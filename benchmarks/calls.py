"""Calls per second and latency over RabbitMQ with budgets on, beside a raw aio-pika RPC loop in the same run.

    make bench                        # a table, and benchmarks/results/calls.json
    python benchmarks/calls.py --seconds 10

Both sides have their caller in this process and their server in another; ours has the metadata service beside,
with its ledger on disk. The rounds alternate, so that a drift of the machine's speed meets both. The mock
provider answers at once: what is measured is Quintain and the broker, nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import quintain
from quintain.client.connect import connect_admin
from quintain.contracts.session import OpenSession
from quintain.settings import environment
from raw_rpc import raw_rpc_client
from servers import RABBITMQ, running_server

HERE = Path(__file__).parent
ADMIN_TOKEN = "the benchmark's admin token"
CONFIG = "targets:\n  bench: {provider: mock, response: fine, max_concurrency: 200}\n"
IN_FLIGHT = (1, 10, 100)

Call = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Round:
    """One measured round: how many calls ended in how many seconds, and how long each took (milliseconds)."""

    calls: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds


async def measure(call: Call, in_flight: int, seconds: float) -> Round:
    """Keep so many calls in flight for so long."""
    took: list[float] = []
    ends = time.perf_counter() + seconds

    async def caller() -> None:
        while (began := time.perf_counter()) < ends:
            await call()
            took.append((time.perf_counter() - began) * 1000)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(in_flight)))
    elapsed = time.perf_counter() - began
    cuts = statistics.quantiles(took, n=100)
    return Round(len(took), elapsed, round(cuts[49], 2), round(cuts[98], 2))


@contextlib.contextmanager
def process(args: list[str], phrase: str, **variables: str) -> Iterator[int]:
    """A process that has said it is ready; its id."""
    running = subprocess.Popen(
        [sys.executable, *args],
        env={**environment(), **variables, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    for line in running.stdout:
        if phrase in line:
            break
    else:
        raise SystemExit(f"{args} did not start")
    # A gateway writes a line for each request: a pipe that nobody reads would stop it.
    threading.Thread(target=collections.deque, args=(running.stdout, 0), daemon=True).start()
    try:
        yield running.pid
    finally:
        running.terminate()
        running.wait(30)


@contextlib.asynccontextmanager
async def quintain_rpc_client(url: str, folder: Path) -> AsyncIterator[Call]:
    """A function that makes one call through a worker and a metadata service in processes of their own."""
    (folder / "quintain.yaml").write_text(CONFIG)
    variables = {
        "QUINTAIN_BROKER_URL": url,
        "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN,
        "QUINTAIN_STATE_DIR": str(folder / "state"),
        "QUINTAIN_CONFIG": str(folder / "quintain.yaml"),
    }
    with (
        process(["-m", "quintain_cli", "serve", "metadata"], "ready", **variables),
        process(["-m", "quintain_cli", "serve", "worker"], "ready", **variables),
    ):
        async with connect_admin(url, ADMIN_TOKEN) as admin:
            opened = await admin.open(OpenSession(default_target="bench", max_calls=10_000_000))
        async with quintain.connect(url, opened.token) as target:

            async def call() -> None:
                await target.invoke("How are you?", target="bench")

            yield call


async def compare(url: str, seconds: float, rounds: int) -> list[dict[str, object]]:
    """Every level of concurrency, both sides in turn; the median round of each."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder, process([str(HERE / "raw_rpc.py"), url], "ready"):
        async with raw_rpc_client(url) as raw, quintain_rpc_client(url, Path(folder)) as ours:
            await measure(raw, 10, 1)
            await measure(ours, 10, 1)
            for in_flight in IN_FLIGHT:
                pairs = [
                    (await measure(raw, in_flight, seconds), await measure(ours, in_flight, seconds))
                    for _ in range(rounds)
                ]
                ratio = statistics.median(mine.rate / peer.rate for peer, mine in pairs)
                peer = sorted((pair[0] for pair in pairs), key=lambda one: one.rate)[rounds // 2]
                mine = sorted((pair[1] for pair in pairs), key=lambda one: one.rate)[rounds // 2]
                rows.append(
                    {"inFlight": in_flight, "raw": asdict(peer), "quintain": asdict(mine), "ratio": round(ratio, 2)}
                )
    return rows


def show(rows: list[dict[str, object]], how: str) -> None:
    """The table."""
    table = Table(title=f"calls per second, {how}", title_justify="left")
    for column in ("in flight", "raw /s", "p50", "p99", "quintain /s", "p50", "p99", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        peer, mine = Round(**row["raw"]), Round(**row["quintain"])  # type: ignore[arg-type]
        cells = (peer.rate, peer.p50_ms, peer.p99_ms, mine.rate, mine.p50_ms, mine.p99_ms)
        table.add_row(
            str(row["inFlight"]),
            *(f"{cell:,.0f}" if cell >= 100 else f"{cell:.1f}" for cell in cells),
            str(row["ratio"]),
        )
    Console().print(table)


def main() -> None:
    """Measure, show, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each round takes")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per level, both sides in turn")
    options = parser.parse_args()
    with running_server(RABBITMQ, environment(), print) as broker:
        rows = asyncio.run(compare(broker.url, options.seconds, options.rounds))
    how = f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores"
    show(rows, how)
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / "calls.json").write_text(json.dumps({"how": how, "broker": broker.how, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

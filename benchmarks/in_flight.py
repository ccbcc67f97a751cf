"""Many calls in flight in one worker: how many succeed, and what each takes of the worker's memory.

    python benchmarks/in_flight.py                             # 10,000 calls to a provider of 20 s
    python benchmarks/in_flight.py --calls 3000 --seconds 10

A metadata service on SQLite and one worker with room for all calls, each a process of its own, on a real broker; the
mock provider takes its time. Memory is the worker's resident set: its peak while the calls run, less what it has when
it is idle after some calls, divided by the most calls that ran at a time: on a busy machine the first may end before
the last has begun, unless the provider takes longer than all calls to begin.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import quintain
from harness import ADMIN_TOKEN, memory_kb, process
from quintain.client.client import connect_admin
from quintain.contracts.session import OpenSession
from quintain.settings import environment
from servers import RABBITMQ, running_server

WARM_CALLS = 200


async def measure(url: str, pid: int, calls: int) -> None:
    """Send all calls at once, and print what came of them."""
    async with connect_admin(url, ADMIN_TOKEN) as admin:
        session = await admin.open(OpenSession(default_target="slow", max_calls=calls + WARM_CALLS))
    async with quintain.connect(url, session.token) as client:

        async def call(target: str) -> str:
            try:
                await client.invoke("How are you?", target=target)
            except quintain.Fault as fault:
                return fault.code
            return "result"

        await asyncio.gather(*(call("fast") for _ in range(WARM_CALLS)))
        idle = memory_kb(pid, "VmRSS")
        began, running = time.perf_counter(), [0]

        async def watch() -> None:
            while True:
                with contextlib.suppress(quintain.Fault, quintain.BusError):  # a busy machine may answer too late
                    running.append((await client.get_info()).running)
                await asyncio.sleep(1)

        watching = asyncio.create_task(watch())
        outcomes = Counter(await asyncio.gather(*(call("slow") for _ in range(calls))))
        watching.cancel()
    peak = memory_kb(pid, "VmHWM")
    seconds = time.perf_counter() - began
    print(f"{calls:,} calls in {seconds:.1f} s, {max(running):,} running at a time: {dict(outcomes)}")
    print(f"worker: {idle:,} KiB idle, {peak:,} KiB peak, {(peak - idle) * 1.024 / max(running):.1f} kB a call")


def main() -> None:
    """Start the services, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the provider takes")
    options = parser.parse_args()
    config = (
        f"targets:\n  slow: {{provider: mock, response: fine, delay_ms: {int(options.seconds * 1000)},"
        f" max_concurrency: {options.calls}}}\n  fast: {{provider: mock, response: fine}}\n"
    )
    with (
        tempfile.TemporaryDirectory() as name,
        running_server(RABBITMQ, environment(), print) as broker,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        (folder / "quintain.yaml").write_text(config)
        variables = {
            "QUINTAIN_BROKER_URL": broker.url,
            "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN,
            "QUINTAIN_STATE_DIR": str(folder / "state"),
            "QUINTAIN_CONFIG": str(folder / "quintain.yaml"),
            "QUINTAIN_LEDGER_URL": f"sqlite://{folder / 'ledger.sqlite3'}",
        }
        pids = {
            service: stack.enter_context(process(["-m", "quintain_cli", "serve", service], "ready", **variables))
            for service in ("metadata", "worker")
        }
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        asyncio.run(measure(broker.url, pids["worker"], options.calls))


if __name__ == "__main__":
    main()

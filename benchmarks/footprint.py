"""What one call costs: CPU of each service, messages and bytes at the broker, and bytes in the ledger.

    python benchmarks/footprint.py               # a table, and benchmarks/results/footprint.json
    python benchmarks/footprint.py --calls 5000

A metadata service, a worker and a gateway, each a process of its own, on a real broker behind a proxy that counts its
frames; the mock provider answers at once with a few words. CPU is what /proc says of each process, user and system
together. The ledger's bytes are its growth on the disk, with its indexes, when the service has stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

import quintain
from frames import FrameCounts, counting_proxy
from harness import ADMIN_TOKEN, CONFIG, cpu_seconds, process
from quintain.client.client import connect_admin
from quintain.contracts.session import OpenSession, SessionOpened
from quintain.settings import environment
from servers import POSTGRES, RABBITMQ, free_port, fresh_database, run_sql, running_server

HERE = Path(__file__).parent
WARM_CALLS = 100
SERVICES = ("metadata", "worker", "gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What calls of one kind cost. CPU in seconds per 1,000 calls; the rest per call."""

    ledger: str
    route: str
    in_flight: int
    calls: int
    cpu: dict[str, float]
    publishes: float
    deliveries: float
    wire_bytes: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """Where its services are: process ids, the broker's URL through the proxy, and the gateway's."""

    pids: dict[str, int]
    broker_url: str
    gateway_url: str
    counted: FrameCounts


@contextlib.asynccontextmanager
async def fleet(url: str, ledger_url: str, folder: Path) -> AsyncIterator[Fleet]:
    """Three services on this broker and this ledger."""
    (folder / "quintain.yaml").write_text(CONFIG)
    parts, gateway_port = urlsplit(url), free_port()
    async with counting_proxy(parts.hostname or "127.0.0.1", parts.port or 5672) as (port, counted):
        counted_url = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}").geturl()
        variables = {
            "QUINTAIN_BROKER_URL": counted_url,
            "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN,
            "QUINTAIN_STATE_DIR": str(folder / "state"),
            "QUINTAIN_CONFIG": str(folder / "quintain.yaml"),
            "QUINTAIN_LEDGER_URL": ledger_url,
        }
        more = {"gateway": ["--port", str(gateway_port)]}
        with contextlib.ExitStack() as stack:

            def start(service: str) -> int:
                words = ["-m", "quintain_cli", "serve", service, *more.get(service, [])]
                return stack.enter_context(process(words, "ready", **variables))

            try:
                # In a thread: the proxy that they connect through lives in this loop.
                pids = {service: await asyncio.to_thread(start, service) for service in SERVICES}
                yield Fleet(pids, counted_url, f"http://127.0.0.1:{gateway_port}", counted)
            finally:
                await asyncio.to_thread(stack.close)


async def measure(
    fleet: Fleet, session: SessionOpened, ledger: str, route: str, in_flight: int, calls: int
) -> Footprint:
    """So many calls, so many of them at a time."""
    async with quintain.connect(fleet.broker_url if route == "AMQP" else fleet.gateway_url, session.token) as target:

        async def call(count: int) -> None:
            numbers = iter(range(count))

            async def one_after_another() -> None:
                for _ in numbers:
                    await target.invoke("How are you?", target="bench")

            await asyncio.gather(*(one_after_another() for _ in range(in_flight)))

        await call(WARM_CALLS)
        cpu = {service: cpu_seconds(pid) for service, pid in fleet.pids.items()}
        before = fleet.counted.copy()
        await call(calls)
        wire = fleet.counted.since(before)
        used = {service: cpu_seconds(pid) - cpu[service] for service, pid in fleet.pids.items()}
    return Footprint(
        ledger=ledger,
        route=route,
        in_flight=in_flight,
        calls=calls,
        cpu={service: round(seconds * 1000 / calls, 2) for service, seconds in used.items()},
        publishes=round(wire.publishes / calls, 2),
        deliveries=round(wire.deliveries / calls, 2),
        wire_bytes=round(wire.bytes / calls),
    )


async def measure_ledger(url: str, ledger: str, ledger_url: str, calls: int) -> tuple[list[Footprint], int]:
    """Every kind of call on one ledger, and how many calls that were in all."""
    with tempfile.TemporaryDirectory() as name:
        async with fleet(url, ledger_url, Path(name)) as running, connect_admin(url, ADMIN_TOKEN) as admin:
            session = await admin.open(OpenSession(default_target="bench", max_calls=10_000_000))
            kinds = [("AMQP", 1, calls // 4), ("AMQP", 50, calls), ("HTTP", 50, calls)]
            found = []
            for kind in kinds:
                found.append(await measure(running, session, ledger, *kind))
                print(f"measured: {ledger}, {kind[0]}, {kind[1]} in flight", flush=True)
    return found, sum(one.calls + WARM_CALLS for one in found)


def sqlite_bytes(file: Path) -> int:
    """What a ledger that nobody has open takes."""
    return sum(each.stat().st_size for each in file.parent.glob(f"{file.name}*"))


@contextlib.contextmanager
def ledgers(folder: Path) -> Iterator[dict[str, str]]:
    """One of each kind."""
    with running_server(POSTGRES, environment(), print) as server, fresh_database(server.url) as postgres:
        yield {"SQLite": f"sqlite://{folder / 'ledger.sqlite3'}", "PostgreSQL": postgres}


def ledger_bytes(ledger: str, url: str) -> int:
    """The bytes that a ledger takes now."""
    if ledger == "SQLite":
        return sqlite_bytes(Path(url.removeprefix("sqlite://")))
    return int(str(run_sql(url, "SELECT pg_database_size(current_database())")))


def show(rows: list[Footprint], ledger_bytes: dict[str, float], how: str) -> None:
    """The table."""
    table = Table(title=how, title_justify="left")
    columns = (
        "ledger",
        "way",
        "in flight",
        *(f"{name} s/1000" for name in SERVICES),
        "published",
        "delivered",
        "bytes",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        cpu = (f"{row.cpu[name]:.2f}" for name in SERVICES)
        cells = (f"{row.publishes:.2f}", f"{row.deliveries:.2f}", f"{row.wire_bytes:,.0f}")
        table.add_row(row.ledger, row.route, str(row.in_flight), *cpu, *cells)
    console = Console(width=120)
    console.print(table)
    for ledger, size in ledger_bytes.items():
        console.print(f"{ledger}: {size:,.0f} bytes of ledger a call")


def main() -> None:
    """Measure, show, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="calls of each kind")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows: list[Footprint] = []
    bytes_per_call: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        running_server(RABBITMQ, environment(), print) as broker,
        ledgers(Path(name)) as urls,
    ):
        for ledger, url in urls.items():
            # What an empty ledger's tables take is in the difference too: little beside the calls.
            before = ledger_bytes(ledger, url)
            found, calls = asyncio.run(measure_ledger(broker.url, ledger, url, options.calls))
            rows += found
            bytes_per_call[ledger] = round((ledger_bytes(ledger, url) - before) / calls)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    how = f"{python}, {os.cpu_count()} cores, load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    show(rows, bytes_per_call, how)
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    kept = {"how": how, "broker": broker.how, "rows": [asdict(row) for row in rows], "ledgerBytes": ledger_bytes}
    (results / "footprint.json").write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Floods by a user of the broker who has no session: no service needs 512 MiB, the broker's disk holds no more than its
limits, and the calls of an evaluator go on beside them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import statistics
import sys
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import quintain
from faults.load import is_long
from quintain.bus.connect import connect_bus
from quintain.settings import environment
from quintain.topology import target_topology
from support.broker_users import DEFINITIONS, apply_policies
from support.flood import MESSAGE_BYTES
from support.process_fleet import ProcessFleet, process_fleet
from support.servers.rabbitmq_admin import BrokerAdmin
from support.servers.rabbitmq_node import private_cluster

#: The worker serves one of them; nobody reads the queue of the other.
CONFIG, UNREAD = "targets:\n  served: {provider: mock}\n", "unread"

MIB = 1024 * 1024

#: What a service and the broker's disk may have at most. The issue's flood of 70 messages took two replicas down.
SERVICE_BYTES, DISK_BYTES = 512 * MIB, 2048 * MIB

#: How many large operations are sent, how long an evaluator calls before that, and the share of the limits in bytes.
OPERATIONS, QUIET_SECONDS, BYTE_SHARE = (70, 20.0, 1.0) if is_long() else (32, 2.0, 1 / 16)

TARGET_LIMIT_BYTES = BYTE_SHARE * next(
    policy["definition"]["max-length-bytes"]
    for policy in DEFINITIONS["policies"]
    if policy["name"] == "quintain-target"
)


@dataclass(frozen=True)
class Flooded:
    """A metadata service and a worker at a broker of their own, which has the limits of a deployment."""

    fleet: ProcessFleet
    admin: BrokerAdmin

    def peak_bytes(self) -> dict[str, int]:
        """The largest resident size of each process so far, by its log's name."""
        sizes = {}
        for process in self.fleet.processes:
            (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
            sizes[process.log.stem] = 1024 * int(kib)
        return sizes

    def disk_bytes(self) -> int:
        """What the quorum queues have on the disk."""
        folder = Path(self.admin.evaluate('io:format("~s", [ra_env:data_dir()])'))
        total = 0
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return total


@pytest.fixture(scope="module")
def flooded(rabbitmq_server: Path) -> Iterator[Flooded]:
    with private_cluster(rabbitmq_server, environment(), size=1) as cluster:
        apply_policies(cluster.admin, byte_share=BYTE_SHARE)
        with process_fleet(cluster.url, CONFIG, targets=["served", UNREAD]) as fleet:
            fleet.start_services("metadata", "worker")
            yield Flooded(fleet, cluster.admin)


async def call_while(work: Awaitable[object], client: quintain.Client) -> list[float]:
    """Call one target again and again until the work has ended; returns how long each call took, in seconds."""
    working, took = asyncio.ensure_future(work), list[float]()
    while not working.done() or not took:
        began = time.perf_counter()
        await client.invoke("hello", target="served")
        took.append(time.perf_counter() - began)
    await working
    return took


async def publish(url: str, count: int, *places: str) -> int:
    """Publish so many large messages without a token to these exchanges and routing keys in turn; returns how many the
    broker took."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.flood", url, str(count), *places),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    printed, _ = await program.communicate()
    assert program.returncode == 0
    return int(printed)


async def wait_until_read(admin: BrokerAdmin) -> None:
    """Wait until the services have taken what was sent to them."""
    async with asyncio.timeout(120):
        while any(
            queue["messages"]
            for queue in await asyncio.to_thread(admin.list_queues)
            if "metadata" in str(queue["name"])
        ):
            await asyncio.sleep(0.2)


def latencies(name: str, before: list[float], during: list[float]) -> str:
    """One line: the calls of an evaluator before and during a flood."""
    medians = [1000 * statistics.median(took) for took in (before, during)]
    return (
        f"{name}: {len(before)} calls before, {len(during)} during it; median {medians[0]:.1f} and {medians[1]:.1f} ms "
        f"({medians[1] / medians[0]:.2f} times), longest {1000 * max(before):.0f} and {1000 * max(during):.0f} ms"
    )


async def test_large_operations_without_a_token_stop_no_service_and_no_caller(
    flooded: Flooded, request: pytest.FixtureRequest
) -> None:
    fleet = flooded.fleet
    opened = await asyncio.to_thread(fleet.open_session, "served", 1_000_000)

    async def flood() -> None:
        assert await publish(fleet.broker_url, OPERATIONS, "quintain.metadata/info", "quintain.invoke/") > 0
        await wait_until_read(flooded.admin)

    async with quintain.connect(fleet.broker_url, opened.token) as client:
        before = await call_while(asyncio.sleep(QUIET_SECONDS), client)
        during = await call_while(flood(), client)
    assert all(process.alive for process in fleet.processes)
    peaks = flooded.peak_bytes()
    assert max(peaks.values()) < SERVICE_BYTES, peaks
    summary = request.config.pluginmanager.getplugin("quintain-summary")
    name = f"{OPERATIONS} operations of 15 MiB, services at most {max(peaks.values()) / MIB:.0f} MiB"
    summary.add("floods", latencies(name, before, during))


async def test_a_queue_that_nobody_reads_takes_no_more_than_its_limit(
    flooded: Flooded, request: pytest.FixtureRequest
) -> None:
    fleet = flooded.fleet
    bus = await connect_bus(fleet.broker_url)
    try:
        await bus.declare(target_topology(UNREAD))
    finally:
        await bus.close()
    opened = await asyncio.to_thread(fleet.open_session, "served", 1_000_000)
    sent = 2 * int(TARGET_LIMIT_BYTES / MESSAGE_BYTES)
    taken = 0

    async def flood() -> None:
        nonlocal taken
        taken = await publish(fleet.broker_url, sent, f"quintain.invoke/{UNREAD}")

    async with quintain.connect(fleet.broker_url, opened.token) as client:
        before = await call_while(asyncio.sleep(QUIET_SECONDS), client)
        during = await call_while(flood(), client)
    # The broker looks at the limit when it has taken a message.
    assert 0 < taken * MESSAGE_BYTES <= TARGET_LIMIT_BYTES + 2 * MESSAGE_BYTES
    disk = await asyncio.to_thread(flooded.disk_bytes)
    assert disk < DISK_BYTES
    assert all(process.alive for process in fleet.processes)
    summary = request.config.pluginmanager.getplugin("quintain-summary")
    name = f"{sent} messages of 15 MiB, {taken} taken, {disk / MIB:.0f} MiB on the disk"
    summary.add("floods", latencies(name, before, during))

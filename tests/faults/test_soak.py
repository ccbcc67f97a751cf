"""Load at 70 % of the fleet's capacity for a long time, with a random kill every 20 s and with none: no call is lost,
and what was never killed has no more memory, descriptors, queues and channels at the end.

``QUINTAIN_TEST_SOAK_MINUTES`` is the length of each of the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import platform
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from faults.invariants import InvariantChecker
from faults.load import Load
from faults.scenario import FaultScenario, ScenarioReport, no_fault
from quintain.settings import environment
from support.process_fleet import Process, ProcessFleet
from support.servers.rabbitmq_admin import BrokerAdmin

SOAK_SECONDS = 60 * float(environment().get("QUINTAIN_TEST_SOAK_MINUTES") or 30)

#: The share of the measured capacity that is sent, how often a process is killed, and how often memory is read.
SHARE, KILL_SECONDS, SAMPLE_SECONDS = 0.7, 20.0, 10.0

#: From here on memory is not to grow: the third minute, or half of a shorter soak.
SETTLED_SECONDS = min(180.0, SOAK_SECONDS / 2)

#: The target's limit, and what its capacity is measured with. Calls wait for a killed worker's lease for 22 s at most.
MEASURED = Load(limit=32, in_flight=96, seconds=20)
LONGEST_WAIT_SECONDS = 22

#: How long a process may take to start beside all the others, where other programs have the cores too.
START_SECONDS = 120.0

#: How long the broker may take to notice what has gone.
BROKER_SECONDS = 60.0

#: By how much memory may grow after it has settled; in a shorter soak than this it is only reported.
MEMORY_GROWTH, JUDGED_SECONDS = 1.05, 600


@dataclass(frozen=True)
class Footprint:
    """What the processes that are never killed, the broker and this process's client hold while no call runs.

    ``queues`` are those with a consumer: the reply queues of a killed process exist unused for 10 minutes.
    """

    descriptors: dict[str, int]
    threads: dict[str, int]
    queues: int
    channels: int
    connections: int
    client_tasks: int


@dataclass
class SoakReport:
    """The figures of one soak. Memory is resident, in KiB, by process, every 10 s."""

    kills: int = 0
    minutes: float = SOAK_SECONDS / 60
    machine: str = ""
    capacity: float = 0.0
    rate: float = 0.0
    memory_kib: dict[str, list[int]] = field(default_factory=dict)
    before: Footprint | None = None
    after: Footprint | None = None
    ending: ScenarioReport | None = None

    def growth(self) -> dict[str, float]:
        """How many times the memory of when it had settled each process has at the end."""
        settled = int(SETTLED_SECONDS / SAMPLE_SECONDS)
        return {
            name: samples[-1] / samples[min(settled, len(samples) - 1)] for name, samples in self.memory_kib.items()
        }


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> Iterator[list[SoakReport]]:
    """The reports of both soaks; they are printed at the end."""
    reports: list[SoakReport] = []
    yield reports
    lines = (json.dumps(dataclasses.asdict(report)) for report in reports)
    request.config.pluginmanager.getplugin("quintain-summary").add("soak", *lines)


@dataclass
class Soak:
    """A fleet of which some processes are never killed, and the others at random."""

    fleet: ProcessFleet
    admin: BrokerAdmin
    report: SoakReport
    kept: dict[str, Process] = field(default_factory=dict)
    killable: dict[Process, str] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(20))

    def start(self) -> None:
        """Two metadata services and three workers: one of each is never killed."""
        metadata, worker, *others = self.fleet.start_services("metadata", "worker", "metadata", "worker", "worker")
        self.kept = {"metadata": metadata, "worker": worker}
        self.killable = dict(zip(others, ("metadata", "worker", "worker"), strict=True))

    async def footprint(self) -> Footprint:
        """What is held now."""
        pids = {name: process.pid for name, process in self.kept.items()}
        return Footprint(
            descriptors={name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in pids.items()},
            threads={name: len(list(Path(f"/proc/{pid}/task").iterdir())) for name, pid in pids.items()},
            queues=sum(queue["consumers"] != 0 for queue in await asyncio.to_thread(self.admin.list_queues)),
            channels=len(await asyncio.to_thread(self.admin.list_channels)),
            connections=len(await asyncio.to_thread(self.admin.list_connections)),
            client_tasks=len(asyncio.all_tasks()),
        )

    async def settled_footprint(self, wanted: Footprint) -> Footprint:
        """What is held once the broker has noticed what has gone, or after the time that it may take."""
        ends_at = time.monotonic() + BROKER_SECONDS
        while True:
            found = await self.footprint()
            is_settled = found.queues <= wanted.queues and found.channels <= wanted.channels
            if is_settled or time.monotonic() > ends_at:
                return found
            await asyncio.sleep(1)

    async def kill_and_start_another(self) -> None:
        """Kill a random process with SIGKILL, and start another in its place."""
        victim = self.chance.choice(list(self.killable))
        service = self.killable.pop(victim)
        await asyncio.to_thread(victim.kill)
        self.report.kills += 1
        other = await asyncio.to_thread(self.fleet.start, "serve", service)
        await asyncio.to_thread(other.wait_for_output, f"ready  {service}", seconds=START_SECONDS)
        self.killable[other] = service

    @contextlib.asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Read memory every 10 s."""

        async def sample() -> None:
            while True:
                for name, process in self.kept.items():
                    self.report.memory_kib.setdefault(name, []).append(resident_kib(process.pid))
                await asyncio.sleep(SAMPLE_SECONDS)

        sampling = asyncio.create_task(sample())
        try:
            yield
        finally:
            sampling.cancel()


@pytest.mark.very_long
@pytest.mark.timeout(2 * SOAK_SECONDS + 900)
@pytest.mark.parametrize("load", [MEASURED], ids=[""])
@pytest.mark.parametrize("kills", [True, False], ids=["random kills", "no kills"])
async def test_nothing_is_lost_and_nothing_grows(
    kills: bool,
    stopped_fleet: ProcessFleet,
    fresh_postgres_url: str,
    broker_admin: BrokerAdmin,
    invariants: InvariantChecker,
    reports: list[SoakReport],
) -> None:
    report = SoakReport(machine=f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}")
    reports.append(report)
    stopped_fleet.extra_env["QUINTAIN_LEDGER_URL"] = fresh_postgres_url
    soak = Soak(stopped_fleet, broker_admin, report)
    await asyncio.to_thread(soak.start)
    measured = FaultScenario(stopped_fleet, (), load=MEASURED)
    await measured.run("none", no_fault)
    report.capacity = measured.times.rate_after_fault(MEASURED.seconds)
    (stopped_fleet.folder / "provider-count").unlink()
    report.rate = SHARE * report.capacity
    report.before = await soak.footprint()

    async def inject_fault(_: ProcessFleet) -> None:
        ends_at = time.monotonic() + SOAK_SECONDS
        async with soak.sampling():
            while (left := ends_at - time.monotonic()) > 0:
                await asyncio.sleep(min(KILL_SECONDS, left))
                if kills and left > KILL_SECONDS:
                    await soak.kill_and_start_another()

    callers = int(report.rate * (LONGEST_WAIT_SECONDS + 5))
    load = dataclasses.replace(MEASURED, in_flight=callers, seconds=0, rate=report.rate)
    after = await FaultScenario(stopped_fleet, (), load=load).run(
        f"soak, {'random' if kills else 'no'} kills", inject_fault
    )
    report.ending = after.report()
    report.after = await soak.settled_footprint(report.before)
    await invariants.check(stopped_fleet, after, faults=frozenset({"worker_lost"}))
    if SOAK_SECONDS >= JUDGED_SECONDS:
        assert max(report.growth().values()) <= MEMORY_GROWTH, report.memory_kib
    assert report.after.queues <= report.before.queues
    assert report.after.channels <= report.before.channels
    before, after_soak = report.before.descriptors, report.after.descriptors
    assert all(after_soak[name] <= before[name] for name in before), f"{before} became {after_soak}"

"""Runs services as processes of their own, and measures sides in turn: rates, latencies, and CPU by process."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import quintain
from quintain.client.connect import connect_admin
from quintain.contracts.session import OpenSession, SessionOpened
from quintain.settings import environment

ADMIN_TOKEN = "the benchmark's admin token"
CONFIG = "targets:\n  bench: {provider: mock, response: fine, max_concurrency: 1000}\n"

Call = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is measured: one call, which stands for ``weight`` calls, and the processes whose CPU counts."""

    name: str
    call: Call
    processes: Mapping[str, int] = field(default_factory=dict)
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Round:
    """One measured round: how many calls ended in how many seconds, and how long each took (milliseconds)."""

    calls: int
    seconds: float
    p50_ms: float
    p99_ms: float
    cpu_us: Mapping[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All rounds of one side in one row of a table; the first side of a row is what the others are compared with."""

    table: str
    row: str
    side: str
    rounds: Sequence[Round]
    ratios: Sequence[float]

    def as_json(self) -> dict[str, object]:
        """Return all figures as plain JSON."""
        rounds = [{**asdict(one), "rate": round(one.rate, 1)} for one in self.rounds]
        ratios = [round(ratio, 3) for ratio in self.ratios]
        return {"table": self.table, "row": self.row, "side": self.side, "rounds": rounds, "ratios": ratios}

    def median(self, value: Callable[[Round], float]) -> float:
        """The median of a figure over the rounds."""
        return statistics.median(value(one) for one in self.rounds)

    @property
    def cpu_us(self) -> dict[str, int]:
        """Microseconds of CPU per call of each process, the median of the rounds."""
        return {name: int(self.median(lambda one, name=name: one.cpu_us[name])) for name in self.rounds[0].cpu_us}  # type: ignore[misc]


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_kb(pid: int, name: str) -> int:
    """A figure of /proc/PID/status, in KiB: ``VmRSS`` now, ``VmHWM`` the peak."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def listening_process(port: int) -> dict[str, int]:
    """The broker on this port, as a process to measure; empty if it is not on this machine."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and int(cells[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{cells[9]}]")
    for process_folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(each.readlink()) in inodes for each in (process_folder / "fd").iterdir()):
                return {"broker": int(process_folder.name)}
    return {}


async def measure(call: Call, in_flight: int, seconds: float, weight: int = 1) -> Round:
    """Keep so many calls in flight for so long."""
    took: list[float] = []
    began = time.perf_counter()

    async def caller() -> None:
        while (start := time.perf_counter()) < began + seconds:
            await call()
            took.append((time.perf_counter() - start) * 1000)

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    elapsed = time.perf_counter() - began
    cuts = statistics.quantiles(took, n=100) if len(took) > 1 else took * 99
    return Round(len(took) * weight, elapsed, round(cuts[49], 2), round(cuts[98], 2))


async def measure_side(side: Side, in_flight: int, seconds: float) -> Round:
    """Measure one round with the CPU of each process; this one is ``client``."""
    pids = {"client": os.getpid(), **side.processes}
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    one = await measure(side.call, in_flight, seconds, side.weight)
    cpu = {name: int((cpu_seconds(pid) - before[name]) / one.calls * 1e6) for name, pid in pids.items()}
    return Round(one.calls, one.seconds, one.p50_ms, one.p99_ms, cpu)


async def compare(
    table: str, row: str, sides: Sequence[Side], in_flight: int, seconds: float, rounds: int
) -> list[Result]:
    """Measure the sides in turn, so that a drift of the machine's speed meets all; ratios are to the first side."""
    measured: list[list[Round]] = [[] for _ in sides]
    for number in range(rounds + 1):
        for side, kept in zip(sides, measured, strict=True):
            one = await measure_side(side, in_flight, seconds if number else min(seconds, 0.5))
            if number:  # the first round warms up
                kept.append(one)
    return [
        Result(
            table=table,
            row=row,
            side=side.name,
            rounds=kept,
            ratios=[mine.rate / peer.rate for mine, peer in zip(kept, measured[0], strict=True)],
        )
        for side, kept in zip(sides, measured, strict=True)
    ]


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


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet of processes: where it is, and their ids."""

    url: str
    pids: Mapping[str, int]

    async def open_session(self, default_target: str = "bench") -> SessionOpened:
        """Open a session that calls do not use up."""
        async with connect_admin(self.url, ADMIN_TOKEN) as admin:
            return await admin.open(OpenSession(default_target=default_target, max_calls=10_000_000))

    @contextlib.asynccontextmanager
    async def client(self, default_target: str = "bench") -> AsyncIterator[quintain.Client]:
        """Connect a client of a new session."""
        async with quintain.connect(self.url, (await self.open_session(default_target)).token) as client:
            yield client


@contextlib.contextmanager
def running_fleet(
    url: str,
    folder: Path,
    config: str = CONFIG,
    *,
    workers: int = 1,
    ledger_url: str = "",
    gateway_port: int = 0,
    broker_pid: Mapping[str, int] | None = None,
) -> Iterator[Fleet]:
    """A metadata service, workers, and a gateway if it has a port, each a process of its own."""
    (folder / "quintain.yaml").write_text(config)
    variables = {
        "QUINTAIN_BROKER_URL": url,
        "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN,
        "QUINTAIN_STATE_DIR": str(folder / "state"),
        "QUINTAIN_CONFIG": str(folder / "quintain.yaml"),
        "QUINTAIN_LEDGER_URL": ledger_url or f"sqlite://{folder / 'ledger.sqlite3'}",
    }
    services = {"metadata": ["metadata"], **{f"worker {number + 1}": ["worker"] for number in range(workers)}}
    if workers == 1:
        services = {"metadata": ["metadata"], "worker": ["worker"]}
    if gateway_port:
        services["gateway"] = ["gateway", "--port", str(gateway_port)]
    with contextlib.ExitStack() as stack:
        pids = {
            name: stack.enter_context(process(["-m", "quintain_cli", "serve", *words], "ready", **variables))
            for name, words in services.items()
        }
        yield Fleet(url, {**pids, **(broker_pid or {})})


def machine() -> str:
    """The machine and the versions, for the page of results."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{os.cpu_count()} cores ({model}), {python}, Quintain {version('quintain')}"

"""Runs services as processes of their own, and measures sides in turn: rates, latencies, and CPU by process."""

from __future__ import annotations

import collections
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import quintain
from closed_loop import Call, Round, measure
from quintain.client.client import connect_admin
from quintain.contracts.session import OpenSession, SessionOpened
from quintain.settings import environment

ADMIN_TOKEN = "the benchmark's admin token"
CONFIG = "targets:\n  bench: {provider: mock, response: fine, max_concurrency: 1000}\n"


class Measured(Protocol):
    """What is measured, and the processes whose CPU counts; ``client`` is this process if none is named so."""

    @property
    def name(self) -> str: ...

    @property
    def processes(self) -> Mapping[str, int]: ...

    async def measure(self, in_flight: int, seconds: float) -> Round: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Calls of this process: one call, which stands for ``weight`` calls."""

    name: str
    call: Call
    processes: Mapping[str, int] = field(default_factory=dict)
    weight: int = 1

    async def measure(self, in_flight: int, seconds: float) -> Round:
        """Keep so many calls in flight for so long."""
        return await measure(self.call, in_flight, seconds, self.weight)


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

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Result:
        """Return what `as_json` gave."""
        rounds = [Round(**{name: value for name, value in one.items() if name != "rate"}) for one in kept["rounds"]]
        return cls(**{**kept, "rounds": rounds})

    def median(self, value: Callable[[Round], float]) -> float:
        """The median of a figure over the rounds."""
        return statistics.median(value(one) for one in self.rounds)

    @property
    def cpu_us(self) -> dict[str, int]:
        """Microseconds of CPU per call of each process, the median of the rounds."""
        return {name: int(self.median(lambda one, name=name: one.cpu_us[name])) for name in self.rounds[0].cpu_us}  # type: ignore[misc]


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, all its threads; and the processes that it started, unless it is this one."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    own_user, own_system, *ended = (int(ticks) for ticks in stat.rpartition(")")[2].split()[11:15])
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    if pid == os.getpid():
        return (own_user + own_system) / ticks_per_second
    used = (own_user + own_system + sum(ended)) / ticks_per_second
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            for child in file.read_text(encoding="ascii").split():
                with contextlib.suppress(OSError):  # and a process, whose time its parent has from then on
                    used += cpu_seconds(int(child))
    return used


def memory_kb(pid: int, name: str) -> int:
    """A figure of /proc/PID/status, in KiB: ``VmRSS`` now, ``VmHWM`` the peak."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def listening_process(url: str, name: str) -> dict[str, int]:
    """The server at this address, as a process to measure; empty if it is not on this machine."""
    port = urlsplit(url).port
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and int(cells[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{cells[9]}]")
    for process_folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(each.readlink()) in inodes for each in (process_folder / "fd").iterdir()):
                return {name: int(process_folder.name)}
    return {}


async def measure_side(side: Measured, in_flight: int, seconds: float) -> Round:
    """Measure one round with the CPU of each process."""
    pids = {"client": os.getpid(), **side.processes}
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    one = await side.measure(in_flight, seconds)
    cpu = {name: int((cpu_seconds(pid) - before[name]) / one.calls * 1e6) for name, pid in pids.items()}
    return Round(one.calls, one.seconds, one.p50_ms, one.p99_ms, cpu)


async def compare(
    table: str, row: str, sides: Sequence[Measured], in_flight: int, seconds: float, rounds: int
) -> list[Result]:
    """Measure the sides in turn, so that a drift of the machine's speed meets all; ratios are to the first side."""
    measured: list[list[Round]] = [[] for _ in sides]
    for number in range(rounds + 1):
        for side, kept in zip(sides, measured, strict=True):
            one = await measure_side(side, in_flight, seconds if number else min(seconds, 0.5))
            if number:  # the first round warms up
                kept.append(one)
    return results_of(table, row, {side.name: kept for side, kept in zip(sides, measured, strict=True)})


async def compare_started(
    table: str,
    row: str,
    sides: Mapping[str, Callable[[], AbstractAsyncContextManager[Measured]]],
    in_flight: int,
    seconds: float,
    rounds: int,
) -> list[Result]:
    """Like `compare`, for fleets that cannot run beside each other on one broker: each is started for each round."""
    measured: dict[str, list[Round]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, start in sides.items():
            async with start() as side:
                await measure_side(side, in_flight, 0.5)
                measured[name].append(await measure_side(side, in_flight, seconds))
    return results_of(table, row, measured)


def results_of(table: str, row: str, measured: Mapping[str, Sequence[Round]]) -> list[Result]:
    """One result for each side; its ratios are to the first."""
    first = next(iter(measured.values()))
    return [
        Result(
            table=table,
            row=row,
            side=name,
            rounds=kept,
            ratios=[mine.rate / peer.rate for mine, peer in zip(kept, first, strict=True)],
        )
        for name, kept in measured.items()
    ]


class NotStarted(SystemExit):
    """A process ended before it said that it is ready."""


@contextlib.contextmanager
def process(args: list[str], phrase: str, *, program: str = sys.executable, **variables: str) -> Iterator[int]:
    """A process that has said it is ready; its id. Raises `NotStarted` with its last lines."""
    running = subprocess.Popen(
        [program, *args],
        env={**environment(), **variables, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    said: collections.deque[str] = collections.deque(maxlen=20)
    for line in running.stdout:
        if phrase in line:
            break
        said.append(line)
    else:
        raise NotStarted(f"{args} did not start:\n{''.join(said)}")
    # A gateway writes a line for each request: a pipe that nobody reads would stop it.
    threading.Thread(target=collections.deque, args=(running.stdout, 0), daemon=True).start()
    try:
        yield running.pid
    finally:
        running.terminate()
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


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
    env: Mapping[str, str] | None = None,
) -> Iterator[Fleet]:
    """Metadata services, workers, and a gateway if it has a port, each a process of its own, with ``env`` too."""
    (folder / "quintain.yaml").write_text(config)
    variables = {
        **(env or {}),
        "QUINTAIN_BROKER_URL": url,
        "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN,
        "QUINTAIN_STATE_DIR": str(folder / "state"),
        "QUINTAIN_CONFIG": str(folder / "quintain.yaml"),
        "QUINTAIN_LEDGER_URL": ledger_url or f"sqlite://{folder / 'ledger.sqlite3'}",
    }
    services = {
        f"{service} {number + 1}" if count > 1 else service: [service]
        for service, count in (("metadata", 1), ("worker", workers))
        for number in range(count)
    }
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

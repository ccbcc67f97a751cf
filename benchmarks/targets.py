"""A hosted target beside the same target in process, and beside a raw aio-pika ping-pong, in the same run.

    make bench-peers                      # a table, and benchmarks/results/targets.json
    python benchmarks/targets.py --seconds 10
    LITELLM_LOCAL_MODEL_COST_MAP=True .venv/superred/bin/python benchmarks/targets.py    # beside superred's own channel

The host is `quintain serve host` in a process of its own, the controller this process, as the raw loop's two ends are.
Where superred is installed the target is superred's, and the peer in process is superred's own channel; else ours.
The rounds alternate, so that a drift of the machine's speed meets both sides. A CPU-bound target runs in two slots of
a process each, beside two at once in process. A sweep runs tasks of a second in slots on two hosts, each with a lease
of its own, beside the time that the tasks alone take.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench_target import Bench, burn_rounds, core
from closed_loop import Round, measure
from harness import process
from quintain.remote.factory import RemoteFactory
from quintain.settings import environment
from quintain.target.type_registry import types_of_target
from raw_rpc import raw_rpc_client
from servers import RABBITMQ, running_server

HERE = Path(__file__).parent
EMITS = 20_000
#: Rounds of burning, and after how many of them a CPU-bound target sends: a chatty one, and one that thinks for longer.
BURNS, STEPS = 40, (1, 10)

#: A sweep: so many tasks of a second, and the slots of its hosts.
TASKS, SWEEP_SLOTS = 20, (1, 2)

#: The side of a row that has ratios: to the bare loop with one call in flight.
RATIO = "hosted : raw, 1 in flight"

#: What a run is given: where its emits go, and its events.
Ends = tuple[Callable[[Any], None], Callable[[Any], Any]]


class CountingController:
    """A controller that answers every event at once and counts what was emitted."""

    def __init__(self) -> None:
        self.emitted = 0
        self.first = self.last = 0.0

    def emit(self, event: Any) -> None:
        """One more."""
        self.last = time.perf_counter()
        self.emitted += 1
        if self.emitted == 1:
            self.first = self.last

    def as_round(self) -> Round:
        """The emits, as they came in here."""
        return Round(self.emitted - 1, self.last - self.first, 0, 0)


async def answer(event: Any) -> Any:
    """The response to every event."""
    return core.ControllableInjection(event=event, controllable=event.controllable, value="fine")


@contextlib.asynccontextmanager
async def channel_of_superred() -> AsyncIterator[Callable[[Any], Any]]:
    """superred's in-process channel with its optimizer's side answering; ours is a plain call."""
    if not hasattr(core, "EventChannel"):
        yield answer
        return
    channel = core.EventChannel()

    async def answer_all() -> None:
        async for envelope in channel:
            envelope.respond(await answer(envelope.event))

    answering = asyncio.get_running_loop().create_task(answer_all())
    yield channel.send
    channel.close()
    await answering


async def run_once(
    target: Any, mode: str, amount: float, in_flight: int = 1, step: int = 1
) -> tuple[Round, CountingController]:
    """One run, and how long its sends took."""
    for name, value in (("mode", mode), ("amount", amount), ("in_flight", in_flight), ("step", step)):
        target.set_config(name, str(value))
    counted = CountingController()
    async with channel_of_superred() as send:
        began = time.perf_counter()
        await target.run(counted.emit, send)
        elapsed = time.perf_counter() - began
    took = json.loads(target.query("took"))
    await target.reset_ephemeral_state()
    cuts = statistics.quantiles(took, n=100) if len(took) > 1 else [0.0] * 99
    return Round(len(took), elapsed, round(cuts[49], 3), round(cuts[98], 3)), counted


async def burn_rate(create: Callable[[], Any], step: int) -> float:
    """Rounds of burning per second, two targets at once that send after each so many."""
    targets = [create() for _ in range(2)]
    began = time.perf_counter()
    await asyncio.gather(*(run_once(target, "burn", BURNS, step=step) for target in targets))
    elapsed = time.perf_counter() - began
    for target in targets:
        await target.teardown()
    return 2 * BURNS / elapsed


async def measure_events(url: str, seconds: float, rounds: int, remote: RemoteFactory) -> list[dict[str, Any]]:
    """Round trips and emits, in turn: raw, hosted and in process; the median of each, and ratios."""
    hosted, here = remote.create(), Bench()
    measured: dict[tuple[str, str], list[Round]] = {}
    async with raw_rpc_client(url) as raw:
        call = partial(raw, b"a request")
        await measure(call, 10, 1)
        await run_once(hosted, "send", 1.0)
        for _ in range(rounds):
            for in_flight in (1, 64):
                what = f"sends, {in_flight} in flight"
                sides = {
                    "raw": await measure(call, in_flight, seconds),
                    "hosted": (await run_once(hosted, "send", seconds, in_flight))[0],
                    "in process": (await run_once(here, "send", seconds / 4, in_flight))[0],
                }
                for who, one in sides.items():
                    measured.setdefault((what, who), []).append(one)
            for who, target in (("hosted", hosted), ("in process", here)):
                measured.setdefault(("emits", who), []).append((await run_once(target, "emit", EMITS))[1].as_round())
    await hosted.teardown()
    rows = [{"what": what, "who": who, **fields(middle(each))} for (what, who), each in measured.items()]
    one_raw = measured["sends, 1 in flight", "raw"]
    for what in ("sends, 1 in flight", "sends, 64 in flight", "emits"):
        pairs = list(zip(measured[what, "hosted"], one_raw, strict=True))
        row = {"what": what, "who": RATIO, "rate": statistics.median(mine.rate / peer.rate for mine, peer in pairs)}
        if what == "sends, 1 in flight":
            row["p50Ms"] = statistics.median(mine.p50_ms / peer.p50_ms for mine, peer in pairs)
        rows.append(row)
    return sorted(rows, key=lambda row: str(row["what"]))


def middle(each: list[Round]) -> Round:
    """The round with the median rate."""
    return sorted(each, key=lambda one: one.rate)[len(each) // 2]


def fields(one: Round) -> dict[str, float]:
    """A round as a row holds it."""
    times = {"p50Ms": one.p50_ms, "p99Ms": one.p99_ms} if one.p50_ms else {}
    return {"rate": round(one.rate, 1), **times}


async def bare_burn_rate(pool: ProcessPoolExecutor) -> float:
    """Rounds of burning per second in two processes that do nothing else: what this machine's cores give."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    await asyncio.gather(*(loop.run_in_executor(pool, burn_rounds, BURNS) for _ in range(2)))
    return 2 * BURNS / (time.perf_counter() - began)


async def measure_burns(rounds: int, remote: RemoteFactory) -> list[dict[str, Any]]:
    """A CPU-bound target, two at once: two processes beside one, and beside two that only burn."""
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        await bare_burn_rate(pool)
        for step in STEPS:
            all_rounds = [
                (await burn_rate(Bench, step), await burn_rate(remote.create, step), await bare_burn_rate(pool))
                for _ in range(rounds)
            ]
            in_process, far, alone = zip(*all_rounds, strict=True)
            told = {
                "hosted": statistics.median(far),
                "in process": statistics.median(in_process),
                "two bare processes": statistics.median(alone),
                "hosted : in process": statistics.median(two / one for one, two, _ in all_rounds),
                "bare : in process": statistics.median(most / one for one, _, most in all_rounds),
            }
            what = f"CPU-bound, two at once, a send after {step}"
            rows += [{"what": what, "who": who, "rate": rate} for who, rate in told.items()]
    return rows


async def measure_sweep(remote: RemoteFactory) -> list[dict[str, Any]]:
    """Tasks of a second, each with a lease of its own: per second, beside what the slots alone would do."""
    slots, waiting = sum(SWEEP_SLOTS), iter(range(TASKS))

    async def run_tasks() -> None:
        for _ in waiting:
            target = remote.create_on(await remote.pool.acquire_async())
            await run_once(target, "wait", 1.0)
            await target.teardown()

    began = time.perf_counter()
    await asyncio.gather(*(run_tasks() for _ in range(slots)))
    rate, ideal = TASKS / (time.perf_counter() - began), TASKS / math.ceil(TASKS / slots)
    what = f"{TASKS} tasks of 1 s in {slots} slots"
    told = {"hosted": rate, "tasks alone": ideal, "hosted : tasks alone": rate / ideal}
    return [{"what": what, "who": who, "rate": each} for who, each in told.items()]


@contextlib.contextmanager
def hosted_factory(url: str, *slots: int) -> Iterator[RemoteFactory]:
    """A factory of the target, on hosts that have so many slots each, in processes of their own."""
    name, types = f"bench{'.'.join(map(str, slots))}", types_of_target(Bench)
    with contextlib.ExitStack() as stack:
        for each in slots:
            words = ["-m", "quintain_cli", "serve", "host", "bench_target:Bench", "--name", name, "--slots", str(each)]
            stack.enter_context(process(words, "ready", QUINTAIN_BROKER_URL=url, PYTHONPATH=str(HERE)))
        yield stack.enter_context(
            RemoteFactory(name, concurrency=sum(slots), url=url, tags="by-path", type_registry=types)
        )


async def compare(url: str, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Everything that is measured."""
    with process([str(HERE / "raw_rpc.py"), url], "ready"), hosted_factory(url, 1) as remote:
        rows = await measure_events(url, seconds, rounds, remote)
    with hosted_factory(url, 2) as remote:
        rows += await measure_burns(rounds, remote)
    with hosted_factory(url, *SWEEP_SLOTS) as remote:
        rows += await measure_sweep(remote)
    return rows


def show(rows: list[dict[str, Any]], how: str) -> None:
    """The table."""
    table = Table(title=f"targets, {how}", title_justify="left")
    for column in ("what", "who"):
        table.add_column(column)
    for column in ("per second", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(row["what"], row["who"], *(format_number(row, name) for name in ("rate", "p50Ms", "p99Ms")))
    Console().print(table)


def format_number(row: dict[str, Any], name: str) -> str:
    """A number of a row, where it has one; a ratio with its sign."""
    if name not in row:
        return ""
    if ":" in row["who"]:
        return f"× {row[name]:.2f}"
    return f"{row[name]:,.0f}" if row[name] >= 100 else f"{row[name]:.2f}"


def main() -> None:
    """Measure, show, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each round takes")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each, all sides in turn")
    options = parser.parse_args()
    with running_server(RABBITMQ, environment(), print) as broker:
        rows = asyncio.run(compare(broker.url, options.seconds, options.rounds))
    peer = "superred's" if hasattr(core, "EventChannel") else "our own"
    how = (
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}, {peer} channel in process"
    )
    show(rows, how)
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / "targets.json").write_text(json.dumps({"how": how, "broker": broker.how, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""The benchmark suite: every figure beside its peers in the same run, in turn, over several rounds.

make bench                                       # all tables, into docs/benchmarks.md
python benchmarks/bench.py calls --seconds 2     # one table, printed
python benchmarks/bench.py --check               # the short form of CI: what must hold
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path

import calls
import gateway
import providers
from harness import Result, machine
from quintain.settings import environment
from report import RESULTS, markdown, recorded_ratio, write_report
from servers import RABBITMQ, running_server

TABLES: dict[str, Callable[[calls.Options], Coroutine[None, None, list[Result]]]] = {
    "calls": calls.in_flight,
    "long": calls.long_calls,
    "batches": calls.batches,
    "prompts": calls.prompts,
    "workers": calls.workers,
    "ledger": calls.full_ledger,
    "gateway": gateway.connections,
    "start": gateway.cold_start,
    "providers": providers.compare_providers,
}

#: The short form: what 100 calls in flight have of the bare loop's rate, and how far below the recorded ratio they may
#: be. Only a ratio is compared, because no two machines have the same rates.
CHECKED_TABLE, CHECKED_SIDE, TOLERANCE = "calls in flight", "SDK, no target", 0.25

#: Where other programs take more than this share of the cores, measured for some seconds, the ratio may be this part of
#: it: it was 0.48 at a load average of 19, and 2.08 without other load.
MAX_OTHERS, OTHERS_SECONDS, BUSY_PART = 0.2, 3.0, 0.23

#: With a provider over HTTP no recorded figure is judged, but the promise itself: what the CPU of all processes for a
#: call is at most, as a part of that of the side named. A call with budget, ledger and broker costs no more than the
#: vendor's own client alone; a stream costs about twice a loop that only reads it (1.6 to 2.2 without other load). On
#: a busy machine the loop reads many chunks at once, and is cheaper: it was 2.3 to 2.9 times at load averages of 6 to
#: 10.
MOST_CPU: dict[providers.Row, tuple[str, float, float]] = {
    providers.Row(32): (providers.OPENAI, 1.0, 1.0),
    providers.Row(32, is_streamed=True): (providers.AIOHTTP, 2.0, 3.0),
}

#: How far above the promise the short form may be, because it measures for a few seconds only; and how many times as
#: long it then measures what was not within its limits.
CPU_TOLERANCE, LONGER = 0.25, 3


def share_of_others() -> float:
    """Return which share of the processors' time other programs and other virtual machines take now."""

    def times() -> list[int]:
        return [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]

    before = times()
    time.sleep(OTHERS_SECONDS)
    user, nice, system, idle, iowait, *rest = (late - early for early, late in zip(before, times(), strict=True))
    busy = user + nice + system + sum(rest)
    return busy / (busy + idle + iowait)


def cpu_ratio(row: providers.Row, side: str, options: calls.Options) -> float:
    """Return what a call to a provider over HTTP costs all our processes, as a part of what it costs the side."""
    found = asyncio.run(providers.compare_providers(options, [row], [side, providers.QUINTAIN]))
    cpu = {one.side: sum(one.cpu_us.values()) for one in found}
    return cpu[providers.QUINTAIN] / cpu[side]


def rate_ratio(options: calls.Options) -> float:
    """Return what 100 calls in flight have of the bare loop's rate."""
    found = asyncio.run(calls.in_flight(options, (100,), [CHECKED_SIDE]))
    return statistics.median(next(one.ratios for one in found if one.side == CHECKED_SIDE))


def is_kept(
    what: str, measure: Callable[[calls.Options], float], options: calls.Options, limits: tuple[float, float]
) -> bool:
    """Whether a ratio is within its limits; one that is not is measured again for longer, twice at most."""
    least, most = limits
    longer = replace(options, seconds=LONGER * options.seconds)
    for each in (options, longer, longer):
        ratio = measure(each)
        print(f"{what}: {ratio:.2f}, at least {least:.2f}, at most {most:.2f}", flush=True)
        if least <= ratio <= most:
            return True
    return False


def check() -> int:
    """Measure the checked ratios for some seconds; returns 1 if one is not as it should be.

    On a machine that other programs keep busy, a smaller part of the rate is enough.
    """
    others = share_of_others()
    is_busy = others > MAX_OTHERS
    if is_busy:
        print(f"other programs took {others:.0%} of the processors' time: limits of a busy machine")
    least = recorded_ratio(CHECKED_TABLE, "100", CHECKED_SIDE) * (1 - TOLERANCE) * (BUSY_PART if is_busy else 1)
    with running_server(RABBITMQ, environment(), print) as broker, tempfile.TemporaryDirectory() as folder:
        options = calls.Options(broker.url, Path(folder), 1.0, 3)
        kept = [
            is_kept(
                f"{row.name} in flight, CPU : {side}",
                partial(cpu_ratio, row, side),
                options,
                (0.0, limits[is_busy] * (1 + CPU_TOLERANCE)),
            )
            for row, (side, *limits) in MOST_CPU.items()
        ]
        kept.append(is_kept(f"{CHECKED_SIDE}, 100 in flight, rate : bare loop", rate_ratio, options, (least, math.inf)))
    return int(not all(kept))


def main() -> None:
    """Measure the tables that are asked for; all of them go into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; all if none is named")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each round takes")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each row, all sides in turn")
    parser.add_argument("--record", action="store_true", help="put these tables alone into docs/benchmarks.md")
    parser.add_argument("--check", action="store_true", help="judge three ratios")
    arguments = parser.parse_args()
    if arguments.check:
        raise SystemExit(check())
    results: list[Result] = []
    load = os.getloadavg()[0]
    with running_server(RABBITMQ, environment(), print) as broker:
        for name in arguments.tables or TABLES:
            with tempfile.TemporaryDirectory() as folder:
                options = calls.Options(broker.url, Path(folder), arguments.seconds, arguments.rounds)
                found = asyncio.run(TABLES[name](options))
            print(markdown(found), flush=True)
            results += found
    if arguments.record or not arguments.tables:
        loads = f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
        how = f"{machine()}; {broker.how.partition(',')[0]}; {loads}; {time.strftime('%Y-%m-%d')}"
        write_report(RESULTS, results, how)


if __name__ == "__main__":
    main()

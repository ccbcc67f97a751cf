"""The closed loop of every measurement: so many calls in flight, each followed by the next.

The standard library alone is imported, because clients of other libraries use it in environments of their own. Such a
client is a process that says when it is ready, and then reads a `Load` and writes a `Round`, each a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field

Call = Callable[[], Awaitable[object]]

#: The line that a server or a client writes when it can be measured.
READY = "ready"


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a client: how many callers for how many seconds, and how many calls at once each is."""

    in_flight: int
    seconds: float
    together: int = 1


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


class ClientFailed(Exception):
    """A client's process could not measure; the last argument is the reason."""


async def measure(call: Call, in_flight: int, seconds: float, weight: int = 1) -> Round:
    """Keep so many calls in flight for so long; each caller makes one call at least."""
    took: list[float] = []
    began = time.perf_counter()

    async def caller() -> None:
        start = began
        while True:
            await call()
            ended = time.perf_counter()
            took.append((ended - start) * 1000)
            if ended >= began + seconds:
                break
            start = ended

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    elapsed = time.perf_counter() - began
    cuts = statistics.quantiles(took, n=100) if len(took) > 1 else took * 99
    return Round(len(took) * weight, elapsed, round(cuts[49], 2), round(cuts[98], 2))


def at_once(call: Call, calls: int) -> Call:
    """So many calls at once, as one."""
    if calls == 1:
        return call

    async def all_calls() -> None:
        await asyncio.gather(*(call() for _ in range(calls)))

    return all_calls


async def answer_loads(call: Call) -> None:
    """Measure each load that is asked on standard input, until it ends."""
    print(READY, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        load = Load(**json.loads(line))
        try:
            found = await measure(at_once(call, load.together), load.in_flight, load.seconds, load.together)
        except Exception as error:  # whatever a library raises is told, and ends this client
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
            raise
        print(json.dumps(asdict(found)), flush=True)


def parse_round(line: str) -> Round:
    """Return the round of a client's line. Raises `ClientFailed` with its words, or where the line is none."""
    try:
        fields = json.loads(line)
        if "error" in fields:
            raise ClientFailed(fields["error"])
        return Round(**fields)
    except (ValueError, TypeError) as error:
        raise ClientFailed(f"its line is no round: {line[:200]!r}") from error

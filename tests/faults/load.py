"""Load that goes on: how many calls are in flight at a time, for how long, and when each was sent and answered."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Awaitable, Callable, Collection

import pytest

from quintain.settings import environment
from quintain.timings import DEFAULT_TIMINGS


def faults_form() -> str:
    """How much is to run: ``short``, ``long`` or ``all``."""
    return environment().get("QUINTAIN_TEST_FAULTS") or "short"


def is_long() -> bool:
    """Whether everything is to run at full length."""
    return faults_form() != "short"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """Callers of whom each sends its next call when the last one is answered, until some time after the fault.

    ``limit`` is the target's ``max_concurrency``; ``seconds`` how long load goes on after the fault was injected;
    ``rate`` how many calls all callers together begin in a second at most; None: as many as are answered.
    """

    limit: int
    in_flight: int
    seconds: float
    rate: float | None = None

    async def send_until(self, ends_at: Callable[[], float], send: Callable[[str], Awaitable[None]]) -> None:
        """Send calls until this moment on the loop's clock, which may become known later, and wait for all answers."""
        loop = asyncio.get_running_loop()
        sent, next_at = 0, loop.time()

        async def keep_calling() -> None:
            nonlocal sent, next_at
            while True:
                if self.rate is not None:
                    next_at += 1 / self.rate
                    await asyncio.sleep(next_at - loop.time())
                if loop.time() >= ends_at():
                    return
                sent += 1
                await send(f"q{sent}")

        await asyncio.gather(*(keep_calling() for _ in range(self.in_flight)))


@dataclasses.dataclass
class CallTimes:
    """When each answered call was sent and answered, and when the fault began and had been injected, on the loop's
    clock."""

    fault_began: float = math.inf
    fault_injected: float = math.inf
    answered: list[tuple[str, float, float]] = dataclasses.field(default_factory=list)

    def seconds_from_fault(self) -> dict[str, float]:
        """From the fault, or from the request where that came later, to the answer: of each call that was in flight
        at any moment between the fault's beginning and its end, by request id."""
        return {
            request_id: answered - max(sent, self.fault_began)
            for request_id, sent, answered in self.answered
            if sent <= self.fault_injected and answered > self.fault_began
        }

    def seconds_until_calls_go_on(self) -> float:
        """From the beginning of the fault to the first answer of a call that was sent after it."""
        later = (answered for _, sent, answered in self.answered if sent > self.fault_began)
        return min(later, default=math.inf) - self.fault_began

    def rate_after_fault(self, seconds: float) -> float:
        """How many calls a second were answered within this time after the fault was injected."""
        ends_at = self.fault_injected + seconds
        return sum(self.fault_injected < answered <= ends_at for _, _, answered in self.answered) / seconds

    def p99(self) -> float | None:
        """99 of 100 calls that were answered after the fault began took no longer than this, in seconds."""
        took = sorted(answered - sent for _, sent, answered in self.answered if answered > self.fault_began)
        return took[math.ceil(len(took) * 0.99) - 1] if took else None


#: A target whose limit is full, and calls that go on after the fault.
LOAD = Load(limit=96, in_flight=300, seconds=60) if is_long() else Load(limit=12, in_flight=36, seconds=6)

#: Longer than in other short forms: a busy machine reads heartbeats late, and then leases are kept on purpose.
LOAD_LEASE_SECONDS = DEFAULT_TIMINGS.lease_seconds if is_long() else 4.0

#: How long after the end of its worker's lease a call that is taken over is answered at the latest, in seconds.
_TAKEOVER_SECONDS = 7.0

#: The same fault with a batch of calls, and under load.
BATCH_AND_LOAD = pytest.mark.parametrize(
    "load", [pytest.param(None, id="batch"), pytest.param(LOAD, id="load", marks=pytest.mark.long)]
)


def check_takeover(seconds: Collection[float]) -> None:
    """Assert that calls that were taken over were answered soon enough; by `make faults`, on a machine without other
    work."""
    if is_long():
        assert max(seconds, default=0) <= LOAD_LEASE_SECONDS + _TAKEOVER_SECONDS

"""A worker that dies while its target's limit is full and load goes on: its calls are answered soon after its lease."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from faults.conftest import is_long
from faults.invariants import InvariantChecker
from faults.scenario import BOT, CONFIG, MAX_CONCURRENCY, CallOutcome, FaultInjection, FaultScenario
from quintain.timings import DEFAULT_TIMINGS
from support.process_fleet import ProcessFleet, process_fleet
from support.quick import lease_variable
from support.recording_bus import RecordingClient
from support.servers.rabbitmq_admin import BrokerUnderTest

#: How long after the end of its worker's lease a call is answered at the latest, in seconds.
TAKEOVER_SECONDS = 7.0

#: The target's limit, the calls in flight, and how long load goes on after the fault, in seconds.
LIMIT, IN_FLIGHT, LOAD_SECONDS = (96, 300, 60.0) if is_long() else (24, 72, 10.0)

#: Longer than in other short forms: a busy machine reads heartbeats late, and then leases are kept on purpose.
LEASE_SECONDS = DEFAULT_TIMINGS.lease_seconds if is_long() else 4.0


@dataclass
class LoadScenario(FaultScenario):
    """A scenario in which every answered call is followed by another one, until some time after the fault."""

    #: How long the calls that were in flight at the fault waited for their answers, in seconds.
    seconds_to_answer: list[float] = field(default_factory=list)

    async def _send_all(
        self, evaluator_client: RecordingClient, inject_fault: FaultInjection
    ) -> dict[str, list[CallOutcome]]:
        loop, answered, numbers = asyncio.get_running_loop(), asyncio.Event(), itertools.count()
        outcomes: dict[str, list[CallOutcome]] = {}
        in_flight: set[str] = set()
        ends_at = math.inf

        async def keep_calling() -> None:
            while loop.time() < ends_at:
                question = f"q{next(numbers)}"
                outcomes[question] = []
                in_flight.add(question)
                _, outcome = await self._send(evaluator_client.client, question, answered)
                in_flight.discard(question)
                if question in orphans:
                    self.seconds_to_answer.append(loop.time() - struck_at)
                outcomes[question] += [] if outcome is None else [outcome]

        orphans: set[str] = set()
        callers = [asyncio.create_task(keep_calling()) for _ in range(IN_FLIGHT)]
        await answered.wait()
        await asyncio.sleep(1)  # until the limit is full
        struck_at = loop.time()
        await inject_fault(self.fleet)
        orphans |= in_flight
        ends_at = loop.time() + LOAD_SECONDS
        await asyncio.gather(*callers)
        return outcomes


@pytest.fixture
def loaded_fleet(
    breakable_broker: BrokerUnderTest, fast_queue_stats: None, request: pytest.FixtureRequest
) -> Iterator[Callable[[str, int], ProcessFleet]]:
    """Starts a fleet of three workers on a store, with so many metadata services."""
    config = CONFIG.replace(f"max_concurrency: {MAX_CONCURRENCY}", f"max_concurrency: {LIMIT}")
    with process_fleet(breakable_broker.url, config, targets=["bot"]) as fleet:
        (fleet.folder / "bot.py").write_text(BOT)
        fleet.extra_env |= {"TEST_BOT_SECONDS": "0.3"} | lease_variable(LEASE_SECONDS)

        def start(store: str, services: int) -> ProcessFleet:
            if store == "postgres":
                fleet.extra_env["QUINTAIN_LEDGER_URL"] = request.getfixturevalue("fresh_postgres_url")
            fleet.start_services(*["metadata"] * services, *["worker"] * 3)
            return fleet

        yield start


@pytest.mark.parametrize(
    ("store", "services"),
    [
        ("sqlite", 1),
        pytest.param("postgres", 1, marks=pytest.mark.long),
        pytest.param("postgres", 3, marks=pytest.mark.long),
    ],
)
async def test_the_calls_of_a_killed_worker_are_answered_while_load_goes_on(
    store: str,
    services: int,
    loaded_fleet: Callable[[str, int], ProcessFleet],
    invariants: InvariantChecker,
) -> None:
    fleet = await asyncio.to_thread(loaded_fleet, store, services)

    async def strike(fleet: ProcessFleet) -> None:
        await asyncio.to_thread(fleet.processes[-1].kill)

    scenario = LoadScenario(fleet, [], max_calls=1_000_000)
    after = await scenario.run(f"worker killed -9 under load, {store} {services}", strike)
    assert max(scenario.seconds_to_answer) <= LEASE_SECONDS + TAKEOVER_SECONDS
    await invariants.check(fleet, after)

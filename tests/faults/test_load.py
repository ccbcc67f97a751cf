"""A worker that dies while its target's limit is full and load goes on: its calls are answered soon after its lease."""

from __future__ import annotations

import asyncio

import pytest

from faults.invariants import InvariantChecker
from faults.load import LOAD, LOAD_LEASE_SECONDS, Load, check_takeover
from faults.scenario import FaultScenario
from support.process_fleet import ProcessFleet
from support.quick import lease_variable

#: Targets' limits and calls in flight: what `make faults` runs, and the rest, which has a command of its own.
LOADS = [
    pytest.param(
        Load(limit=limit, in_flight=in_flight, seconds=30),
        id=f"limit {limit}, {in_flight} in flight",
        marks=[pytest.mark.very_long],
    )
    for limit in (32, 96, 256)
    for in_flight in (100, 300, 1000)
    if (limit, in_flight) != (96, 300)
]


@pytest.mark.parametrize("load", [pytest.param(LOAD, id=f"limit {LOAD.limit}, {LOAD.in_flight} in flight"), *LOADS])
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
    load: Load,
    stopped_fleet: ProcessFleet,
    invariants: InvariantChecker,
    request: pytest.FixtureRequest,
) -> None:
    fleet = stopped_fleet
    fleet.extra_env |= lease_variable(LOAD_LEASE_SECONDS)
    if store == "postgres":
        fleet.extra_env["QUINTAIN_LEDGER_URL"] = request.getfixturevalue("fresh_postgres_url")
    await asyncio.to_thread(fleet.start_services, *["metadata"] * services, *["worker"] * 3)

    async def inject_fault(fleet: ProcessFleet) -> None:
        await asyncio.to_thread(fleet.processes[-1].kill)

    # Named targets, as those of a client that knows its session's default: calls go in groups where slots allow it.
    scenario = FaultScenario(fleet, (), names_target=True, load=load)
    after = await scenario.run(
        f"worker killed -9, {store} ×{services}, {load.limit} of {load.in_flight} run", inject_fault
    )
    await invariants.check(fleet, after)
    assert after.takeover_seconds()
    check_takeover(after.takeover_seconds())

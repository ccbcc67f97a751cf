"""Of three metadata services on one PostgreSQL the leader is killed, or stopped and woken again, under load."""

from __future__ import annotations

import asyncio
import math
import os
import signal

import pytest

from faults.invariants import InvariantChecker
from faults.load import Load, is_long
from faults.scenario import FaultScenario, ScenarioResult
from support.process_fleet import Process, ProcessFleet
from support.waiting import wait_until

#: What docs/reliability.md says: how long after the fault calls go on at the latest, in seconds. The short form shares
#: the machine with other tests: there every call is answered, and nobody says when.
KILLED_SECONDS, STOPPED_SECONDS = (8.0, 15.0) if is_long() else (math.inf, math.inf)

#: How long the stopped one stands still: until another one leads and the broker has its messages back, or much longer.
STILL_SECONDS = 60.0 if is_long() else 20.0

LEADS, STANDS_BY = "This metadata service leads the ledger", "could not keep the ledger's lead, and stands by"


@pytest.fixture
def load() -> Load:
    """Calls that go on, whose answers take no long time in a queue."""
    return Load(limit=32, in_flight=64, seconds=30 if is_long() else 5, rate=100 if is_long() else 15)


@pytest.fixture
def fleet(stopped_fleet: ProcessFleet, fresh_postgres_url: str) -> ProcessFleet:
    """Three metadata services and two workers."""
    stopped_fleet.extra_env |= {"QUINTAIN_LEDGER_URL": fresh_postgres_url, "QUINTAIN_LOG_LEVEL": "info"}
    stopped_fleet.start_services(*["metadata"] * 3, "worker", "worker")
    return stopped_fleet


def leaders(fleet: ProcessFleet) -> list[Process]:
    """Those that lead, as far as they know: they have said so more often than that they stand by again."""
    return [
        process
        for process in fleet.processes
        if process.alive and process.read_output().count(LEADS) > process.read_output().count(STANDS_BY)
    ]


def leader(fleet: ProcessFleet) -> Process:
    (found,) = leaders(fleet)
    return found


async def run(fleet: ProcessFleet, load: Load, fault: str, inject_fault: object) -> ScenarioResult:
    # Without a target in the request: the leader sends half of what is asked on to its target.
    scenario = FaultScenario(fleet, (), load=load)
    return await scenario.run(fault, inject_fault)  # type: ignore[arg-type]


async def test_the_leader_is_killed(fleet: ProcessFleet, load: Load, invariants: InvariantChecker) -> None:
    async def inject_fault(fleet: ProcessFleet) -> None:
        await asyncio.to_thread(leader(fleet).kill)

    after = await run(fleet, load, "leader killed -9", inject_fault)
    assert after.times.seconds_until_calls_go_on() <= KILLED_SECONDS
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(fleet, after)


async def test_the_leader_is_stopped_and_wakes_up(
    fleet: ProcessFleet, load: Load, invariants: InvariantChecker
) -> None:
    stopped = list[Process]()

    async def inject_fault(fleet: ProcessFleet) -> None:
        stopped.append(leader(fleet))
        os.kill(stopped[0].pid, signal.SIGSTOP)
        await asyncio.sleep(STILL_SECONDS)
        os.kill(stopped[0].pid, signal.SIGCONT)
        await asyncio.to_thread(stopped[0].wait_for_output, STANDS_BY)

    after = await run(fleet, load, f"leader stopped {STILL_SECONDS:.0f} s", inject_fault)
    assert after.times.seconds_until_calls_go_on() <= STOPPED_SECONDS
    assert set(after.provider_calls.values()) == {1}
    assert leader(fleet) is not stopped[0]
    await invariants.check(fleet, after)


async def test_the_leader_is_stopped_for_a_shorter_time_than_its_broker_waits(
    fleet: ProcessFleet, load: Load, invariants: InvariantChecker
) -> None:
    """It has messages of the broker when it wakes, and another one leads."""

    async def inject_fault(fleet: ProcessFleet) -> None:
        for _ in range(3):
            stopped = leader(fleet)
            os.kill(stopped.pid, signal.SIGSTOP)
            await wait_until(lambda: len(leaders(fleet)) == 2)
            os.kill(stopped.pid, signal.SIGCONT)
            await wait_until(lambda: len(leaders(fleet)) == 1)
            await asyncio.sleep(1)

    after = await run(fleet, load, "leader stopped until another one leads, 3 ×", inject_fault)
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(fleet, after)


#: Calls of 4 s, so that 512 in flight take minutes, and how often a leader and a worker are killed, in seconds.
MANY_CALLS, MANY_LOAD, LEADER_SECONDS, WORKER_SECONDS = 20_000, Load(limit=512, in_flight=512, seconds=5), 40.0, 25.0


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("load", [pytest.param(MANY_LOAD, id="512")])
async def test_leaders_and_workers_are_killed_again_and_again(
    stopped_fleet: ProcessFleet, fresh_postgres_url: str, load: Load, invariants: InvariantChecker
) -> None:
    fleet = stopped_fleet
    ledger = {"QUINTAIN_LEDGER_URL": fresh_postgres_url, "QUINTAIN_LOG_LEVEL": "info"}
    fleet.extra_env |= ledger | {"TEST_BOT_SECONDS": "4"}
    fleet.start_services("metadata", "metadata")
    workers = fleet.start_services("worker", "worker", "worker")
    scenario = FaultScenario(fleet, (), load=load)

    async def kill_leaders() -> None:
        for number in range(1000):
            await asyncio.sleep(LEADER_SECONDS)
            await wait_until(lambda: len(leaders(fleet)) == 1)
            found = leader(fleet)
            if number == 1:  # once it only stands still
                os.kill(found.pid, signal.SIGSTOP)
                await asyncio.sleep(60)
                os.kill(found.pid, signal.SIGCONT)
            else:
                await asyncio.to_thread(found.kill)
                await asyncio.to_thread(fleet.start, "serve", "metadata")

    async def kill_workers() -> None:
        while True:
            await asyncio.sleep(WORKER_SECONDS)
            await asyncio.to_thread(workers.pop(0).kill)
            workers.append(await asyncio.to_thread(fleet.start, "serve", "worker"))

    async def inject_fault(_: ProcessFleet) -> None:
        async with asyncio.TaskGroup() as group:
            killing = [group.create_task(kill()) for kill in (kill_leaders, kill_workers)]
            while len(scenario.times.answered) < MANY_CALLS:
                await asyncio.sleep(1)
            for each in killing:
                each.cancel()

    after = await scenario.run("leaders and workers killed, 512 in flight", inject_fault)
    await invariants.check(fleet, after)

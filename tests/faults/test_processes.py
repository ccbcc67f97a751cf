"""Processes that die, freeze, stop and come back, under load: at any moment, and at each exact step."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Mapping

import pytest

from faults.crashing_service import CrashPoint, start_with_faults
from faults.invariants import InvariantChecker
from faults.load import BATCH_AND_LOAD, LOAD, LOAD_LEASE_SECONDS, Load, check_takeover
from faults.scenario import MAX_CONCURRENCY, FaultScenario
from quintain.settings import TEST_LEASE_VARIABLE
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.ledger.lifecycle import MAX_ATTEMPTS
from support.process_fleet import Process, ProcessFleet
from support.quick import lease_variable

#: The variable of `BOT` that names the call in which its worker dies.
DIES_IN_CALL = "TEST_DIES_IN_CALL"

#: What a worker can die of: its step on the bus, or its own variables. Settles that are due together are one message:
#: of a batch only the first is sure to come.
WORKER_STEPS: dict[str, CrashPoint | dict[str, str]] = {
    "before admit": CrashPoint(action="publish", name_prefix="quintain.ledger", type="admit", nth=3),
    "after admit": CrashPoint(action="take", name_prefix="quintain.reply.", correlation_id="admit", nth=3),
    "during the call": {DIES_IN_CALL: "3"},
    "after settle": CrashPoint(
        action="publish",
        name_prefix="quintain.ledger",
        type="settle",
        when="after",
        blocked_exchange="quintain.reply",
    ),
    "before settle": CrashPoint(action="publish", name_prefix="quintain.ledger", type="settle"),
    "before the ack": CrashPoint(action="ack", name_prefix="quintain.target.", nth=3),
}

METADATA_STEPS = {
    "took a call of no target": CrashPoint(action="take", name_prefix="quintain.metadata.unrouted", nth=3),
    "sent it on": CrashPoint(action="ack", name_prefix="quintain.metadata.unrouted", nth=3),
    "took an admit": CrashPoint(action="take", name_prefix="quintain.ledger.admit", type="admit", nth=3),
    "granted": CrashPoint(action="publish", name_prefix="quintain.reply", correlation_id="admit", nth=3),
    "took a settle": CrashPoint(action="take", name_prefix="quintain.ledger.settle", nth=3),
    "settled": CrashPoint(action="ack", name_prefix="quintain.ledger.settle", nth=3),
}


@pytest.fixture
def stopped_fleet(stopped_fleet: ProcessFleet, load: Load | None) -> ProcessFleet:
    """A fleet of which nothing runs yet; its leases lapse soon."""
    stopped_fleet.extra_env |= lease_variable(LOAD_LEASE_SECONDS) if load else lease_variable()
    return stopped_fleet


def start_with_crash(
    fleet: ProcessFleet, service: str, fault: CrashPoint | Mapping[str, str], load: Load | None
) -> Process:
    """A service that dies at a step: under load not at the third time, but when the target's limit is full.

    What is counted are messages, and one carries several calls: a worker among eight would not come to many of them.
    One whose replies are held dies at the first all the same: who waits for them sends no further calls.
    """
    if not isinstance(fault, CrashPoint):
        return start_with_faults(fleet, service, extra={DIES_IN_CALL: str(load.in_flight // 8)} if load else fault)
    if load and fault.blocked_exchange is None:
        fault = dataclasses.replace(fault, nth=load.in_flight * 2 if service == "metadata" else load.in_flight // 8)
    return start_with_faults(fleet, service, crash_point=fault)


#: All steps with a batch of calls and under load, and each by itself under load.
DEATHS = [
    pytest.param([*WORKER_STEPS], None, id="every step", marks=pytest.mark.every_broker),
    pytest.param([*WORKER_STEPS], LOAD, id="every step, load", marks=pytest.mark.long),
    *(pytest.param([step], LOAD, id=step, marks=pytest.mark.long) for step in WORKER_STEPS),
]


@pytest.mark.parametrize(("steps", "load"), DEATHS)
async def test_workers_are_killed_at_these_steps(
    steps: list[str],
    load: Load | None,
    stopped_fleet: ProcessFleet,
    questions: list[str],
    invariants: InvariantChecker,
) -> None:
    stopped_fleet.start_services("metadata", "worker")
    dying = [start_with_crash(stopped_fleet, "worker", WORKER_STEPS[step], load) for step in steps]
    for process in dying:
        await asyncio.to_thread(process.wait_for_output, "ready  worker")

    async def inject_fault(_: ProcessFleet) -> None:
        for process in dying:
            await asyncio.to_thread(process.wait_killed)

    more = [*questions, *(f"more {question}" for question in questions)]
    scenario = FaultScenario(stopped_fleet, more, dying=dying, load=load)
    after = await scenario.run(f"workers killed -9: {', '.join(steps)}", inject_fault)
    # Six workers die: a call that was given to as many of them as it may have attempts ends in doubt. Those that were
    # lost beside other calls do not count.
    faults = frozenset({"worker_lost"} if len(steps) > 1 else ())
    await invariants.check(stopped_fleet, after, faults=faults)
    lost = [call for call in after.ledger_calls.values() if call.fault == "worker_lost"]
    assert all(call.granted_attempts >= MAX_ATTEMPTS for call in lost)
    if len(steps) == 1:
        check_takeover(after.takeover_seconds())


@BATCH_AND_LOAD
async def test_the_metadata_service_is_killed_at_every_step_one_after_another(
    load: Load | None, stopped_fleet: ProcessFleet, questions: list[str], invariants: InvariantChecker
) -> None:
    dying = [start_with_crash(stopped_fleet, "metadata", next(iter(METADATA_STEPS.values())), load)]
    await asyncio.to_thread(dying[0].wait_for_output, "ready  metadata")
    await asyncio.to_thread(stopped_fleet.start_services, "worker", "worker")

    async def inject_fault(fleet: ProcessFleet) -> None:
        for step in list(METADATA_STEPS.values())[1:]:
            await asyncio.to_thread(dying[-1].wait_killed)
            dying.append(start_with_crash(fleet, "metadata", step, load))
        await asyncio.to_thread(dying[-1].wait_killed)
        await asyncio.to_thread(fleet.start_services, "metadata")

    scenario = FaultScenario(stopped_fleet, questions, dying=dying[:], load=load)
    after = await scenario.run("metadata killed -9 at every step", inject_fault)
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(stopped_fleet, after)


async def test_a_worker_is_asked_to_stop(
    fleet: ProcessFleet, questions: list[str], invariants: InvariantChecker
) -> None:
    async def inject_fault(fleet: ProcessFleet) -> None:
        assert await asyncio.to_thread(fleet.processes[1].stop) == 0

    after = await FaultScenario(fleet, questions).run("worker SIGTERM", inject_fault)
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(fleet, after)


@pytest.mark.long
async def test_a_worker_freezes_past_its_lease_and_wakes_up(
    stopped_fleet: ProcessFleet, questions: list[str], invariants: InvariantChecker
) -> None:
    # The broker takes its messages back long before its lease lapses: others have taken its calls over when it wakes.
    stopped_fleet.broker_url += "?heartbeat=2"
    del stopped_fleet.extra_env[TEST_LEASE_VARIABLE]
    stopped_fleet.start_services("metadata", "worker", "worker")

    async def inject_fault(fleet: ProcessFleet) -> None:
        frozen = fleet.processes[1].pid
        os.kill(frozen, signal.SIGSTOP)
        await asyncio.sleep(DEFAULT_TIMINGS.lease_seconds + 5)
        os.kill(frozen, signal.SIGCONT)

    after = await FaultScenario(stopped_fleet, questions).run("worker frozen 20 s", inject_fault)
    # What it held when it froze it answers too, late, and in words of its own: its caller has the first answer, drops
    # the second, and is told the first for ever after.
    assert all(said == after.repeated_outcomes[question] for question, (said,) in after.outcomes.items())
    await invariants.check(stopped_fleet, after, second_answers=MAX_CONCURRENCY)

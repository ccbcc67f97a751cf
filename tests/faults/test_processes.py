"""Processes that die, freeze, stop and come back, under load: at any moment, and at each exact step."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping

import pytest

from faults.harness import MOST_AT_ONCE, Siege, nothing
from faults.reckoning import Reckoning
from quintain.settings import TEST_LEASE_VARIABLE
from quintain.timings import DEFAULT_TIMINGS
from support.dying_bus import Step
from support.fleet import Process, ProcessFleet
from support.quick import lease_variable

#: What a worker can die of: its step on the bus, or its own variables.
WORKER_STEPS: dict[str, Step | dict[str, str]] = {
    "before admit": Step(does="publish", where="quintain.ledger", type="admit", nth=3),
    "after admit": Step(does="take", where="quintain.reply.", correlation_id="admit", nth=3),
    "during the call": {"TEST_DIES_IN_CALL": "3"},
    "after settle": Step(
        does="publish", where="quintain.ledger", type="settle", moment="after", nth=3, holds="quintain.reply"
    ),
    "before settle": Step(does="publish", where="quintain.ledger", type="settle", nth=3),
    "before the ack": Step(does="ack", where="quintain.target.", nth=3),
}

METADATA_STEPS = {
    "took a call of no target": Step(does="take", where="quintain.metadata.unrouted", nth=3),
    "sent it on": Step(does="ack", where="quintain.metadata.unrouted", nth=3),
    "took an admit": Step(does="take", where="quintain.ledger.admit", type="admit", nth=3),
    "granted": Step(does="publish", where="quintain.reply", correlation_id="admit", nth=3),
    "took a settle": Step(does="take", where="quintain.ledger.settle", nth=3),
    "settled": Step(does="ack", where="quintain.ledger.settle", nth=3),
}


@pytest.fixture
def bare_fleet(bare_fleet: ProcessFleet) -> ProcessFleet:
    """A fleet of which nothing runs yet; its leases lapse soon."""
    bare_fleet.extra |= lease_variable()
    return bare_fleet


def start_to_die(fleet: ProcessFleet, service: str, way: Step | Mapping[str, str]) -> Process:
    if isinstance(way, Step):
        return fleet.start_oddly(service, dies=way)
    return fleet.start_oddly(service, extra=way)


async def test_nothing_breaks(fleet: ProcessFleet, questions: list[str], reckoning: Reckoning) -> None:
    after = await Siege(fleet, questions).run("none", nothing)
    assert set(after.provider.values()) == {1}
    await reckoning.hold(fleet, after)


@pytest.mark.long
async def test_a_worker_is_killed(fleet: ProcessFleet, questions: list[str], reckoning: Reckoning) -> None:
    async def strike(fleet: ProcessFleet) -> None:
        await asyncio.to_thread(fleet.processes[1].kill)

    after = await Siege(fleet, questions).run("worker killed -9", strike)
    await reckoning.hold(fleet, after)


@pytest.mark.long
@pytest.mark.parametrize("step", WORKER_STEPS)
async def test_a_worker_is_killed_at_a_step(
    step: str, bare_fleet: ProcessFleet, questions: list[str], reckoning: Reckoning
) -> None:
    bare_fleet.start_services("metadata", "worker")
    dying = start_to_die(bare_fleet, "worker", WORKER_STEPS[step])
    await asyncio.to_thread(dying.until, "ready  worker")

    async def strike(_: ProcessFleet) -> None:
        await asyncio.to_thread(dying.killed)

    after = await Siege(bare_fleet, questions, at_once=True).run(f"worker killed -9 {step}", strike)
    await reckoning.hold(bare_fleet, after)


async def test_workers_are_killed_at_every_step_in_one_siege(
    bare_fleet: ProcessFleet, questions: list[str], reckoning: Reckoning
) -> None:
    bare_fleet.start_services("metadata", "worker")
    dying = [start_to_die(bare_fleet, "worker", way) for way in WORKER_STEPS.values()]
    for process in dying:
        await asyncio.to_thread(process.until, "ready  worker")

    async def strike(_: ProcessFleet) -> None:
        for process in dying:
            await asyncio.to_thread(process.killed)

    siege = Siege(bare_fleet, [*questions, *(f"more {question}" for question in questions)], at_once=True)
    after = await siege.run("workers killed -9 at every step", strike)
    await reckoning.hold(bare_fleet, after)


@pytest.mark.long
@pytest.mark.parametrize("step", METADATA_STEPS)
async def test_the_metadata_service_is_killed_at_a_step(
    step: str, bare_fleet: ProcessFleet, questions: list[str], reckoning: Reckoning
) -> None:
    dying = start_to_die(bare_fleet, "metadata", METADATA_STEPS[step])
    await asyncio.to_thread(dying.until, "ready  metadata")
    await asyncio.to_thread(bare_fleet.start_services, "worker", "worker")

    async def strike(fleet: ProcessFleet) -> None:
        await asyncio.to_thread(dying.killed)
        await asyncio.to_thread(fleet.start_services, "metadata")

    after = await Siege(bare_fleet, questions, at_once=True).run(f"metadata killed -9: {step}", strike)
    assert set(after.provider.values()) == {1}
    await reckoning.hold(bare_fleet, after)


async def test_the_metadata_service_is_killed_at_every_step_one_after_another(
    bare_fleet: ProcessFleet, questions: list[str], reckoning: Reckoning
) -> None:
    dying = [start_to_die(bare_fleet, "metadata", next(iter(METADATA_STEPS.values())))]
    await asyncio.to_thread(dying[0].until, "ready  metadata")
    await asyncio.to_thread(bare_fleet.start_services, "worker", "worker")

    async def strike(fleet: ProcessFleet) -> None:
        for step in list(METADATA_STEPS.values())[1:]:
            await asyncio.to_thread(dying[-1].killed)
            dying.append(start_to_die(fleet, "metadata", step))
        await asyncio.to_thread(dying[-1].killed)
        await asyncio.to_thread(fleet.start_services, "metadata")

    after = await Siege(bare_fleet, questions, at_once=True).run("metadata killed -9 at every step", strike)
    assert set(after.provider.values()) == {1}
    await reckoning.hold(bare_fleet, after)


async def test_a_worker_is_asked_to_stop(fleet: ProcessFleet, questions: list[str], reckoning: Reckoning) -> None:
    async def strike(fleet: ProcessFleet) -> None:
        assert await asyncio.to_thread(fleet.processes[1].stop) == 0

    after = await Siege(fleet, questions).run("worker SIGTERM", strike)
    assert set(after.provider.values()) == {1}
    await reckoning.hold(fleet, after)


@pytest.mark.long
async def test_both_workers_are_replaced_one_after_the_other(
    fleet: ProcessFleet, questions: list[str], reckoning: Reckoning
) -> None:
    async def strike(fleet: ProcessFleet) -> None:
        for old in fleet.processes[1:3]:
            await asyncio.to_thread(fleet.start_services, "worker")
            assert await asyncio.to_thread(old.stop) == 0

    after = await Siege(fleet, questions).run("both workers replaced", strike)
    assert set(after.provider.values()) == {1}
    await reckoning.hold(fleet, after)


@pytest.mark.long
async def test_the_metadata_service_is_asked_to_stop_and_another_comes(
    fleet: ProcessFleet, questions: list[str], reckoning: Reckoning
) -> None:
    async def strike(fleet: ProcessFleet) -> None:
        assert await asyncio.to_thread(fleet.processes[0].stop) == 0
        await asyncio.to_thread(fleet.start_services, "metadata")

    after = await Siege(fleet, questions).run("metadata SIGTERM", strike)
    assert set(after.provider.values()) == {1}
    await reckoning.hold(fleet, after)


@pytest.mark.long
async def test_a_worker_freezes_past_its_lease_and_wakes_up(
    bare_fleet: ProcessFleet, questions: list[str], reckoning: Reckoning
) -> None:
    # The broker takes its messages back long before its lease lapses: others have taken its calls over when it wakes.
    bare_fleet.broker_url += "?heartbeat=2"
    del bare_fleet.extra[TEST_LEASE_VARIABLE]
    bare_fleet.start_services("metadata", "worker", "worker")

    async def strike(fleet: ProcessFleet) -> None:
        frozen = fleet.processes[1].pid
        os.kill(frozen, signal.SIGSTOP)
        await asyncio.sleep(DEFAULT_TIMINGS.lease_seconds + 5)
        os.kill(frozen, signal.SIGCONT)

    after = await Siege(bare_fleet, questions).run("worker frozen 20 s", strike)
    # What it held when it froze it answers too, late, and in words of its own: its caller has the first answer, drops
    # the second, and is told the first for ever after.
    assert all(said == after.again[question] for question, (said,) in after.said.items())
    await reckoning.hold(bare_fleet, after, second_answers=MOST_AT_ONCE)

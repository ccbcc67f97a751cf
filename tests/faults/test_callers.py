"""Callers who ask twice, take back, live by another clock, or are asked to wait: the budget and the answers hold."""

from __future__ import annotations

import asyncio
import time

import pytest

from faults.crashing_service import CLOCK_AHEAD_VARIABLE, start_with_faults
from faults.invariants import InvariantChecker
from faults.scenario import (
    FaultScenario,
    no_fault,
)
from support.process_fleet import ProcessFleet

HOUR_SECONDS = 3600


async def test_clocks_are_an_hour_off(
    stopped_fleet: ProcessFleet, questions: list[str], invariants: InvariantChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = [{CLOCK_AHEAD_VARIABLE: str(ahead)} for ahead in (HOUR_SECONDS, -HOUR_SECONDS)]
    metadata = stopped_fleet.start("serve", "metadata")
    workers = [start_with_faults(stopped_fleet, "worker", extra=extra) for extra in odd]
    for process, service in ((metadata, "metadata"), *((worker, "worker") for worker in workers)):
        await asyncio.to_thread(process.wait_for_output, f"ready  {service}")
    # This process is the evaluator; its own clock is ahead too.
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + HOUR_SECONDS)
    after = await FaultScenario(stopped_fleet, questions, deadline_seconds=60).run("clocks an hour off", no_fault)
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(stopped_fleet, after)

"""Calls that end every process they run in: whoever ran beside them is answered, and charged once."""

from __future__ import annotations

import asyncio

import pytest

from faults.invariants import InvariantChecker
from faults.scenario import FaultScenario, config_with_limit, no_fault
from quintain.errors import ProviderFailed
from quintain_metadata.ledger.lifecycle import CallState
from support.process_fleet import ProcessFleet

#: A provider that ends its process at once, whatever else runs there, if the question is a poison.
BOT = """
import asyncio, os, pathlib

COUNT = pathlib.Path(__file__).with_name("provider-count")


async def answer(request):
    with COUNT.open("a") as count:
        count.write(request.question + "\\n")
    if request.question.startswith("poison"):
        os._exit(1)
    await asyncio.sleep(0.1)
    return f"answer to {request.question}"
"""

#: A group has an eighth of the slots of a worker: enough for all calls in one.
SLOTS, CALLS = 400, 49


@pytest.mark.parametrize(
    ("poisons", "grouped"),
    [(1, True), pytest.param(2, True, marks=pytest.mark.long), pytest.param(1, False, marks=pytest.mark.long)],
)
async def test_a_call_that_ends_its_process_takes_no_other_with_it(
    poisons: int, grouped: bool, stopped_fleet: ProcessFleet, invariants: InvariantChecker
) -> None:
    (stopped_fleet.folder / "quintain.yaml").write_text(config_with_limit(SLOTS))
    (stopped_fleet.folder / "bot.py").write_text(BOT)
    workers = (await asyncio.to_thread(stopped_fleet.start_services, "metadata", "worker", "worker"))[1:]
    good = [f"q{number}" for number in range(CALLS - poisons)]
    bad = [f"poison {number}" for number in range(poisons)]
    scenario = FaultScenario(stopped_fleet, [*good[:5], *bad, *good[5:]], names_target=grouped, deadline_seconds=200)
    after = await scenario.run(f"{poisons} of {CALLS} calls end their process", no_fault)
    assert all(worker.alive for worker in workers)
    report = await invariants.check(stopped_fleet, after, faults=frozenset({ProviderFailed.code}), tries=3)
    assert (report.answers, report.charged, report.in_doubt) == (CALLS, CALLS, poisons)
    assert {call.state for name, call in after.ledger_calls.items() if name in good} == {CallState.COMMITTED}
    # Those with a try in the process that ended have another one.
    assert {call.granted_attempts for call in after.ledger_calls.values()} <= {1, 2}

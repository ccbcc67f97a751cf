"""Calls that end every worker process they run in: whoever ran beside them is answered, and charged once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from faults.invariants import InvariantChecker
from faults.scenario import FaultScenario, config_with_limit, no_fault
from quintain.errors import WorkerLost
from quintain_metadata.ledger.lifecycle import MAX_ATTEMPTS, CallState
from support.process_fleet import ProcessFleet
from support.quick import lease_variable

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
SLOTS, CALLS, WORKERS = 400, 49, 2


@pytest.fixture
def stopped_fleet(stopped_fleet: ProcessFleet) -> ProcessFleet:
    """A fleet of which nothing runs yet; its leases lapse soon."""
    stopped_fleet.extra_env |= lease_variable()
    return stopped_fleet


@contextlib.asynccontextmanager
async def supervised_workers(fleet: ProcessFleet) -> AsyncIterator[None]:
    """Start a worker for each that has died, as a supervisor does."""
    workers = await asyncio.to_thread(fleet.start_services, *["worker"] * WORKERS)

    async def restart() -> None:
        while True:
            for number, worker in enumerate(workers):
                if not worker.alive:
                    # It is not waited for: it may die as soon as it consumes.
                    workers[number] = await asyncio.to_thread(fleet.start, "serve", "worker")
            await asyncio.sleep(0.05)

    supervisor = asyncio.create_task(restart())
    try:
        yield
    finally:
        supervisor.cancel()
        await asyncio.gather(supervisor, return_exceptions=True)


@pytest.mark.parametrize(
    ("poisons", "grouped"),
    [(1, True), pytest.param(2, True, marks=pytest.mark.long), pytest.param(1, False, marks=pytest.mark.long)],
)
async def test_a_call_that_ends_its_worker_takes_no_other_with_it(
    poisons: int, grouped: bool, stopped_fleet: ProcessFleet, invariants: InvariantChecker
) -> None:
    (stopped_fleet.folder / "quintain.yaml").write_text(config_with_limit(SLOTS))
    (stopped_fleet.folder / "bot.py").write_text(BOT)
    await asyncio.to_thread(stopped_fleet.start_services, "metadata")
    good = [f"q{number}" for number in range(CALLS - poisons)]
    bad = [f"poison {number}" for number in range(poisons)]
    questions = [*good[:5], *bad, *good[5:]]
    async with supervised_workers(stopped_fleet):
        scenario = FaultScenario(stopped_fleet, questions, names_target=grouped, deadline_seconds=200)
        after = await scenario.run(f"{poisons} of {CALLS} calls end each worker", no_fault)
    report = await invariants.check(stopped_fleet, after, faults=frozenset({WorkerLost.code}))
    assert (report.answers, report.charged, report.in_doubt) == (CALLS, CALLS, poisons)
    assert {call.state for name, call in after.ledger_calls.items() if name in good} == {CallState.COMMITTED}
    for name in bad:
        call = after.ledger_calls[name]
        assert call.fault == WorkerLost.code
        assert call.granted_attempts > MAX_ATTEMPTS, "losses in company are not counted"

"""The same command again, after each change: it asks and grades what the table of docs/run.md says, wherever it runs.

Counted by those who are asked: the provider, the programs and the judge.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quintain_runner.engine.execution import execute_run
from quintain_runner.engine.run_settings import RunOptions
from support.changing_evaluation import CHANGES, Calls, ChangingEvaluation
from support.model_server import model_server
from support.process_fleet import delete_protocol_queues
from support.rerun_placements import LocalPlacement, Placement, fleet_placement, gateway_placement

PLAN_KEYS = ("kept", "gradedAgain", "askedAgain", "new", "leftOut")


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChangingEvaluation]:
    monkeypatch.chdir(tmp_path)
    async with model_server() as server:
        yield ChangingEvaluation(tmp_path, server)


@pytest.fixture
async def placement(request: pytest.FixtureRequest, world: ChangingEvaluation) -> AsyncIterator[Placement]:
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "fleet":
            broker_url = request.getfixturevalue("broker_url")
            targets = ("good", "better", "prog", "judge")
            delete_protocol_queues(broker_url, targets)
            stack.callback(delete_protocol_queues, broker_url, targets)
            yield await stack.enter_async_context(fleet_placement(world, broker_url))
        elif request.param == "gateway":
            yield await stack.enter_async_context(gateway_placement(world))
        else:
            yield LocalPlacement(world)


async def run(world: ChangingEvaluation, placement: Placement, monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """Give the command; the plan that it recorded."""
    with monkeypatch.context() as environment:
        for name, value in (world.env | placement.env).items():
            environment.setenv(name, value)
        report = await execute_run(RunOptions(path=Path("eval.yaml"), command="quintain run eval.yaml"))
    total = report.summary.total
    assert (total.graded, total.errors, report.summary.total.calls_without_row) == (2 * world.limit, 0, 0)
    plan = json.loads((world.output / "run.json").read_text())["history"][-1]["plan"]
    return tuple(plan[key] for key in PLAN_KEYS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("placement", "is_ledger_lost"),
    [(placement, is_ledger_lost) for placement in ("local", "fleet", "gateway") for is_ledger_lost in (False, True)],
    indirect=["placement"],
)
async def test_the_same_command_again_asks_and_grades_what_changed(
    world: ChangingEvaluation, placement: Placement, is_ledger_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await run(world, placement, monkeypatch) == (0, 0, 0, 6, 0)
    assert world.take_calls() == Calls(good=3, prog=3, judge=6, script=6)
    world.assert_rows_are_true()
    for change in CHANGES:
        change.apply(world)
        world.write()
        if is_ledger_lost:
            await placement.lose_ledger()
        elif change.is_served:
            await placement.serve_changes()
        plan = await run(world, placement, monkeypatch)
        assert (change.name, plan, world.take_calls()) == (change.name, change.plan, change.calls)
        world.assert_rows_are_true()

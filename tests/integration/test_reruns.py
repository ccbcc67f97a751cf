"""The same command again, after each change: it asks and grades what the table of docs/run.md says, wherever it runs.

Counted by those who are asked: the provider, the programs and the judge.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from quintain.bus.memory import MemoryBroker
from quintain.config.loader import load_config
from quintain.timings import DEFAULT_TIMINGS
from quintain_gateway.server import run_gateway
from quintain_gateway.settings import BindAddress, GatewayLimits
from quintain_metadata.service import running_metadata
from quintain_runner import services
from quintain_runner.engine.execution import execute_run
from quintain_runner.engine.run_settings import RunOptions
from support.changing_evaluation import CHANGES, Calls, ChangingEvaluation
from support.model_server import model_server
from support.process_fleet import delete_protocol_queues

ADMIN_TOKEN = "the admin token of a test"


class Placement(Protocol):
    """Services, or none, that the command finds by its environment."""

    @property
    def env(self) -> dict[str, str]:
        """The variables that name the fleet."""

    async def serve_changes(self) -> None:
        """Bring what changed in the configuration and its files to the workers."""

    async def lose_ledger(self) -> None:
        """Start over with an empty ledger."""


@dataclass
class LocalPlacement:
    """Everything runs in the process of the run, and the ledger is in its results folder."""

    world: ChangingEvaluation
    env: dict[str, str] = field(default_factory=dict)

    async def serve_changes(self) -> None:
        pass

    async def lose_ledger(self) -> None:
        for path in self.world.output.glob("ledger.sqlite3*"):
            path.unlink()


class FleetPlacement:
    """A metadata service and a worker on a broker, each restarted where a test says so."""

    def __init__(self, world: ChangingEvaluation, broker_url: str, memory: MemoryBroker | None) -> None:
        self._world, self._url, self._memory = world, broker_url, memory
        self.env: dict[str, str] = {"QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        self._ledgers = 0
        self._metadata, self._worker = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()

    async def start(self) -> None:
        await self._start_metadata()
        await self._start_worker()

    async def stop(self) -> None:
        await self._worker.aclose()
        await self._metadata.aclose()

    async def serve_changes(self) -> None:
        await self._worker.aclose()
        await self._start_worker()

    async def lose_ledger(self) -> None:
        await self.stop()
        self._ledgers += 1
        await self.start()

    async def _start_metadata(self) -> None:
        url = f"sqlite://{self._world.folder / f'ledger-{self._ledgers}.sqlite3'}"
        ledger = await self._metadata.enter_async_context(services.open_ledger_or_wait(url))
        bus = await self._metadata.enter_async_context(services.open_bus(self._url, "metadata", self._memory))
        await self._metadata.enter_async_context(running_metadata(bus, ledger, ADMIN_TOKEN, timings=DEFAULT_TIMINGS))

    async def _start_worker(self) -> None:
        bus = await self._worker.enter_async_context(services.open_bus(self._url, "worker", self._memory))
        config = load_config(self._world.folder / "quintain.yaml")
        await self._worker.enter_async_context(services.run_worker(bus, config, self._world.env))


@contextlib.asynccontextmanager
async def fleet_placement(world: ChangingEvaluation, broker_url: str) -> AsyncIterator[FleetPlacement]:
    """A fleet on this broker, which the run reaches over AMQP."""
    placement = FleetPlacement(world, broker_url, None)
    placement.env["QUINTAIN_BROKER_URL"] = broker_url
    await placement.start()
    try:
        yield placement
    finally:
        await placement.stop()


@contextlib.asynccontextmanager
async def gateway_placement(world: ChangingEvaluation) -> AsyncIterator[FleetPlacement]:
    """A fleet behind a gateway, which the run reaches over HTTP alone."""
    memory = MemoryBroker()
    placement = FleetPlacement(world, "memory://", memory)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(memory.close)
        await placement.start()
        stack.push_async_callback(placement.stop)
        bus = await stack.enter_async_context(services.open_bus("memory://", "gateway", memory))
        url = await stack.enter_async_context(run_gateway(bus, BindAddress(), GatewayLimits()))
        placement.env["QUINTAIN_GATEWAY_URL"] = url
        yield placement


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

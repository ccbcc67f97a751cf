"""The same command again, over a hosted target: what its host runs is a part of the target's fingerprint."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quintain.client.client import connect
from quintain.config.fingerprint import hosted_fingerprint, target_fingerprints
from quintain.config.loader import Config, load_config
from quintain.contracts.session import OpenSession
from quintain_gateway.settings import GatewayLimits
from quintain_host.host import Host
from quintain_host.instances import factory_fingerprint
from quintain_runner.engine.run_settings import RunOptions
from quintain_runner.evaluation import execute_run
from quintain_runner.services import Fleet, FleetPlan, run_fleet
from support.quick import timings
from support.target_placements import scripted_target_class

#: Hosts are asked, and files looked at, more often than they are; leases are as long as they are.
TIMINGS = timings(host_heartbeat_seconds=0.1, file_check_seconds=0.05)

ADMIN_TOKEN = "the admin token of a test"
TARGET = "desk"

CONFIG = f"targets: {{{TARGET}: {{provider: target, max_concurrency: 1}}}}"
EVALUATION = f"""
dataset: cases.jsonl
targets: [{TARGET}]
graders: [{{name: told, builtin: contains}}]
"""


def cases(count: int) -> str:
    rows = ({"id": f"case-{n}", "question": f"q{n}", "expected": "answers"} for n in range(count))
    return "".join(f"{json.dumps(row)}\n" for row in rows)


class HostedWorld:
    """A fleet in this process, the module of a factory, and hosts of it that a test starts and stops."""

    def __init__(self, folder: Path, fleet: Fleet, config: Config) -> None:
        self.folder, self._fleet, self._config = folder, fleet, config
        self.env = {"QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN, "QUINTAIN_GATEWAY_URL": fleet.gateway_url}

    @contextlib.asynccontextmanager
    async def host(self, version: str) -> AsyncIterator[None]:
        """A host of the module with this text; entered when the worker knows it."""

        async def script(body: Any, emit: Any, send: Any) -> None:
            emit(body.observation_event(f"{version} answers"))

        (self.folder / "desk.py").write_text(version)
        target_class: Any = scripted_target_class("ours")
        assert self._fleet.memory is not None
        bus = self._fleet.memory.connect()
        fingerprint = factory_fingerprint("desk:Desk", self.folder)
        host = Host(bus, TARGET, lambda: target_class(script), 1, fingerprint=fingerprint, timings=TIMINGS)
        await host.start()
        try:
            await self._wait_registered(fingerprint)
            yield
        finally:
            await host.stop(1)
            await bus.close()

    async def _wait_registered(self, host: str) -> None:
        """Wait until the worker has registered the target with this fingerprint of its host."""
        configured = target_fingerprints(self._config.targets, self.folder, {})[TARGET]()
        session = await self._fleet.open_session(OpenSession(default_target=TARGET, max_calls=1))
        async with (
            asyncio.timeout(30),
            connect(self._fleet.broker_url, session.token, memory=self._fleet.memory) as client,
        ):
            while (await client.get_info()).target_fingerprints != {TARGET: hosted_fingerprint(configured, host)}:
                await asyncio.sleep(0.02)

    async def run(self, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, int], Counter[str]]:
        """Give the command; what its plan kept and asked, and the outputs or error codes of the rows."""
        with monkeypatch.context() as environment:
            for name, value in self.env.items():
                environment.setenv(name, value)
            await execute_run(RunOptions(path=Path("eval.yaml"), command="quintain run eval.yaml"))
        output = self.folder / "runs" / "eval"
        plan = json.loads((output / "run.json").read_text())["history"][-1]["plan"]
        rows = [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]
        latest = {row["caseId"]: row["output"] or row["error"]["code"] for row in rows}
        return {key: plan[key] for key in ("kept", "askedAgain", "new") if plan[key]}, Counter(latest.values())


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HostedWorld]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quintain.yaml").write_text(CONFIG)
    (tmp_path / "eval.yaml").write_text(EVALUATION)
    (tmp_path / "cases.jsonl").write_text(cases(3))
    plan = FleetPlan(
        config=load_config(tmp_path / "quintain.yaml"),
        env={},
        broker_url="memory://",
        ledger_url="sqlite://",
        admin_token=ADMIN_TOKEN,
        limits=GatewayLimits(),
        timings=TIMINGS,
    )
    async with run_fleet(plan) as fleet:
        yield HostedWorld(tmp_path, fleet, plan.config)


async def test_a_host_restarted_with_another_module_is_asked_again_and_with_the_same_one_it_is_not(
    world: HostedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.host("one"):
        assert await world.run(monkeypatch) == ({"new": 3}, {"one answers": 3})
    async with world.host("one"):
        assert await world.run(monkeypatch) == ({"kept": 3}, {"one answers": 3})
    async with world.host("two"):
        assert await world.run(monkeypatch) == ({"askedAgain": 3}, {"two answers": 3})
        assert await world.run(monkeypatch) == ({"kept": 3}, {"two answers": 3})


async def test_of_hosts_of_two_versions_only_the_planned_one_makes_rows(
    world: HostedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.host("one"):
        _, outputs = await world.run(monkeypatch)
        async with world.host("two"):
            (world.folder / "cases.jsonl").write_text(cases(6))
            _, outputs = await world.run(monkeypatch)
    # The other host's answers are errors, whichever of the two the worker knew when the run began.
    assert outputs.total() == 6
    assert len(outputs.keys() - {"target_changed"}) == 1

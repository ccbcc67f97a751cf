"""What a hosted agent calls models with: a child of its caller's session, over both transports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from quintain.bus.base import Bus
from quintain.bus.connect import connect_bus
from quintain.client.connect import connect
from quintain.contracts.metadata import Info, SessionState
from quintain.errors import (
    BudgetExhausted,
    Fault,
    ForbiddenTarget,
    ProviderFailed,
    TimedOut,
    Unauthorized,
)
from quintain.target import SESSION_SLOT
from quintain_host.host import Host
from support.memory_fleet import MemoryFleet, memory_fleet
from support.standing import scripted

CONFIG = """
targets:
  model: {{provider: mock, response: "an opinion"}}
  other: {{provider: mock, response: "never"}}
  slow: {{provider: mock, response: "late", delay_ms: 60000}}
  agent: {{provider: target, host: {host}, child_session: {{targets: [model, slow], max_calls: 3}}}}
  brief: {{provider: target, host: {host}, timeout_seconds: 1, child_session: {{targets: [model]}}}}
  plain: {{provider: target, host: {host}}}
"""


class Agent(scripted("ours")):  # type: ignore[misc]
    """Does what a test says, with the session it was given."""

    session: str | None = None

    @property
    def config_specs(self) -> list[Any]:
        return [self.words.config_spec(SESSION_SLOT, self.user, "what it calls models with")]

    def set_config(self, name: str, value: str) -> None:
        assert name == SESSION_SLOT
        self.session = value


@dataclass
class Ground:
    """A fleet with a host of agents. ``made`` are the agents themselves."""

    fleet: MemoryFleet
    made: list[Any] = field(default_factory=list)
    serves: Any = None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @contextlib.asynccontextmanager
    async def calling(self, token: str) -> AsyncIterator[Any]:
        running = self.fleet.running
        async with connect(running.broker_url, token, memory=running.memory) as client:
            yield client

    async def with_models(self, agent: Any, act: Callable[[Any], Awaitable[None]]) -> None:
        """Act with the session that an agent was given: on the fleet's loop, as a broker in memory is one thread's."""

        async def there() -> None:
            async with self.calling(agent.session) as models:
                await act(models)

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), self.loop))

    def create(self) -> Any:
        self.made.append(self.serves())
        return self.made[-1]


#: What depends on the transport is held over both; the rest is the worker's own.
over_both = pytest.mark.parametrize("ground", ["memory", "rabbit"], indirect=True)


@pytest.fixture
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    url = request.getfixturevalue("broker_url") if getattr(request, "param", "") == "rabbit" else "memory://"
    name = f"agent-{secrets.token_hex(3)}"
    async with memory_fleet(tmp_path, CONFIG.format(host=name), broker_url=url) as fleet:
        ground = Ground(fleet)
        bus: Bus = await connect_bus(url, "host", memory=fleet.running.memory)
        host = Host(bus, name, ground.create, 2)
        ground.serves = lambda: Agent(idle)
        await host.start()
        try:
            yield ground
        finally:
            await host.stop(0)
            await bus.close()


async def idle(agent: Any, emit: Any, send: Any) -> None:
    emit(agent.shows("nothing"))


def four_calls(ground: Ground) -> Any:
    async def script(agent: Any, emit: Any, send: Any) -> None:
        async def ask(models: Any) -> None:
            for _ in range(4):
                try:
                    agent.notes.append((await models.invoke("well?")).raw_text)
                except Fault as fault:
                    agent.notes.append(fault.code)
            agent.kept = await models.get_info()

        await ground.with_models(agent, ask)
        emit(agent.shows(agent.notes))

    return script


@over_both
async def test_an_agent_calls_models_under_its_callers_budget_and_no_further(ground: Ground) -> None:
    ground.serves = lambda: Agent(four_calls(ground))
    async with ground.fleet.client("agent", max_calls=10) as client:
        said = await client.invoke("go")
        info = await client.get_info()
    assert json.loads(said.raw_text) == [*["an opinion"] * 3, BudgetExhausted.code]
    child: Info = ground.made[0].kept
    assert (child.call_count, child.max_calls, child.parent_id) == (3, 3, info.session_id)
    assert child.available_targets == ["model", "slow"]
    # One for the agent, and three for what it called.
    assert (info.call_count, info.committed) == (4, 4)


async def test_the_parents_budget_is_the_last_word(ground: Ground) -> None:
    ground.serves = lambda: Agent(four_calls(ground))
    async with ground.fleet.client("agent", max_calls=2) as client:
        said = await client.invoke("go")
        assert (await client.get_info()).call_count == 2
    assert json.loads(said.raw_text) == ["an opinion", *[BudgetExhausted.code] * 3]
    child: Info = ground.made[0].kept
    assert (child.call_count, child.max_calls) == (1, 2)


@over_both
async def test_the_session_dies_with_the_call(ground: Ground) -> None:
    async with ground.fleet.client("agent") as client:
        await client.invoke("go")
        with pytest.raises(Unauthorized):
            async with ground.calling(ground.made[0].session):
                pass
        assert (await client.get_info()).state is SessionState.OPEN


async def test_the_session_dies_with_a_call_that_takes_too_long(ground: Ground) -> None:
    async def script(agent: Any, emit: Any, send: Any) -> None:
        await asyncio.Event().wait()

    ground.serves = lambda: Agent(script)
    async with ground.fleet.client("brief") as client:
        with pytest.raises(TimedOut):
            await client.invoke("go")
    with pytest.raises(Unauthorized):
        async with ground.calling(ground.made[0].session):
            pass


async def test_every_call_has_a_session_of_its_own_and_may_call_no_other_target(ground: Ground) -> None:
    async def script(agent: Any, emit: Any, send: Any) -> None:
        async def ask(models: Any) -> None:
            with pytest.raises(ForbiddenTarget):
                await models.invoke("well?", target="other")

        await ground.with_models(agent, ask)
        emit(agent.shows("refused"))

    ground.serves = lambda: Agent(script)
    async with ground.fleet.client("agent") as client:
        assert [(await client.invoke("go")).raw_text for _ in range(2)] == ["refused", "refused"]
    assert len({agent.session for agent in ground.made}) == 2


@over_both
async def test_the_secret_is_in_no_answer_and_in_no_log(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    async def script(agent: Any, emit: Any, send: Any) -> None:
        logging.getLogger("agent").warning("a target's own log line")
        emit(agent.shows(f"my key is {agent.session}"))

    ground.serves = lambda: Agent(script)
    for package in ("quintain", "quintain_host", "quintain_metadata", "quintain_worker"):
        caplog.set_level(logging.DEBUG, package)
    async with ground.fleet.client("agent") as client:
        said = await client.invoke("go")
    secret = ground.made[0].session.split("_")[3]
    assert secret not in said.raw_text
    assert "my key is qtn_ses_" in said.raw_text
    assert secret not in caplog.text


async def test_a_caller_who_may_not_call_the_agents_targets_is_refused_uncharged(ground: Ground) -> None:
    async with ground.fleet.client("agent", allowed_targets=["agent"]) as client:
        with pytest.raises(ForbiddenTarget, match="'model'"):
            await client.invoke("go")
        assert (await client.get_info()).call_count == 0


async def test_a_target_without_the_slot_is_given_nothing_and_the_mistake_is_named(ground: Ground) -> None:
    ground.serves = lambda: scripted("ours")(idle)
    async with ground.fleet.client("agent") as client:
        with pytest.raises(ProviderFailed, match=SESSION_SLOT):
            await client.invoke("go")
        assert (await client.get_info()).call_count == 0


async def test_a_target_with_the_slot_is_given_nothing_where_the_configuration_does_not_say_so(ground: Ground) -> None:
    async with ground.fleet.client("plain") as client:
        assert (await client.invoke("go")).raw_text == "nothing"
    assert ground.made[0].session is None

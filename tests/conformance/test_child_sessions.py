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
from quintain.client.client import connect
from quintain.contracts.session import Info, SessionState
from quintain.errors import BudgetExhausted, Fault, ForbiddenTarget, ProviderFailed, TimedOut, Unauthorized
from quintain.target import SESSION_SLOT
from quintain_host.host import Host
from support.memory_fleet import MemoryFleet, memory_fleet
from support.target_placements import scripted_target_class

CONFIG = """
targets:
  model: {{provider: mock, response: "an opinion"}}
  other: {{provider: mock, response: "never"}}
  slow: {{provider: mock, response: "late", delay_ms: 60000}}
  agent: {{provider: target, host: {host}, child_session: {{targets: [model, slow], max_calls: 3}}}}
  brief: {{provider: target, host: {host}, timeout_seconds: 1, child_session: {{targets: [model]}}}}
  plain: {{provider: target, host: {host}}}
"""


class Agent(scripted_target_class("ours")):  # type: ignore[misc]
    """Does what a test says, with the session it was given."""

    session: str | None = None

    @property
    def config_specs(self) -> list[Any]:
        return [self.types.module.ConfigSpec(SESSION_SLOT, self.user, "what it calls models with")]

    def set_config(self, name: str, value: str) -> None:
        assert name == SESSION_SLOT
        self.session = value


@dataclass
class AgentFleet:
    """A fleet with a host of agents. ``instances`` are the agents themselves."""

    fleet: MemoryFleet
    instances: list[Any] = field(default_factory=list)
    script: Any = None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @contextlib.asynccontextmanager
    async def open_client(self, token: str) -> AsyncIterator[Any]:
        running = self.fleet.running
        async with connect(running.broker_url, token, memory=running.memory) as client:
            yield client

    async def with_child_client(self, agent: Any, use_client: Callable[[Any], Awaitable[None]]) -> None:
        """Act with the session that an agent was given: on the fleet's loop, as a broker in memory is one thread's."""

        async def there() -> None:
            async with self.open_client(agent.session) as models:
                await use_client(models)

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), self.loop))

    def create(self) -> Any:
        self.instances.append(self.script())
        return self.instances[-1]


#: What depends on the transport is held over both; the rest is the worker's own.
on_both_transports = pytest.mark.parametrize("agent_fleet", ["memory", "rabbit"], indirect=True)


@pytest.fixture
async def agent_fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AgentFleet]:
    url = request.getfixturevalue("broker_url") if getattr(request, "param", "") == "rabbit" else "memory://"
    name = f"agent-{secrets.token_hex(3)}"
    async with memory_fleet(tmp_path, CONFIG.format(host=name), broker_url=url) as fleet:
        ground = AgentFleet(fleet)
        bus: Bus = await connect_bus(url, "host", memory=fleet.running.memory)
        host = Host(bus, name, ground.create, 2)
        ground.script = lambda: Agent(idle)
        await host.start()
        try:
            yield ground
        finally:
            await host.stop(0)
            await bus.close()


async def idle(agent: Any, emit: Any, send: Any) -> None:
    emit(agent.observation_event("nothing"))


def four_calls(agent_fleet: AgentFleet) -> Any:
    async def script(agent: Any, emit: Any, send: Any) -> None:
        async def call(models: Any) -> None:
            for _ in range(4):
                try:
                    agent.notes.append((await models.invoke("well?")).raw_text)
                except Fault as fault:
                    agent.notes.append(fault.code)
            agent.saved = await models.get_info()

        await agent_fleet.with_child_client(agent, call)
        emit(agent.observation_event(agent.notes))

    return script


@on_both_transports
async def test_an_agent_calls_models_under_its_callers_budget_and_no_further(agent_fleet: AgentFleet) -> None:
    agent_fleet.script = lambda: Agent(four_calls(agent_fleet))
    async with agent_fleet.fleet.client("agent", max_calls=10) as client:
        said = await client.invoke("go")
        info = await client.get_info()
    assert json.loads(said.raw_text) == [*["an opinion"] * 3, BudgetExhausted.code]
    child: Info = agent_fleet.instances[0].saved
    assert (child.call_count, child.max_calls, child.parent_id) == (3, 3, info.session_id)
    assert child.available_targets == ["model", "slow"]
    # One for the agent, and three for what it called.
    assert (info.call_count, info.committed) == (4, 4)


@on_both_transports
async def test_the_session_dies_with_the_call(agent_fleet: AgentFleet) -> None:
    async with agent_fleet.fleet.client("agent") as client:
        await client.invoke("go")
        with pytest.raises(Unauthorized):
            async with agent_fleet.open_client(agent_fleet.instances[0].session):
                pass
        assert (await client.get_info()).state is SessionState.OPEN


async def test_the_session_dies_with_a_call_that_takes_too_long(agent_fleet: AgentFleet) -> None:
    async def script(agent: Any, emit: Any, send: Any) -> None:
        await asyncio.Event().wait()

    agent_fleet.script = lambda: Agent(script)
    sessions: list[str] = []
    async with agent_fleet.fleet.client("brief") as client:
        # The time of a call runs from its beginning, and may end before its agent has a session.
        while not sessions:
            with pytest.raises(TimedOut):
                await client.invoke("go")
            sessions = [agent.session for agent in agent_fleet.instances if agent.session is not None]
    for session in sessions:
        with pytest.raises(Unauthorized):
            async with agent_fleet.open_client(session):
                pass


@on_both_transports
async def test_the_secret_is_in_no_answer_and_in_no_log(
    agent_fleet: AgentFleet, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(agent: Any, emit: Any, send: Any) -> None:
        logging.getLogger("agent").warning("a target's own log line")
        emit(agent.observation_event(f"my key is {agent.session}"))

    agent_fleet.script = lambda: Agent(script)
    for package in ("quintain", "quintain_host", "quintain_metadata", "quintain_worker"):
        caplog.set_level(logging.DEBUG, package)
    async with agent_fleet.fleet.client("agent") as client:
        said = await client.invoke("go")
    secret = agent_fleet.instances[0].session.split("_")[3]
    assert secret not in said.raw_text
    assert "my key is qtn_ses_" in said.raw_text
    assert secret not in caplog.text


async def test_a_caller_who_may_not_call_the_agents_targets_is_refused_uncharged(agent_fleet: AgentFleet) -> None:
    async with agent_fleet.fleet.client("agent", allowed_targets=["agent"]) as client:
        with pytest.raises(ForbiddenTarget, match="'model'"):
            await client.invoke("go")
        assert (await client.get_info()).call_count == 0


async def test_a_target_without_the_slot_is_given_nothing_and_the_mistake_is_named(agent_fleet: AgentFleet) -> None:
    agent_fleet.script = lambda: scripted_target_class("ours")(idle)
    async with agent_fleet.fleet.client("agent") as client:
        with pytest.raises(ProviderFailed, match=SESSION_SLOT):
            await client.invoke("go")
        assert (await client.get_info()).call_count == 0


async def test_a_target_with_the_slot_is_given_nothing_where_the_configuration_does_not_say_so(
    agent_fleet: AgentFleet,
) -> None:
    async with agent_fleet.fleet.client("plain") as client:
        assert (await client.invoke("go")).raw_text == "nothing"
    assert agent_fleet.instances[0].session is None

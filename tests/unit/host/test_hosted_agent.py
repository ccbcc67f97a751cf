"""Agents given to `serve host`: hosted as a target whose runs are the turns of a conversation."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.agents.conversation import Conversation, TurnInput, TurnReport
from quintain.agents.hosted_agent import ANSWER, PROMPT, STEP, HostedAgent
from quintain.programs.processes import ProcessMark
from quintain.target import ControllableInjection, ControllableNoInjection, Event, EventResponse
from quintain_host.host import Leftovers
from quintain_host.instances import load_factory, probe_factory

BOT = """
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

def count(messages):
    called = {"id": "c1", "function": {"name": "tide", "arguments": "{}"}}
    text = f"{len(messages)} {messages[-1]['content']}"
    return [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:40"},
        {"role": "assistant", "content": text},
    ]

agent = Agent(TestModel(custom_output_text="hello"))

def make():
    return agent
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "hosted_bots.py").write_text(BOT)
    yield tmp_path
    sys.modules.pop("hosted_bots", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


async def run(target: Any, injected: str | None = None) -> list[Any]:
    """Run the target once; returns what it emitted."""
    emitted: list[Any] = []

    async def send_event(event: Event) -> EventResponse:
        assert getattr(event, "controllable", None) is PROMPT
        if injected is None:
            return ControllableNoInjection(event=event, controllable=PROMPT)
        return ControllableInjection(event=event, controllable=PROMPT, value=injected)

    await target.run(emitted.append, send_event)
    return emitted


async def test_runs_are_turns_until_the_state_is_reset(folder: Path) -> None:
    target = load_factory("hosted_bots:count", folder)()
    target.set_config("prompt", "hi")
    emitted = await run(target)
    assert [event.observable for event in emitted] == [STEP, STEP, STEP, ANSWER]
    assert emitted[-1].content == target.query("answer") == "1 hi"
    assert emitted[1].content == json.loads(target.query("steps"))[1]
    assert emitted[1].content["gen_ai.tool.call.result"] == "12:40"
    assert (await run(target, "injected"))[-1].content == "5 injected"
    await target.reset_ephemeral_state()
    assert (await run(target))[-1].content == "1 hi"


@pytest.mark.parametrize("name", ["agent", "make"])
async def test_an_agent_and_what_makes_one_are_hosted(folder: Path, name: str) -> None:
    factory = load_factory(f"hosted_bots:{name}", folder)
    await probe_factory(factory, f"hosted_bots:{name}", 10)
    target = factory()
    assert isinstance(target, HostedAgent)
    assert (await run(target, "hi"))[-1].content == "hello"


async def test_an_agent_that_goes_on_after_its_lease_is_noticed_and_one_that_ended_is_not() -> None:
    entered, ends = threading.Event(), threading.Event()

    class Stuck(Conversation):
        def answer(self, turn: TurnInput, report: TurnReport) -> str:
            entered.set()
            assert turn.prompt == "free" or ends.wait(10)
            return "done"

    for prompt, stays in (("free", False), ("stuck", True)):
        leftovers, target = Leftovers(ProcessMark({}).variables), HostedAgent(Stuck)
        running = asyncio.create_task(run(target, prompt))
        await asyncio.to_thread(entered.wait, 10)
        if stays:
            running.cancel()
        await asyncio.wait([running])
        await target.teardown()
        assert await leftovers.end() == stays
        entered.clear()
    ends.set()

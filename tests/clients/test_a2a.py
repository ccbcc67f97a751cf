"""Agents made with the A2A protocol's own library, of both versions of the protocol, as targets."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

import quintain
from clients.tool_session import PROGRAMS
from quintain.contracts.agents import Turn
from quintain.contracts.invoke import ChatMessage
from quintain.settings import environment
from support.client_tools import ClientTool, cache_folder
from support.memory_fleet import memory_fleet
from support.servers.ports import free_port, is_open
from support.waiting import wait_until

AGENTS = {
    "a2a": Path(__file__).parents[2] / "examples" / "agents" / "a2a_agent.py",
    "a2a-of-0.3": PROGRAMS / "a2a_of_0_3.py",
}


@contextlib.asynccontextmanager
async def running(tool: ClientTool, folder: Path) -> AsyncIterator[str]:
    """The agent of this tool's library, in a process of its own; yields its URL."""
    port = free_port()
    python = tool.programs(cache_folder(environment())) / "python"
    env = {"PATH": os.defpath, "HOME": str(folder)}
    process = await asyncio.create_subprocess_exec(python, AGENTS[tool.name], str(port), env=env, cwd=folder)
    try:
        await wait_until(lambda: process.returncode is not None or is_open(port), seconds=120)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.kill()
        await process.wait()


@pytest.mark.timeout(2000)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.tool(name)) for name in AGENTS])
async def test_an_agent_answers_and_asks_back(tool: ClientTool, name: str, tmp_path: Path) -> None:
    del name
    async with running(tool, tmp_path) as url:
        config = {"targets": {"desk": {"provider": "http", "preset": "a2a", "url": url}}}
        async with memory_fleet(tmp_path, yaml.safe_dump(config)) as fleet, fleet.client("desk") as client:
            whole = await client.send(quintain.InvokeRequest(question="When is high tide in Ostend?"))
            assert whole.raw_text == "12:40"
            assert whole.steps is not None
            said = [step.messages[0]["parts"][0]["content"] for step in whole.steps if step.messages]
            assert said == ["I look at the tables of Ostend."]
            question = ChatMessage(role="user", content="When is high tide?")
            turn = Turn(conversation_id="c", number=1)
            first = await client.send(quintain.InvokeRequest(messages=[question], turn=turn))
            assert first.raw_text == "Which port?"
            messages = [
                question,
                ChatMessage(role="assistant", content=first.raw_text),
                ChatMessage(role="user", content="Ostend."),
            ]
            turn = Turn(conversation_id="c", number=2, continuation=first.continuation)
            second = await client.send(quintain.InvokeRequest(messages=messages, turn=turn))
            assert second.raw_text == "12:40"

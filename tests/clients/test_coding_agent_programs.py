"""Coding agents as targets by a preset: they run a tool, and what they ask their model is their session's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quintain.contracts.invoke import Result
from quintain.errors import ProviderFailed
from quintain.settings import environment
from support.client_tools import MACHINE, ClientTool, cache_folder
from support.memory_fleet import memory_fleet
from support.model_server import ModelServer, ReceivedRequest, StreamedResponse, model_server
from support.model_streams import (
    anthropic_call_events,
    anthropic_events,
    chat_call_events,
    chat_events,
    responses_call_events,
    responses_events,
)

CONFIG = """
targets:
  gpt: {{provider: openai, model: served, base_url: "{url}/v1", api: [responses]}}
  chatty: {{provider: openai, model: served, base_url: "{url}/v1"}}
  fable-stub: {{provider: anthropic, model: served, base_url: "{url}"}}
  claude-code:
    provider: command
    preset: claude-code
    command: [{program}, --allowedTools, "Bash(echo:*)"]
    env: {{HOME: "{home}"}}
    child_session: {{targets: [fable-stub], max_calls: {max_calls}}}
  codex:
    provider: command
    preset: codex
    # Its sandbox needs a home that is no temporary folder.
    command: [{program}, --sandbox, danger-full-access]
    env: {{HOME: "{home}", CODEX_HOME: "{home}"}}
    child_session: {{targets: [gpt], max_calls: {max_calls}}}
  opencode:
    provider: command
    preset: opencode
    command: [{program}]
    env: {{HOME: "{home}"}}
    child_session: {{targets: [chatty], max_calls: {max_calls}}}
"""

SAID = "hello-from-a-tool"
#: What the stub says first, to the program that has these tools: a call of one.
CALLS: dict[str, Callable[[], list[bytes]]] = {
    "Bash": lambda: anthropic_call_events([("t1", "Bash", [json.dumps({"command": f"echo {SAID}"})])]),
    "bash": lambda: chat_call_events([("t1", "bash", [json.dumps({"command": f"echo {SAID}", "description": "d"})])]),
    "exec_command": lambda: responses_call_events([("t1", "exec_command", [json.dumps({"cmd": f"echo {SAID}"})])]),
}


#: How an answer is streamed, by a word of the path.
EVENTS: dict[str, Callable[[list[str]], list[bytes]]] = {
    "completions": chat_events,
    "responses": responses_events,
    "messages": anthropic_events,
}


def respond(request: ReceivedRequest) -> StreamedResponse:
    tools = request.body.get("tools")
    described = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    names = {tool.get("function", tool).get("name") for tool in described}
    for name, call in CALLS.items():
        if name in names and SAID not in request.raw.decode():
            return StreamedResponse(events=call())
    events = next(events for path, events in EVENTS.items() if path in request.path)
    return StreamedResponse(events=events(["It is ", "12:40."]))


def program_of(tool: ClientTool) -> Path:
    folder = cache_folder(environment())
    if tool.name == "opencode":
        return tool.folder(folder) / tool.modules / f"opencode-{MACHINE}" / "bin" / "opencode"
    if tool.name == "claude-code":
        return tool.folder(folder) / tool.modules / f"@anthropic-ai/claude-code-{MACHINE}" / "claude"
    return tool.programs(folder) / "codex"


async def ask(tool: ClientTool, folder: Path, provider: ModelServer, max_calls: int) -> tuple[Result, int]:
    provider.response_for = respond
    home = folder / "home"
    home.mkdir()
    config = CONFIG.format(url=provider.url, program=program_of(tool), home=home, max_calls=max_calls)
    async with (
        memory_fleet(folder, config, {"PATH": os.environ["PATH"]}) as fleet,
        fleet.client(tool.name, max_calls=50) as client,
    ):
        result = await client.invoke("When is high tide?", timeout=120)
        return result, (await client.get_info()).call_count


each = pytest.mark.parametrize(
    "tool_name", [pytest.param(name, marks=pytest.mark.tool(name)) for name in ("claude-code", "codex", "opencode")]
)


@each
@pytest.mark.timeout(2000)
async def test_it_answers_tells_its_steps_and_is_charged_to_its_session(
    tool: ClientTool, tmp_path: Path, tool_name: str
) -> None:
    async with model_server() as provider:
        result, call_count = await ask(tool, tmp_path, provider, 20)
    assert result.raw_text == "It is 12:40."
    assert result.token_usage is not None
    (ran,) = [step for step in result.steps or [] if step.operation == "execute_tool"]
    assert SAID in json.dumps(ran.arguments)
    assert SAID in json.dumps(ran.result)
    assert call_count == 1 + len(provider.requests) >= 3


@each
@pytest.mark.timeout(2000)
async def test_it_is_held_by_the_limit_of_its_session(tool: ClientTool, tmp_path: Path, tool_name: str) -> None:
    async with model_server() as provider:
        with pytest.raises(ProviderFailed):
            await ask(tool, tmp_path, provider, 1)
        assert len(provider.requests) == 1

"""What an agent did is in the row of its answer in one form, whatever kind of target it is."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from quintain.bus.memory import MemoryBroker
from quintain.config.loader import load_config
from quintain.contracts.agents import AgentStep
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain_host.host import Host
from quintain_runner.results.row import Answer, Row, RowStatus
from quintain_worker.attempt import Try
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import ProviderContext
from quintain_worker.response import CallFacts, reply_of
from support.model_server import ModelServer, ScriptedResponse, model_server
from support.results_folder import MADE_OF
from support.target_placements import scripted_target_class

ARGUMENTS, RESULT, TEXT = {"q": "tides", "days": [1, 2]}, "12:40", "High tide is at 12:40."

#: What each agent did: it called a tool, and said what that found.
STEPS = [
    {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "question",
        "gen_ai.tool.call.arguments": ARGUMENTS,
        "gen_ai.tool.call.result": RESULT,
    },
    {
        "gen_ai.operation.name": "chat",
        "gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": TEXT}]}],
    },
]

#: The same as OpenAI's messages.
MESSAGES = [
    {"role": "user", "content": "When is high tide?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "function": {"name": "question", "arguments": json.dumps(ARGUMENTS)}}],
    },
    {"role": "tool", "tool_call_id": "a", "content": RESULT},
    {"role": "assistant", "content": TEXT},
]

PYTHON = f"""
from quintain.contracts.agents import AgentStep
from quintain_worker.providers.provider import ProviderAnswer

def answer(request):
    tool, chat = {STEPS!r}
    return ProviderAnswer(text={TEXT!r}, steps=[AgentStep.model_validate(tool), chat])

def converse(messages):
    return {MESSAGES[1:]!r}
"""

LINES = f"""
import json, sys

for line in sys.stdin:
    for step in {STEPS!r}:
        print(json.dumps({{"type": "step", **step}}), flush=True)
    print(json.dumps({{"type": "answer", "text": {TEXT!r}}}), flush=True)
"""


def printing(steps: object) -> list[str]:
    return [sys.executable, "-c", f"print({json.dumps({'text': TEXT, 'steps': steps})!r})"]


class Places(NamedTuple):
    """What the configurations of the targets need: an endpoint that answers with the steps."""

    url: str


#: A configuration for each kind of target.
KINDS: dict[str, Callable[[Places], dict[str, object]]] = {
    "python": lambda _: {"provider": "python", "callable": "agents:answer"},
    "command": lambda _: {"provider": "command", "output_format": "json", "command": printing(STEPS)},
    "command, messages": lambda _: {"provider": "command", "output_format": "json", "command": printing(MESSAGES)},
    "jsonl": lambda _: {"provider": "command", "protocol": "jsonl", "command": [sys.executable, "-c", LINES]},
    "http": lambda places: {
        "provider": "http",
        "url": places.url,
        "body": {"input": "{{ prompt }}"},
        "answer": "/out",
        "steps": "/trace",
    },
    "agent": lambda _: {"provider": "agent", "agent": "agents:converse"},
    "target": lambda _: {"provider": "target"},
}


async def run_hosted(body: Any, emit: Any, send: Any) -> None:
    """What the hosted target does: its first event takes the question."""
    await send(body.request_event("hello"))
    post = body.types.events["ControllablePostCallEvent"]
    await send(post(controllable=body.question, request=json.dumps(ARGUMENTS), answer=RESULT))
    emit(body.observation_event(TEXT))


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    """A broker with a host of the hosted target."""
    memory = MemoryBroker()
    bus, kind = memory.connect(), scripted_target_class("ours")
    host = Host(bus, "bot", lambda: kind(run_hosted), 1)
    await host.start()
    yield memory
    await host.stop(0)
    await bus.close()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


def said(step: AgentStep) -> list[str]:
    return [part["content"] for message in step.messages or () for part in message["parts"] if part["type"] == "text"]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_steps_of_each_kind_of_target_are_in_the_row(
    kind: str, tmp_path: Path, broker: MemoryBroker, server: ModelServer
) -> None:
    (tmp_path / "agents.py").write_text(PYTHON)
    server.set_responses(ScriptedResponse(body={"out": TEXT, "trace": STEPS}))
    target = KINDS[kind](Places(f"{server.url}/ask"))
    (tmp_path / "quintain.yaml").write_text(yaml.safe_dump({"targets": {"bot": target}}))
    resolved = load_config(tmp_path / "quintain.yaml").resolve({}).targets["bot"]
    bus = broker.connect()
    provider = build_provider("bot", resolved, ProviderContext(tmp_path, {}, bus))
    try:
        answer = await provider.answer(InvokeRequest(question="When is high tide?"), timeout_seconds=30)
    finally:
        await provider.close()
        await bus.close()
    response = reply_of(
        Try(AttemptOutcome.RESULT, answer=answer), Admission(attempt_id="t", attempt=1), CallFacts("bot")
    )
    result = Result.from_wire(response.wire)
    row = Row(
        case_id="1",
        target="bot",
        repeat=1,
        status=RowStatus.GRADED,
        output=result.raw_text,
        fingerprints=MADE_OF,
        answer=Answer.of(result, "r"),
    )
    steps = Row.from_wire(row.to_line()).steps
    ran = [step for step in steps if step.operation == "execute_tool"][-1]
    assert (row.output, ran.tool, ran.arguments, ran.result) == (TEXT, "question", ARGUMENTS, RESULT)
    assert said(steps[-1]) == [TEXT]
    assert steps.index(ran) == len(steps) - 2

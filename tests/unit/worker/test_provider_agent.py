"""Agents as targets: the turns of a conversation go to one process, which is kept, and what is no agent is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.config.fingerprint import target_fingerprints
from quintain.config.program_targets import AgentTarget
from quintain.contracts.agents import Turn
from quintain.contracts.invoke import ChatMessage, InvokeRequest
from quintain.errors import BadRequest, ConfigError, ProviderFailed, TargetUnavailable, TimedOut
from quintain.settings import environment
from quintain_worker.providers.factory import build_provider, check_program
from quintain_worker.providers.provider import Billing, Provider, ProviderAnswer, ProviderContext, ProviderFailure

BOT = """
import os

def answer(messages):
    if messages[-1]["content"] == "raise":
        raise ValueError("no")
    called = {"id": "c1", "function": {"name": "pid", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": str(os.getpid())},
        {"role": "assistant", "content": f"{len(messages)} {os.environ.get('OPENAI_AGENTS_DISABLE_TRACING')}"},
    ]

def shout(prompt):
    return prompt.upper()

def two(a, b): ...
"""


@pytest.fixture
def context(tmp_path: Path) -> ProviderContext:
    (tmp_path / "bot.py").write_text(BOT)
    return ProviderContext(tmp_path, environment())


async def turn(provider: Provider, conversation: str, number: int, *texts: str) -> ProviderAnswer:
    messages = [ChatMessage(role="user", content=text) for text in texts]
    placed = Turn(conversation_id=conversation, number=number)
    return await provider.answer(InvokeRequest(messages=messages, turn=placed), timeout_seconds=60)


async def test_turns_reach_one_process_which_is_kept_for_the_next_conversation(context: ProviderContext) -> None:
    target = AgentTarget(provider="agent", agent="bot:answer", max_concurrency=1, conversation_idle_seconds=0.2)
    provider = build_provider("it", target, context)
    try:
        first = await turn(provider, "a", 1, "one")
        second = await turn(provider, "a", 2, "one", "two")
        third = await turn(provider, "b", 1, "one")
        with pytest.raises(ProviderFailure) as failed:
            await turn(provider, "b", 2, "one", "raise")
    finally:
        await provider.close()
    assert [first.text, second.text, third.text] == ["1 1", "5 1", "1 1"]
    assert [step.operation for step in first.steps] == ["chat", "execute_tool", "chat"]
    assert len({answer.steps[1].result for answer in (first, second, third)}) == 1
    assert first.holds_conversation
    assert isinstance(failed.value.fault, ProviderFailed)
    assert "ValueError: no" in failed.value.fault.message


async def test_what_is_no_agent_is_refused_before_the_first_call_and_at_it(context: ProviderContext) -> None:
    target = AgentTarget(provider="agent", agent="bot:two")
    with pytest.raises(ConfigError, match="a, b"):
        check_program("it", target, context, set())
    provider = build_provider("it", target, context)
    try:
        with pytest.raises(ProviderFailure) as failed:
            await turn(provider, "a", 1, "one")
    finally:
        await provider.close()
    assert isinstance(failed.value.fault, TargetUnavailable)
    assert "a, b" in failed.value.fault.message


def test_its_module_is_part_of_its_fingerprint(context: ProviderContext) -> None:
    target = AgentTarget(provider="agent", agent="bot:answer")
    one_text = set[str]()
    assert check_program("it", target, context, one_text) == []
    assert one_text == set()
    fingerprint = target_fingerprints({"it": target}, context.folder, {})["it"]
    assert fingerprint() == fingerprint.first
    (context.folder / "bot.py").write_text(f"{BOT}\n# changed")
    assert fingerprint() != fingerprint.first


async def test_an_agent_without_history_has_no_turns(context: ProviderContext) -> None:
    provider = build_provider("it", AgentTarget(provider="agent", agent="bot:shout"), context)
    try:
        for number in (1, 2):
            with pytest.raises(ProviderFailure) as failed:
                await turn(provider, "a", number, "one")
            assert isinstance(failed.value.fault, BadRequest)
            assert failed.value.billing is Billing.UNBILLED
        assert (await provider.answer(InvokeRequest(question="one"), timeout_seconds=60)).text == "ONE"
    finally:
        await provider.close()


async def test_an_agent_that_is_never_imported_times_out(context: ProviderContext) -> None:
    (context.folder / "bot.py").write_text("import time\ntime.sleep(1000)\n")
    provider = build_provider("it", AgentTarget(provider="agent", agent="bot:shout"), context)
    try:
        with pytest.raises(ProviderFailure) as failed:
            await provider.answer(InvokeRequest(question="one"), timeout_seconds=0.5)
    finally:
        await provider.close()
    assert isinstance(failed.value.fault, TimedOut)
    assert failed.value.billing is Billing.UNBILLED

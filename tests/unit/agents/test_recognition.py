"""Which agents are recognised, what plain functions are given and may return, and what is refused by name."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from quintain.agents.conversation import AgentError, Conversation, TurnInput, TurnReport
from quintain.agents.pydantic_ai import PydanticAIConversation
from quintain.agents.recognition import conversation_factory, load_agent
from quintain.contracts.agents import AgentStep
from quintain.errors import ConfigError

# Plain functions as agents: what they are given, what they may return, and which are refused by name.


USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}


class Port(BaseModel):
    name: str


def shout(prompt: str) -> str:
    return prompt.upper()


async def shout_later(prompt: str) -> str:
    await asyncio.sleep(0)
    return prompt.upper()


def pieces(prompt: str) -> Iterator[str]:
    yield from prompt


async def pieces_later(prompt: str) -> AsyncIterator[str]:
    for letter in prompt:
        yield letter


def structured(prompt: str) -> Port:
    return Port(name=prompt)


def count(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*messages, {"role": "assistant", "content": f"{len(messages)} seen"}]


async def count_by_type(past: list[dict[str, Any]]) -> dict[str, str]:
    return {"role": "assistant", "content": f"{len(past)} seen"}


def with_tool(messages: Any) -> list[dict[str, Any]]:
    asked = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    return [asked, {"role": "tool", "tool_call_id": "c1", "content": "12:00"}, {"role": "assistant", "content": "noon"}]


class Cut:
    def __call__(self, prompt: str, limit: int = 3) -> str:
        return prompt[:limit]


class Recorded:
    """What a turn reported."""

    def __init__(self) -> None:
        self.steps: list[AgentStep] = []
        self.texts: list[str] = []
        self.report = TurnReport(self.steps.append, self.texts.append)


def answer(
    conversation: Conversation, number: int, messages: list[dict[str, Any]], heard: Recorded | None = None
) -> str:
    turn = TurnInput(number, messages[-1]["content"], messages)
    answered = conversation.answer(turn, (heard or Recorded()).report)

    async def awaited() -> str:
        return await answered  # type: ignore[misc]

    return asyncio.run(awaited()) if inspect.isawaitable(answered) else answered


@pytest.mark.parametrize(
    ("agent", "text", "streamed"),
    [
        (shout, "HI", []),
        (shout_later, "HI", []),
        (pieces, "hi", ["h", "i"]),
        (pieces_later, "hi", ["h", "i"]),
        (structured, '{"name":"hi"}', []),
        (count, "1 seen", []),
        (count_by_type, "1 seen", []),
        (Cut(), "hi", []),
        (Cut().__call__, "hi", []),
        (str.upper, "HI", []),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_function_answers(agent: Any, text: str, streamed: list[str]) -> None:
    heard = Recorded()
    assert answer(conversation_factory(agent, "bot:it")(), 1, [USER], heard) == text
    assert heard.texts == streamed


def test_an_earlier_conversation_reaches_the_first_turn() -> None:
    earlier = [{"role": "system", "content": "be brief"}, USER]
    assert answer(conversation_factory(shout, "bot:it")(), 1, earlier) == "SYSTEM: BE BRIEF\n\nUSER: HI"
    assert answer(conversation_factory(count, "bot:it")(), 1, earlier) == "2 seen"


def test_a_function_of_messages_goes_on_with_what_it_returned() -> None:
    conversation = conversation_factory(with_tool, "bot:it")()
    heard = Recorded()
    assert answer(conversation, 1, [USER], heard) == "noon"
    assert [step.operation for step in heard.steps] == ["chat", "execute_tool", "chat"]
    tool = heard.steps[1]
    assert (tool.tool, tool.tool_call_id, tool.arguments, tool.result) == ("clock", "c1", {"zone": "UTC"}, "12:00")
    said = heard.steps[0].messages
    assert said[0]["parts"] == [{"type": "tool_call", "id": "c1", "name": "clock", "arguments": {"zone": "UTC"}}]
    counted = conversation_factory(count, "bot:it")()
    assert answer(counted, 1, [USER]) == "1 seen"
    assert answer(counted, 2, [USER, {"role": "assistant", "content": "?"}, USER]) == "3 seen"


def test_a_function_of_one_text_has_one_turn() -> None:
    with pytest.raises(AgentError):
        answer(conversation_factory(shout, "bot:it")(), 2, [USER, USER, USER])


@pytest.mark.parametrize("returned", [None, object(), [USER], [{"role": "assistant", "content": [{"type": "image"}]}]])
def test_what_is_no_answer_is_an_error(returned: object) -> None:
    with pytest.raises(AgentError):
        answer(conversation_factory(lambda messages: returned, "bot:it")(), 1, [USER])


def two(prompt: str, style: str) -> str:
    return prompt + style


def none() -> str:
    return ""


def keyword_only(*, prompt: str) -> str:
    return prompt


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        (two, "prompt, style"),
        (none, "no argument"),
        (keyword_only, "no argument"),
        (Cut, "Cut(...)"),
        (3, "int"),
        ("text", "str"),
    ],
)
def test_what_is_no_agent_is_refused_by_name(agent: object, named: str) -> None:
    with pytest.raises(ConfigError, match=r"^bot:it\b") as refused:
        conversation_factory(agent, "bot:it")()
    assert named in refused.value.message


# Which agents are recognised: by their classes alone, so that no framework is imported for the agent of another.


def answer_with_tool(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """A model that calls the tool, and then says how many messages it has seen."""
    if len(messages) % 4 == 1:
        return ModelResponse(parts=[ToolCallPart("clock", {"zone": "UTC"}, "c1")])
    return ModelResponse(parts=[TextPart(f"{len(messages)} seen")])


def test_an_agent_of_pydantic_ai_keeps_its_conversation_and_tells_its_steps() -> None:
    agent = Agent(FunctionModel(answer_with_tool))

    @agent.tool_plain
    def clock(zone: str) -> str:
        return f"noon in {zone}"

    conversation, heard = conversation_factory(agent, "bot:it")(), Recorded()
    assert isinstance(conversation, PydanticAIConversation)
    assert answer(conversation, 1, [USER], heard) == "3 seen"
    assert [(step.operation, step.tool, step.result) for step in heard.steps] == [
        ("chat", None, None),
        ("execute_tool", "clock", "noon in UTC"),
        ("chat", None, None),
    ]
    assert heard.report.input_tokens == sum(step.input_tokens or 0 for step in heard.steps) > 0
    assert answer(conversation, 2, [USER, USER, USER]) == "7 seen"
    assert answer(conversation_factory(agent, "bot:it")(), 1, [USER]) == "3 seen"


@pytest.mark.parametrize(
    ("package", "kind", "named"),
    [
        ("langgraph", "StateGraph", "compile()"),
        ("langchain_core", "BaseChatModel", "create_agent"),
        ("crewai", "CrewBase", "crew()"),
    ],
)
def test_what_makes_an_agent_is_refused_with_its_remedy(package: str, kind: str, named: str) -> None:
    made = type(kind, (), {"__module__": f"{package}.inner"})()
    with pytest.raises(ConfigError) as refused:
        conversation_factory(made, "bot:it")
    assert named in refused.value.message


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import no_such_framework\nit = 1", "no_such_framework"),
        ("raise ValueError('a reason')", "a reason"),
        ("other = print", "it"),
    ],
)
def test_an_agent_that_cannot_be_imported_is_refused(text: str, named: str, tmp_path: Path) -> None:
    name = f"bot_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_agent(f"{name}:it", tmp_path)
    assert named in refused.value.message


def test_a_function_imports_no_framework(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text("def it(prompt):\n    return prompt\n")
    program = """
import sys
from pathlib import Path
from quintain.agents.recognition import load_agent
load_agent("bot:it", Path.cwd())
found = {"agents", "crewai", "inspect_ai", "langgraph", "pydantic_ai", "smolagents"} & set(sys.modules)
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

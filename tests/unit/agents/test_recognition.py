"""Which agents are recognised: by their classes alone, so that no framework is imported for the agent of another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from quintain.agents.pydantic_ai import PydanticAIConversation
from quintain.agents.recognition import conversation_factory, load_agent
from quintain.errors import ConfigError
from unit.agents.test_functions import USER, Recorded, answer


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

"""Plain functions as agents: what they are given, what they may return, and which are refused by name."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from quintain.agents.conversation import AgentError, Conversation, TurnInput, TurnReport
from quintain.agents.recognition import conversation_factory
from quintain.contracts.agents import AgentStep
from quintain.errors import ConfigError

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
    assert said is not None
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

"""Calls of tools in a dataset's rows, and as graders read them."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.contracts.invoke import ChatMessage, OutputMessage, Result, ToolCall
from quintain.graders import Case
from quintain.runtime.text_files import InvalidLine
from quintain_runner.graders.input import build_grader_input
from quintain_runner.plan.cases import parse_case
from support.grading_context import SavedFiles

CALL = ToolCall(id="c1", name="weather", arguments='{"city": "Genève"}')
OF_OPENAI = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Genève"}'}}
OF_AGENTV = {"tool": "weather", "input": {"city": "Genève"}, "output": "rain"}


def read(*turns: dict[str, Any]) -> list[ChatMessage]:
    first = {"role": "user", "content": "q"}
    return (parse_case({"id": "1", "messages": [first, *turns]}).messages or [])[1:]


@pytest.mark.parametrize("key", ["tool_calls", "toolCalls"])
@pytest.mark.parametrize("written", [OF_OPENAI, CALL.model_dump()])
def test_a_row_holds_calls_as_openai_writes_them_or_as_we_do(key: str, written: dict[str, Any]) -> None:
    asked = {"role": "assistant", "content": None, key: [written]}
    told = {"role": "tool", "content": "rain", "tool_call_id": "c1"}
    assert read(asked, told) == [
        ChatMessage(role="assistant", content="", tool_calls=[CALL]),
        ChatMessage(role="tool", content="rain", tool_call_id="c1"),
    ]


@pytest.mark.parametrize("key", ["tool_calls", "toolCalls"])
@pytest.mark.parametrize(
    "written", [[OF_AGENTV], [OF_OPENAI, OF_AGENTV], [], None, "x", [5], [{"function": 5}], [{"id": 5}], {}]
)
def test_calls_in_other_words_are_no_mistake_and_not_asked(key: str, written: object) -> None:
    said = {"role": "assistant", "content": "I look", key: written, "toolCallId": 5}
    assert read(said) == [ChatMessage(role="assistant", content="I look")]


def test_a_turn_that_says_nothing_and_calls_nothing_is_still_a_mistake() -> None:
    with pytest.raises(InvalidLine, match=r"messages\[1\].content"):
        read({"role": "assistant", "content": None, "tool_calls": [OF_AGENTV]})


def test_a_grader_reads_agentvs_words_and_no_nulls() -> None:
    turns = [
        ChatMessage(role="user", content="q"),
        ChatMessage(role="assistant", content="", tool_calls=[CALL]),
        ChatMessage(role="tool", content="rain", tool_call_id="c1"),
    ]
    broken = ToolCall(id="c2", name="weather", arguments='{"city": NaN')
    said = OutputMessage(content="I look", tool_calls=[CALL, broken])
    result = Result(output=[said], target="t", call_count=1, max_calls=1)
    fields = build_grader_input(Case(id="1", messages=turns), result, None, None, SavedFiles().save_file)
    call = {"tool": "weather", "input": {"city": "Genève"}, "id": "c1"}
    assert fields["input"] == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
    ]
    assert fields["output_messages"] == [
        {
            "role": "assistant",
            "content": "I look",
            "tool_calls": [call, {"tool": "weather", "input": '{"city": NaN', "id": "c2"}],
        }
    ]

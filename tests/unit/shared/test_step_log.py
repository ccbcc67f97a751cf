"""What an agent did, cut to the size that a reply may have: whatever the agent says."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.contracts.agents import MAX_STEPS_BYTES, AgentStep, StepsCut
from quintain.contracts.invoke import Result
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.step_log import StepLog, cut_steps
from quintain_worker.attempt import Try
from quintain_worker.providers.provider import ProviderAnswer
from quintain_worker.response import CallFacts, reply_of


def tool_step(arguments: object = None, result: object = None, **fields: Any) -> AgentStep:
    return AgentStep(operation="execute_tool", tool="search", arguments=arguments, result=result, **fields)


def stored(steps: list[AgentStep], cut: StepsCut | None = None) -> Result:
    """The steps as a caller reads them: through the reply of a call."""
    answer = ProviderAnswer(text="yes", steps=tuple(steps), steps_cut=cut)
    said = reply_of(Try(AttemptOutcome.RESULT, answer=answer), Admission(attempt_id="t", attempt=1), CallFacts("a"))
    assert isinstance(said.answer, Result), said
    return Result.from_wire(said.wire)


def size(result: Result) -> int:
    steps = result.steps or []
    return sum(len(step.to_wire()) + 1 for step in steps) + 1


def test_steps_that_fit_arrive_as_they_are_under_the_names_of_opentelemetry() -> None:
    step = AgentStep(
        operation="execute_tool",
        tool="search",
        tool_call_id="call-1",
        arguments={"q": ["tides", 1.5, None]},
        result="12:40",
        start_ms=3,
        duration_ms=120.5,
        error_type="TimeoutError",
    )
    result = stored([step])
    assert (result.steps, result.steps_cut) == ([step], None)
    assert b'"gen_ai.operation.name":"execute_tool"' in step.to_wire()
    assert b'"gen_ai.tool.call.arguments":{"q":["tides",1.5,null]}' in step.to_wire()
    assert b'"durationMs":120.5,"' in step.to_wire()


def test_the_longest_texts_lose_their_middles_first_and_each_place_says_how_much() -> None:
    long, short = "a" + "x" * 400_000 + "z", "y" * 50_000
    result = stored([tool_step({"q": short}, long), tool_step(None, "fine")])
    first = result.steps[0]
    assert (first.arguments, result.steps[1].result) == ({"q": short}, "fine")
    assert (first.result[0], first.result[-1]) == ("a", "z")
    cut = result.steps_cut.characters
    assert f"[{cut:,} characters cut]" in first.result
    assert len(first.result) - len(f"…[{cut:,} characters cut]…") + cut == len(long)
    assert (result.steps_cut.steps, result.steps_cut.values) == (0, 0)
    assert 0.9 * MAX_STEPS_BYTES < size(result) <= MAX_STEPS_BYTES


def test_whole_steps_are_left_out_of_the_middle_when_shorter_texts_are_not_enough() -> None:
    steps = [tool_step({"number": number}, "x" * 300) for number in range(5000)]
    result = stored(steps)
    assert result.steps is not None
    kept = result.steps_cut.kept
    numbers = [step.arguments["number"] for step in result.steps]
    assert numbers[:kept] == list(range(kept))
    assert numbers[kept:] == list(range(5000 - len(numbers) + kept, 5000))
    assert result.steps_cut.steps == 5000 - len(numbers)
    assert 0.9 * MAX_STEPS_BYTES < size(result) <= MAX_STEPS_BYTES


def nested(depth: int) -> object:
    value: object = "the end"
    for _ in range(depth):
        value = [value]
    return value


class Loud:
    def __str__(self) -> str:
        raise RuntimeError("no")


def holding_itself() -> list[object]:
    value: list[object] = []
    value += [value, value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, [math.inf, {"x": -math.inf}], "half \ud83d of a pair", {"\ud83d": 1}, nested(100_000), 10**5000),
        *({1: "a number as name", None: 2}, {"k" * 300_000: 1, "k" * 300_001: 2}, b"\xff\xfe"),
        *(datetime(2026, 1, 1, tzinfo=UTC), {"a", "set"}, object(), Loud(), holding_itself(), list(range(200_000))),
        [[0] * 1000] * 5000,
        {str(number): number for number in range(100_000)},
        "\0" * 300_000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_step_holds_the_answer_arrives_and_the_steps_are_within_the_limit(value: object) -> None:
    result = stored([tool_step(value, value), tool_step(result="fine")])
    assert result.raw_text == "yes"
    assert [step.tool for step in result.steps] == ["search", "search"]
    assert result.steps[1].result == "fine"
    assert size(result) <= MAX_STEPS_BYTES


def test_what_json_has_not_is_text_and_what_is_too_deep_says_so() -> None:
    result = stored([tool_step([math.nan, math.inf, -math.inf, "\ud83d"], nested(5000))])
    assert result.steps[0].arguments == ["NaN", "Infinity", "-Infinity", "�"]
    assert "nested too deeply" in str(result.steps[0].result)
    assert result.steps_cut == StepsCut(values=1)


def test_two_long_texts_of_one_step_share_the_room() -> None:
    result = stored([tool_step("a" * 8_000_000, "b" * 300_000)])
    assert result.steps is not None
    (step,) = result.steps
    assert abs(len(step.arguments) - len(step.result)) < 1000
    assert size(result) > 0.9 * MAX_STEPS_BYTES


def test_a_field_that_stays_too_large_is_a_text_of_its_json_and_no_other_is() -> None:
    wide = {str(one): {str(two): 0 for two in range(500)} for one in range(100)}
    steps = [tool_step("keep me", wide), AgentStep(operation="chat", messages=[{"role": "assistant", "parts": [wide]}])]
    result = stored(steps)
    assert result.steps[0].arguments == "keep me"
    text, messages = result.steps[0].result, result.steps[1].messages
    assert text.startswith('{"0":{"0":0,')
    assert "characters cut" in text
    assert "characters cut" in messages[0]["parts"][0]["content"]
    assert result.steps_cut.characters > 0


def test_a_log_keeps_the_first_and_the_last_steps_of_any_number() -> None:
    log = StepLog()
    for number in range(20_000):
        log.add(tool_step({"number": number}, "x" * 100))
    assert sum(len(step.to_wire()) for step in log.steps) < 2 * MAX_STEPS_BYTES
    result = stored(list(log.steps), log.cut)
    assert result.steps is not None
    numbers = [step.arguments["number"] for step in result.steps]
    kept = result.steps_cut.kept
    assert numbers[:kept] == list(range(kept))
    assert numbers[kept:] == list(range(20_000 - len(numbers) + kept, 20_000))
    assert result.steps_cut.steps == 20_000 - len(numbers)
    assert size(result) <= MAX_STEPS_BYTES


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
)


@settings(max_examples=25)
@given(st.lists(JSON, max_size=5), st.sampled_from([1, 2, 30, 600]))
def test_any_json_is_within_the_limit_and_cut_no_further_when_cut_again(values: list[Any], times: int) -> None:
    steps, cut = cut_steps([tool_step(value) for value in values] * times)
    wire = stored(steps, cut)
    assert size(wire) <= MAX_STEPS_BYTES
    assert cut_steps(steps, cut) == (steps, cut)
    assert len(steps) + (cut.steps if cut else 0) == len(values) * times

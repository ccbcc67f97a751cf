"""Anthropic's words ⇄ ours, where no socket is needed to see it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.contracts.invoke import OutputMessage, Result, TokenUsage, ToolCall
from quintain.errors import FAULTS, BadRequest, Fault
from quintain_gateway.apis.anthropic.wire import parse_message_request, stop_reason_of, write_error, write_message

ASK: dict[str, Any] = {"model": "t", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
STOPS = {"end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal"}
TYPES = {
    "invalid_request_error", "authentication_error", "billing_error", "permission_error", "not_found_error",
    "request_too_large", "rate_limit_error", "timeout_error", "overloaded_error", "api_error",
}  # fmt: skip


def result(text: str = "", *calls: ToolCall, **more: Any) -> Result:
    output = [OutputMessage(content=text, tool_calls=list(calls) or None)]
    return Result(output=output, raw_text=text, target="t", call_count=1, max_calls=1, **more)


def read(*content: object, role: str = "user") -> list[dict[str, Any]]:
    asked = parse_message_request({**ASK, "messages": [{"role": role, "content": list(content)}]})
    return [turn.model_dump(exclude_none=True) for turn in asked.request.messages or []]


def test_null_is_absent_everywhere() -> None:
    nulls = dict.fromkeys(["system", "temperature", "stop_sequences", "stream", "tools", "tool_choice", "whatever"])
    assert parse_message_request({**ASK, **nulls}) == parse_message_request(ASK)


def test_results_of_tools_are_turns_of_their_own_before_what_the_user_says() -> None:
    words, answer = {"type": "text", "text": "x"}, {"type": "tool_result", "tool_use_id": "t"}
    assert read(answer) == [{"role": "tool", "content": "", "tool_call_id": "t"}]
    assert [turn["role"] for turn in read(words, answer, {**answer, "tool_use_id": "u"})] == ["tool", "tool", "user"]


def test_a_message_without_blocks_is_empty() -> None:
    assert read() == [{"role": "user", "content": ""}]


def test_an_answer_comes_back_as_it_was_given() -> None:
    call = ToolCall(id="c", name="f", arguments='{"a": "ü"}')
    blocks = write_message("id", "t", result("words", call))["content"]
    assert read(*blocks, role="assistant") == [
        {"role": "assistant", "content": [{"type": "text", "text": "words"}], "tool_calls": [call.model_dump()]}
    ]


@pytest.mark.parametrize("arguments", ["", "{}", '{"a": 1}', "[1]", "1", "{", '{"a": NaN}', "[" * 10_000])
def test_whatever_a_model_wrote_as_arguments_is_an_object(arguments: str) -> None:
    block = write_message("id", "t", result("", ToolCall(id="c", name="f", arguments=arguments)))["content"][0]
    assert isinstance(block["input"], dict)
    assert block["input"] in ({}, {"a": 1}, {"arguments": arguments})


@pytest.mark.parametrize("reason", [None, "stop", "length", "content_filter", "completed", "error", "max_tokens", "?"])
def test_every_reason_to_end_is_one_that_clients_know(reason: str | None) -> None:
    assert stop_reason_of(result("x", finish_reason=reason)) in STOPS
    assert stop_reason_of(result("x", ToolCall(id="c", name="f", arguments=""), finish_reason=reason)) == "tool_use"


def test_what_came_from_a_cache_is_counted_apart() -> None:
    usage = write_message("id", "t", result(token_usage=TokenUsage(input=10, output=2, cached=4)))["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (6, 4, 2)


@pytest.mark.parametrize("kind", FAULTS.values())
def test_every_fault_is_an_error_that_clients_know(kind: type[Fault]) -> None:
    fault = kind()
    status, body, headers = write_error(fault)
    assert body["error"]["type"] in TYPES
    assert 400 <= status < 600
    assert headers["x-should-retry"] == "false" or (kind().retryable and kind().charged is not True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "tool_use", "tool_result", "other"]) | JSON},
    optional=dict.fromkeys(["text", "source", "id", "name", "input", "tool_use_id", "content"], JSON),
)


@given(
    JSON
    | st.dictionaries(st.sampled_from([*ASK, "system", "tools", "tool_choice", "stream"]), JSON).map(
        lambda fields: {**ASK, **fields}
    )
    | st.lists(BLOCKS, max_size=3).map(lambda blocks: {**ASK, "messages": [{"role": "user", "content": blocks}]})
)
def test_whatever_is_sent_is_read_or_is_a_bad_request(body: object) -> None:
    with contextlib.suppress(BadRequest):
        parse_message_request(body).request.to_wire()

"""OpenAI's words ⇄ ours, where no socket is needed to see it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.contracts.invoke import OutputMessage, Reasoning, Result, TokenUsage, ToolCall
from quintain.errors import FAULTS, BadRequest, Fault, Overloaded
from quintain_gateway.apis.openai.wire import (
    finish_reason_of,
    parse_chat_request,
    write_completion,
    write_error,
    write_usage,
)
from quintain_gateway.http.schemas import MAX_NAME_LENGTH, format_field_names

ASK: dict[str, Any] = {"model": "t", "messages": [{"role": "user", "content": "x"}]}
FINISHES = {"stop", "length", "tool_calls", "content_filter"}


def result(text: str = "", *calls: ToolCall, **more: Any) -> Result:
    output = [OutputMessage(content=text, tool_calls=list(calls) or None)]
    return Result(output=output, raw_text=text, target="t", call_count=1, max_calls=1, **more)


def test_a_plain_question_has_no_settings() -> None:
    chat = parse_chat_request(ASK)
    assert chat.request.settings is None
    assert (chat.request.target, chat.choice_count, chat.stream, chat.include_usage) == ("t", 1, False, False)


def test_the_newer_name_of_a_setting_wins() -> None:
    settings = parse_chat_request({**ASK, "max_tokens": 1, "max_completion_tokens": 2}).request.settings
    assert settings is not None
    assert settings.max_tokens == 2


def test_null_is_absent_everywhere() -> None:
    nulls = dict.fromkeys(["n", "stream", "stream_options", "temperature", "stop", "tools", "whatever"])
    turn = {"role": "user", "content": "x", "tool_calls": None, "tool_call_id": None, "name": None}
    assert parse_chat_request({**ASK, **nulls, "messages": [turn]}) == parse_chat_request(ASK)


def test_an_answer_comes_back_as_it_was_given() -> None:
    # What a client sends back of an answer is what `write_completion` wrote, with the client's own nulls.
    call = ToolCall(id="c", name="f", arguments='{"a": 1')
    said = write_completion("id", "t", 1, [result("", call)])["choices"][0]["message"]
    chat = parse_chat_request(
        {**ASK, "messages": [{**said, "annotations": None, "audio": None, "function_call": None}]}
    )
    turn = (chat.request.messages or [])[0]
    assert (turn.content, turn.tool_calls, chat.request.settings) == ("", [call], None)


def test_what_the_model_added_to_its_text_has_openais_shape() -> None:
    tokens: Any = [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]
    message = OutputMessage(content="a", reasoning=[Reasoning(text="hm", signature="s")], logprobs=tokens)
    answer = Result(output=[message], raw_text="a", target="t", call_count=1, max_calls=1, ignored=["topK", "x"])
    body = write_completion("id", "t", 1, [answer])
    assert body["choices"][0]["message"] == {
        "role": "assistant", "content": "a", "refusal": None, "reasoning_content": "hm",
    }  # fmt: skip
    assert body["choices"][0]["logprobs"] == {"content": tokens, "refusal": None}
    assert body["ignored_parameters"] == ["top_k", "x"]
    # A client may send back what it got.
    assert parse_chat_request({**ASK, "messages": [body["choices"][0]["message"]]}).request.settings is None


def test_a_refusal_is_no_content() -> None:
    message = OutputMessage(content="I will not.", refusal="I will not.")
    refused = Result(output=[message], raw_text="I will not.", target="t", call_count=1, max_calls=1)
    said = write_completion("id", "t", 1, [refused])["choices"][0]["message"]
    assert said == {"role": "assistant", "content": None, "refusal": "I will not."}


def test_a_refusal_is_what_the_assistant_said() -> None:
    chat = parse_chat_request({**ASK, "messages": [{"role": "assistant", "content": None, "refusal": "I cannot"}]})
    assert (chat.request.messages or [])[0].content == "I cannot"


@pytest.mark.parametrize("reason", [None, "stop", "length", "content_filter", "completed", "error", "max_tokens", "?"])
def test_every_reason_to_end_is_one_that_clients_know(reason: str | None) -> None:
    assert finish_reason_of(result("x", finish_reason=reason)) in FINISHES
    assert finish_reason_of(result("x", ToolCall(id="c", name="f", arguments=""), finish_reason=reason)) == "tool_calls"


def test_tokens_are_added_up_over_the_choices() -> None:
    told = result(token_usage=TokenUsage(input=3, output=2, cached=1, reasoning=1))
    assert write_usage([told, result(), told]) == {
        "prompt_tokens": 6,
        "completion_tokens": 4,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert write_usage([result(), result()]) is None


@pytest.mark.parametrize("kind", FAULTS.values())
def test_no_client_repeats_what_was_charged_or_would_be_refused_again(kind: type[Fault]) -> None:
    fault = kind()
    status, body, headers = write_error(fault)
    unknown = {"chargeUnknown"} if fault.charged is None else set()
    assert body["error"].keys() == {"message", "type", "param", "code", "charged"} | unknown
    assert 400 <= status < 600
    assert headers["x-should-retry"] == "false" or (fault.retryable and fault.charged is not True)


def test_when_to_come_back_is_told_in_the_clients_own_header() -> None:
    assert write_error(Overloaded(retry_after_ms=1500))[2] == {
        "x-should-retry": "true", "retry-after": "2", "retry-after-ms": "1500",
    }  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
FIELDS = st.sampled_from([
    "model", "messages", "n", "stream", "stream_options", "temperature", "max_tokens", "seed", "stop",
    "response_format", "tools", "tool_choice", "user", "other",
])  # fmt: skip


@given(JSON | st.dictionaries(FIELDS, JSON).map(lambda fields: {**ASK, **fields}))
def test_whatever_is_sent_is_read_or_is_a_bad_request(body: object) -> None:
    with contextlib.suppress(BadRequest):
        parse_chat_request(body).request.to_wire()


@given(st.lists(st.text(max_size=100), max_size=40))
def test_names_chosen_by_callers_make_a_header_of_bounded_length(names: list[str]) -> None:
    line = format_field_names(names)
    assert all(" " <= letter <= "~" for letter in line)
    assert len(line) < 22 * (MAX_NAME_LENGTH + 2)

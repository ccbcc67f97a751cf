"""Every field of the vendors' answers, from the types of their packages: translated to other APIs, or named.

The table of ``docs/protocol/fields.md`` is what this finds; to write it again after a change on purpose:
``QUINTAIN_RECORD_SNAPSHOTS=1 make test ARGS=tests/unit/shared/test_answer_fields.py``.
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Iterator
from typing import Any

import anthropic.types as messages
import openai.types as completions
import openai.types.chat as chat
import openai.types.responses as responses
import pytest

from quintain.apis.policy import PUBLISHED_FIELDS
from quintain.apis.requests import left_out
from quintain.apis.streams import translate_answer
from quintain.contracts.api_request import ApiName
from support.pages import assert_documented

Json = dict[str, Any]

CALL: Json = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LOGPROB: Json = {"token": "t", "logprob": -1.0, "bytes": [116], "top_logprobs": []}

ANSWERS: dict[ApiName, Json] = {
    "chat": {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "t"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 99, "completion_tokens": 99,
                  "prompt_tokens_details": {}, "completion_tokens_details": {}},
    },
    "responses": {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed",
        "output": [
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "message", "id": "m", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "t"}]},
            {"type": "function_call", "id": "f", "call_id": "c", "name": "f", "arguments": "{}"},
        ],
        "usage": {"input_tokens": 99, "output_tokens": 99,
                  "input_tokens_details": {}, "output_tokens_details": {}},
    },
    "messages": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "text", "text": "t"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {}},
        ],
        "usage": {"input_tokens": 99, "output_tokens": 99, "output_tokens_details": {}},
    },
}  # fmt: skip

#: The objects of each answer: their path, the keys that lead there, and their fields' type.
OBJECTS: dict[ApiName, list[tuple[str, tuple[str | int, ...], Any]]] = {
    "chat": [
        ("", (), chat.ChatCompletion),
        ("choices[].", ("choices", 0), chat.chat_completion.Choice),
        ("choices[].message.", ("choices", 0, "message"), chat.ChatCompletionMessage),
        ("usage.", ("usage",), completions.CompletionUsage),
        ("usage.prompt_tokens_details.", ("usage", "prompt_tokens_details"),
         completions.completion_usage.PromptTokensDetails),
        ("usage.completion_tokens_details.", ("usage", "completion_tokens_details"),
         completions.completion_usage.CompletionTokensDetails),
    ],
    "responses": [
        ("", (), responses.Response),
        ("output[reasoning].", ("output", 0), responses.ResponseReasoningItem),
        ("output[message].", ("output", 1), responses.ResponseOutputMessage),
        ("output[message].content[output_text].", ("output", 1, "content", 0), responses.ResponseOutputText),
        ("output[function_call].", ("output", 2), responses.ResponseFunctionToolCall),
        ("usage.", ("usage",), responses.ResponseUsage),
        ("usage.input_tokens_details.", ("usage", "input_tokens_details"), responses.response_usage.InputTokensDetails),
        ("usage.output_tokens_details.", ("usage", "output_tokens_details"),
         responses.response_usage.OutputTokensDetails),
    ],
    "messages": [
        ("", (), messages.Message),
        ("content[thinking].", ("content", 0), messages.ThinkingBlock),
        ("content[text].", ("content", 1), messages.TextBlock),
        ("content[tool_use].", ("content", 2), messages.ToolUseBlock),
        ("usage.", ("usage",), messages.Usage),
        ("usage.output_tokens_details.", ("usage", "output_tokens_details"), messages.OutputTokensDetails),
    ],
}  # fmt: skip

#: The lists of items of several types.
ITEMS: dict[ApiName, tuple[str, Any]] = {
    "responses": ("output", responses.ResponseOutputItem),
    "messages": ("content", messages.ContentBlock),
}

#: Values of fields that are no text and no number.
SAMPLES: dict[str, Any] = {
    "choices[].finish_reason": "length",
    "choices[].logprobs": {"content": [LOGPROB]},
    "choices[].message.tool_calls": [CALL],
    "output[message].content[output_text].logprobs": [LOGPROB],
    "output[reasoning].summary": [{"type": "summary_text", "text": "Well."}],
    "output[reasoning].content": [{"type": "reasoning_text", "text": "Well."}],
    "output[function_call].arguments": '{"a":1}',
    "incomplete_details": {"reason": "max_output_tokens"},
    "stop_reason": "max_tokens",
    "content[tool_use].input": {"a": 1},
}

#: What every answer has of its own: Quintain's id, the time, what it is, and sums; and lists and objects above.
OWN = {"id", "object", "type", "role", "index", "created", "created_at", "completed_at", "status", "total_tokens"}
ABOVE = {"choices", "choices[].message", "output", "output[message].content", "content", "usage",
         "usage.prompt_tokens_details", "usage.completion_tokens_details", "usage.input_tokens_details",
         "usage.output_tokens_details"}  # fmt: skip

PAIRS: list[tuple[ApiName, ApiName]] = [
    (source, target) for source in ANSWERS for target in ANSWERS if source != target
]


def variants(api: ApiName) -> Iterator[tuple[str, Json]]:
    """Every field of the answers of an API by its path, and an answer that has a value of its own there."""
    for prefix, keys, model in OBJECTS[api]:
        for name in model.model_fields:
            path = f"{prefix}{name}"
            is_echo = not prefix and api == "responses" and name in PUBLISHED_FIELDS[api] - {"service_tier"}
            if name in OWN or path in ABOVE or is_echo or (name == "id" and prefix):
                continue
            answer = place = copy.deepcopy(ANSWERS[api])
            for key in keys:
                place = place[key]
            sample = SAMPLES.get(path, 7 if name.endswith("_tokens") else {"a": 1} if "details" in name else "other")
            place[name] = sample
            yield path, answer
    if api in ITEMS:
        name, union = ITEMS[api]
        known = {item["type"] for item in ANSWERS[api][name]}
        for kind in types_of(union):
            if kind not in known and kind != "redacted_thinking":
                items = [*ANSWERS[api][name], {"type": kind, "id": "x", "call_id": "x", "status": "completed"}]
                yield f"{name}[{kind}]", {**ANSWERS[api], name: items}


def types_of(union: Any) -> Iterator[str]:
    """The types of a union's items."""
    for one in typing.get_args(union):
        if hasattr(one, "model_fields"):
            yield from typing.get_args(one.model_fields["type"].annotation)
        else:
            yield from types_of(one)


def named(source: ApiName, target: ApiName) -> list[str]:
    """The fields that are named; every other one changes the translation."""
    plain = translate_answer(source, target, ANSWERS[source])
    found = []
    for path, answer in variants(source):
        if any(name == path or name.startswith((f"{path}.", f"{path}[")) for name in left_out(source, target, answer)):
            found.append(path)
        else:
            assert translate_answer(source, target, answer) != plain, f"{path} is dropped silently"
    return found


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_an_answer_without_more_has_nothing_to_name(source: ApiName, target: ApiName) -> None:
    assert left_out(source, target, ANSWERS[source]) == []


def test_every_field_of_an_answer_is_translated_or_named() -> None:
    rows = [
        [f"`{source}`", f"`{target}`", ", ".join(f"`{path}`" for path in named(source, target))]
        for source, target in PAIRS
    ]
    assert_documented("answers", [["provider's API", "caller's API", "named"], *rows])

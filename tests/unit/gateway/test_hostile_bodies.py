"""Bodies of any JSON sent to the parsers of OpenAI's other APIs: each is parsed, or refused as a bad request."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import BadRequest
from quintain_gateway.apis.completions.wire import parse_completion_request
from quintain_gateway.apis.responses.wire import parse_response_request

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
RESPONSE: dict[str, Any] = {"model": "t", "input": "x"}
COMPLETION: dict[str, Any] = {"model": "t", "prompt": "x"}
ITEM_TYPES = ["message", "function_call", "function_call_output", "reasoning", "item_reference"]
PART_TYPES = ["input_text", "output_text", "refusal", "input_image", "input_file"]
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(PART_TYPES) | JSON},
    optional=dict.fromkeys(["text", "refusal", "image_url", "file_id", "file_data", "detail"], JSON),
)
ITEMS = st.fixed_dictionaries(
    {"type": st.sampled_from(ITEM_TYPES) | JSON, "role": st.just("user") | JSON},
    optional={
        "content": st.lists(PARTS, max_size=2) | JSON,
        **dict.fromkeys(["call_id", "name", "arguments", "output", "summary", "encrypted_content"], JSON),
    },
)


@given(
    JSON
    | st.dictionaries(st.sampled_from([*RESPONSE, "tools", "tool_choice", "text", "stream", "reasoning"]), JSON).map(
        lambda fields: {**RESPONSE, **fields}
    )
    | st.lists(ITEMS, max_size=3).map(lambda items: {**RESPONSE, "input": items})
)
def test_a_response_request_is_parsed_or_is_a_bad_request(body: object) -> None:
    with contextlib.suppress(BadRequest):
        parse_response_request(body).request.to_wire()


@given(
    JSON
    | st.dictionaries(st.sampled_from([*COMPLETION, "stop", "logprobs", "echo", "stream", "n"]), JSON).map(
        lambda fields: {**COMPLETION, **fields}
    )
)
def test_a_completion_request_is_parsed_or_is_a_bad_request(body: object) -> None:
    with contextlib.suppress(BadRequest):
        for request in parse_completion_request(body).requests:
            request.to_wire()


@pytest.mark.parametrize("content_type", [[], {}, 1, None])
def test_a_part_whose_type_is_no_string_is_refused_by_its_field(content_type: object) -> None:
    body = {**RESPONSE, "input": [{"role": "user", "content": [{"type": content_type}]}]}
    with pytest.raises(BadRequest) as refusal:
        parse_response_request(body)
    assert "input.0.content.0.type" in str(refusal.value) or "input[0].content[0].type" in str(refusal.value)

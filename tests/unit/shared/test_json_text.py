"""JSON objects whose members keep their own text: what is passed on is what was sent, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.contracts.api_request import ApiRequest, json_text, parse_json_object, read_api_request
from quintain.errors import BadRequest

#: Values whose text says more than the value that Python reads.
EXACT = ["1.0", "1e2", "0.10", "-0.0", "123456789012345678901234567890", "1E-7", '"\\u00e9\\/"', "[1.50, { } ]"]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("text", EXACT)
def test_a_member_keeps_the_text_that_was_sent(text: str) -> None:
    whole, _ = parse_json_object(f' {{ "model" : "x" ,\n"kept" : {text} }} '.encode())
    assert whole.texts["kept"] == text
    assert whole.without("model").text == f'{{"kept":{text}}}'
    assert whole.with_members({"model": "y"}).text == f'{{"model":"y","kept":{text}}}'


@given(value=st.dictionaries(st.text(), values, max_size=5), indent=st.sampled_from([None, 0, 2]))
def test_what_is_read_is_equal_json(value: dict[str, object], indent: int | None) -> None:
    sent = json.dumps(value, indent=indent)
    whole, _ = parse_json_object(sent.encode())
    assert whole.values == value
    assert json.loads(whole.text) == value
    assert json.loads(json_text(value).text) == value


def test_an_inner_object_keeps_the_texts_of_its_members_too() -> None:
    whole, body = parse_json_object(b'{"api": "chat", "body": {"seed": 1.0, "stop": []}}', inner="body")
    assert body.texts == {"seed": "1.0", "stop": "[]"}
    assert whole.values["body"] == {"seed": 1.0, "stop": []}
    assert whole.texts["body"] == '{"seed": 1.0, "stop": []}'


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b" ", b"[]", b"5", b'"text"', b"null", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":1,}'),
        *(b'{"a" 1}', b'{"a":1 "b":2}', b"{a:1}", b"{'a':1}", b'{"a":1}}', b'{"a":1} x', b'{"a":tru}', b'{"a":01}'),
        *(b'{"a":"\n"}', b'{"a":"\\x"}', '{"a":1}'.encode("utf-16")),
        *('{"a":"é"}'.encode("latin-1"), b'{"a":"\xed\xa0\x80"}', b'{"a":"\\ud83d"}', b'{"a":NaN}'),
        *(b'{"a":[Infinity]}', b'{"a":{"b":-Infinity}}', b'{"a":1e999}', b'{"a":' + b"9" * 5_000 + b"}"),
        b'{"a":[' + b"9" * 5_000 + b"]}",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_json_object(data)
    # Python's own advice is for who runs it.
    assert "set_int_max_str_digits" not in refused.value.message


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b'{"model": 1, "model": 1}', "model"),
        (b'{"model": 1, "mod\\u0065l": 2}', "model"),
        (b'{"a": {"b": 1, "b": 2}}', "b"),
        (b'{"a": [1, [{"c": {"d": 0, "d": 0}}]]}', "d"),
        (b'{"body": {"n": 1, "n": 2}}', "n"),
        (b'{"body": {"tools": [{"type": "f", "type": "g"}]}}', "type"),
        (b'{"body": {}, "body": {}}', "body"),
    ],
)
def test_a_name_that_stands_twice_is_refused_at_any_depth(data: bytes, name: str) -> None:
    with pytest.raises(BadRequest, match=name):
        parse_json_object(data, inner="body")


def test_a_published_request_names_its_grader() -> None:
    request = ApiRequest("embeddings", json_text({"input": ["a", "b"]}), target="vectors", grader="near")
    assert read_api_request(request.to_wire()) == request


@pytest.mark.parametrize(
    ("members", "field"),
    [
        *(({"api": "speech"}, "api"), ({"api": ["chat"]}, "api"), ({"body": [1]}, "body"), ({"body": None}, "body")),
        *(({"target": 5}, "target"), ({"grader": 5}, "grader"), ({"grader": ""}, "grader")),
        *(({"grader": "x" * 65}, "grader"), ({"grader": "a\0b"}, "grader")),
        ({"headers": ["anthropic-beta"]}, "headers"),
        ({"headers": {"anthropic-beta": 5}}, "headers"),
        ({"headers": {"authorization": "Bearer x"}}, "headers"),
        ({"headers": {"x-api-key": "x"}}, "headers"),
        ({"headers": {"Anthropic-Beta": "x"}}, "headers"),
        ({"headers": {"anthropic-beta": "x\r\nx-api-key: y"}}, "headers.anthropic-beta"),
        ({"headers": {"anthropic-beta": "é"}}, "headers.anthropic-beta"),
        ({"body": {"model": "x"}}, "body.model"),
        ({"body": {"stream": True}}, "body.stream"),
        ({"body": {"stream_options": {}}}, "body.stream_options"),
    ],
)
def test_a_published_request_of_another_shape_is_refused_by_name(members: dict[str, object], field: str) -> None:
    wire = json.dumps({"api": "chat", "body": {"messages": []}} | members).encode()
    with pytest.raises(BadRequest) as refused:
        read_api_request(wire)
    assert refused.value.message.startswith(f"{field}:")

"""Server-sent events, however a server writes them and wherever its pieces end."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.apis.answer_json import UnreadableAnswer
from quintain.apis.streams import EventReader

EVENTS = [{"a": 1}, {"é🏇": "a\u2028b\u0085"}, "[DONE]"]
TEXTS = ['{"a": 1}', '{"é🏇": "a\u2028b\u0085"}', "[DONE]"]

#: The same three events, as servers write them.
WRITTEN = {
    "plainly": "data: {}\n\ndata: {}\n\ndata: {}\n\n",
    "without a space": "data:{}\n\ndata:{}\n\ndata:{}\n\n",
    "with CRLF": "data: {}\r\n\r\ndata: {}\r\n\r\ndata: {}\r\n\r\n",
    "with CR": "data: {}\r\rdata: {}\r\rdata: {}\r\r",
    "with each end of a line": "data: {}\r\n\rdata: {}\n\r\ndata: {}\r\r\n",
    "in several lines": "data: \ndata:{}\ndata\n\ndata:\ndata:{}\n\ndata: {}\n\n",
    "after a byte order mark": "\ufeffdata: {}\n\ndata: {}\n\ndata: {}\n\n",
    "with names and ids": "event: a\ndata: {}\nid: 1\n\nevent: b\ndata: {}\n\ndata: {}\nretry: 5\n\n",
    "between comments": ": hello\n\ndata: {}\n\n: ping\n\n\n\ndata: {}\n\nevent: nothing\n\ndata: {}\n\n: bye\n\n",
    "between events that say nothing": (
        "data: null\n\ndata: {}\n\ndata:\n\ndata\n\ndata: []\n\ndata: {{}}\n\nevent: ping\ndata: ping\n\ndata: {}\n\n"
        'data: "ping"\n\ndata:  null \n\ndata: {}\n\n'
    ),
    "without the last empty line": "data: {}\n\ndata: {}\n\ndata: {}\n",
    "without the end of the last line": "data: {}\n\ndata: {}\n\ndata: {}",
}


def read(written: bytes, cuts: list[int]) -> list[Any]:
    reader = EventReader()
    pieces = [written[start:end] for start, end in pairwise([0, *sorted(cuts), len(written)])]
    return [*(event for piece in pieces for event in reader.feed(piece)), *reader.end()]


@pytest.mark.parametrize("way", WRITTEN)
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 200)))
def test_events_are_read_however_they_are_written(way: str, cuts: list[int]) -> None:
    written = WRITTEN[way].format(*TEXTS).encode()
    assert read(written, cuts) == EVENTS
    assert read(written, [*range(len(written))]) == EVENTS


def test_an_event_is_not_held_back_until_the_byte_after_cr() -> None:
    assert list(EventReader().feed(b'data: {"a": 1}\r\r')) == [{"a": 1}]


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        (["a\\ud83c", "\\udfc7b"], ["a", "🏇b"]),
        (["\\uD83C", "\\uDFC7\\ud83c", "\\udfc7"], ["", "🏇", "🏇"]),
        (["a\\ud83c", "b", "\\udfc7c"], ["a\ufffd", "b", "\ufffdc"]),
        (["a", "\\ud83c"], ["a", "\ufffd"]),
        (["\\ud83c\\udfc7", "\\\\ud83c"], ["🏇", "\\ud83c"]),
    ],
)
@pytest.mark.parametrize(
    "event",
    [
        '{"choices": [{"index": 0, "delta": {"content": "TEXT"}}]}',
        '{"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 1, "function": {"arguments": "TEXT"}}]}}]}',
        '{"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "TEXT"}',
        '{"type": "token", "text": "TEXT"}',
        '{"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "TEXT"}}',
    ],
    ids=["chat", "arguments", "responses", "own", "messages"],
)
def test_halves_of_a_character_are_joined_and_one_alone_is_replaced(
    event: str, texts: list[str], joined: list[str]
) -> None:
    written = "".join(f"data: {event.replace('TEXT', text)}\n\n" for text in texts)
    wanted = "".join(f"data: {event.replace('TEXT', text.replace(chr(92), chr(92) * 2))}\n\n" for text in joined)
    assert read(written.encode(), []) == read(wanted.encode(), [])


@pytest.mark.parametrize(
    "between", ["", "null", '{"choices": [{"index": 0, "delta": {"content": ""}}]}', '{"choices": []}']
)
def test_what_comes_between_two_halves_does_not_part_them(between: str) -> None:
    halves = [
        '{"choices": [{"index": 0, "delta": {"content": "\\ud83c"}}]}',
        '{"choices": [{"index": 0, "delta": {"content": "\\udfc7"}}]}',
    ]
    *_, last = read(f"data: {halves[0]}\n\ndata: {between}\n\ndata: {halves[1]}\n\n".encode(), [])
    assert last["choices"][0]["delta"]["content"] == "🏇"


def test_the_calls_of_two_tools_in_turns_keep_their_characters() -> None:
    calls = [
        {"index": 0, "type": "function", "function": {"arguments": "\ud83c"}},
        {"index": 1, "function": {"arguments": "\ud83d"}},
        {"index": 0, "function": {"arguments": "\udfc7"}},
        {"index": 1, "function": {"arguments": "\ude00"}},
    ]
    events = [json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}) for call in calls]
    heard = read("".join(f"data: {each}\n\n" for each in events).encode(), [])
    assert [event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] for event in heard] == [
        "",
        "",
        "🏇",
        "😀",
    ]


def test_the_last_event_does_not_wait_for_half_of_a_character() -> None:
    end = '{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}'
    written = 'data: {"choices": [{"index": 0, "delta": {"content": "\\ud83c"}}]}\n\n' + f"data: {end}\n\n"
    assert [*EventReader().feed(written.encode())][-1] == json.loads(end)


def test_halves_of_two_texts_are_not_joined() -> None:
    written = b'data: {"index": 0, "a": "\\ud83c"}\n\ndata: {"index": 1, "a": "\\udfc7"}\n\n'
    assert read(written, []) == [{"index": 0, "a": "\ufffd"}, {"index": 1, "a": "\ufffd"}]


@pytest.mark.parametrize("data", ["{oops", "keep-alive", "NaN", '{"a": 1e400}', '{"a": -Infinity}'])
def test_what_is_no_json_is_named(data: str) -> None:
    with pytest.raises(UnreadableAnswer):
        read(f"data: {data}\n\n".encode(), [])


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ('{"message": "boom"}', {"message": "boom"}),
        ('{"type": "error", "error": {"message": "boom"}}', {"type": "error", "error": {"message": "boom"}}),
        ("boom", "boom"),
        ("null", None),
    ],
)
def test_an_event_named_error_is_one_whatever_its_data_is(data: str, error: object) -> None:
    assert read(f"event: error\ndata: {data}\n\n".encode(), []) == [{"type": "error", "error": error}]

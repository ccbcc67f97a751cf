"""Server-sent events as servers write them, and translated streams: whatever the order of pieces, nothing is lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.apis.answer_json import UnreadableAnswer
from quintain.apis.chat import DifferentAnswer, chunk_of
from quintain.apis.requests import left_out
from quintain.apis.streams import STREAMS, EventReader, StreamTranslation, translate_answer
from quintain.contracts.api_request import ApiName
from quintain_worker.providers.model_answers import read_answer

# Server-sent events, however a server writes them and wherever its pieces end.


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


@pytest.mark.parametrize("data", ["{oops", "keep on", "NaN", '{"a": 1e400}', '{"a": -Infinity}'])
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


# Translated streams: each event is worked on once, and whatever the order of its pieces, nothing is lost.


Json = dict[str, Any]
APIS: tuple[ApiName, ...] = ("chat", "responses", "messages")
PAIRS = [(source, target) for source in APIS for target in APIS]
HEAD: Json = {"id": "chatcmpl-1", "created": 1, "model": "m"}


def call_piece(index: int, arguments: str, **first: object) -> Json:
    """A piece of a call; the first piece of one has its id."""
    name = {"name": "f"} if first else {}
    return {"tool_calls": [{"index": index, **first, "function": {**name, "arguments": arguments}}]}


def chunks(deltas: Iterable[Json], reason: str = "stop") -> list[Json]:
    return [*(chunk_of(HEAD, delta) for delta in deltas), chunk_of(HEAD, {}, finish_reason=reason)]


def translated(target: ApiName, events: Iterable[Json], source: ApiName = "chat") -> tuple[list[Json], Json]:
    translation = StreamTranslation(source, target)
    heard = [each for event in events for each in translation.feed(event)]
    return [*heard, *translation.end()], translation.answer()


def texts_of(answer: Json) -> str:
    """The text of an answer of any API, from its chat form."""
    source: ApiName = "messages" if answer.get("type") == "message" else "responses" if "output" in answer else "chat"
    return str(translate_answer(source, "chat", answer)["choices"][0]["message"]["content"])


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_twice_as_many_pieces_are_twice_the_work(source: ApiName, target: ApiName) -> None:
    def work_for(count: int) -> int:
        pieces = [{"content": f"{number} "} for number in range(count)]
        pieces += [call_piece(0, f"{number}", id="c") for number in range(count)]
        events, _ = translated(source, chunks(pieces, "tool_calls"))
        done = 0

        def count_calls(_frame: object, kind: str, _argument: object) -> None:
            nonlocal done
            done += kind in {"call", "c_call"}

        sys.setprofile(count_calls)
        try:
            heard, answer = translated(target, events, source)
            kept = STREAMS[target]()
            for event in heard[: len(heard) // 2]:
                kept.feed(event)
            rest = list(kept.rest_of(answer))
        finally:
            sys.setprofile(None)
        assert len(heard) >= 2 * count
        assert rest
        return done

    assert work_for(400) <= 2.1 * work_for(200)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_calls_whose_pieces_come_in_turns_are_whole(source: ApiName, target: ApiName) -> None:
    turns = [call_piece(at, f'{{"n":{at}', id=f"c{at}", type="function") for at in range(3)]
    turns += [call_piece(at, "}") for at in range(3)]
    events, _ = translated(source, chunks(turns, "tool_calls"))
    heard, answer = translated(target, events, source)
    chat = translate_answer(target, "chat", answer)
    calls = chat["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [
        (f"c{at}", f'{{"n":{at}}}') for at in range(3)
    ]
    begun = STREAMS[target]()
    for event in heard[:-3]:
        begun.feed(event)
    assert heard[-1] in list(begun.rest_of(answer))


@pytest.mark.parametrize("target", APIS)
def test_text_after_thinking_and_calls_is_not_lost(target: ApiName) -> None:
    thinking = {"thinking_blocks": [{"index": 0, "thinking": "Hm."}]}
    pieces = [{"content": "one "}, thinking, {"content": "two "}, call_piece(0, "{}", id="c"), {"content": "three"}]
    heard, answer = translated(target, chunks(pieces))
    assert texts_of(answer) == "one two three"
    for sent_count in range(len(heard)):
        sent = STREAMS[target]()
        for event in heard[:sent_count]:
            sent.feed(event)
        for event in list(sent.rest_of(answer)):
            sent.feed(event)
        assert sent.answer() == answer


def test_the_input_of_a_tool_that_was_cut_off_is_kept_as_text() -> None:
    heard, answer = translated("messages", chunks([call_piece(0, '{"a": [1', id="c")], "length"))
    assert answer["content"] == [{"type": "tool_use", "id": "c", "name": "f", "input": {"arguments": '{"a": [1'}}]
    sent = STREAMS["messages"]()
    for event in heard[:3]:
        sent.feed(event)
    assert [event["type"] for event in sent.rest_of(answer)] == ["content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize("target", APIS)
@pytest.mark.parametrize("other", [{"content": "two"}, call_piece(0, "{}", id="d")])
def test_an_answer_that_does_not_begin_with_what_was_sent_is_another(target: ApiName, other: Json) -> None:
    heard, _ = translated(target, chunks([{"content": "one"}, call_piece(0, "{}", id="c")]))
    _, answer = translated(target, chunks([other]))
    sent = STREAMS[target]()
    for event in heard[:-2]:
        sent.feed(event)
    with pytest.raises(DifferentAnswer):
        list(sent.rest_of(answer))


@pytest.mark.parametrize("indexes", [[1], [1, 0], [None], [5, 7]])
def test_calls_are_continued_under_the_indexes_that_their_server_gave_them(indexes: list[int | None]) -> None:
    pieces = [
        {
            "tool_calls": [
                {"id": f"c{at}", "function": {"name": "f", "arguments": "{}"}} | ({} if at is None else {"index": at})
            ]
        }
        for at in indexes
    ]
    heard, answer = translated("chat", chunks(pieces, "tool_calls"))
    for sent_count in range(len(heard) + 1):
        sent = STREAMS["chat"]()
        for event in heard[:sent_count]:
            sent.feed(event)
        for event in list(sent.rest_of(answer)):
            sent.feed(event)
        assert sent.answer() == answer


def completion(message: Json, *others: Json) -> Json:
    choices = [
        {"index": at, "message": {"role": "assistant", "content": None, **each}, "finish_reason": "stop"}
        for at, each in enumerate((message, *others))
    ]
    return {**HEAD, "object": "chat.completion", "choices": choices}


@pytest.mark.parametrize("target", ["responses", "messages"])
def test_arguments_that_a_server_writes_as_an_object_are_not_lost(target: ApiName) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"city": "Zürich"}}}
    answer = completion({"tool_calls": [call]})
    chat = translate_answer(target, "chat", translate_answer("chat", target, answer))
    assert json.loads(chat["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Zürich"}
    read = read_answer(answer, None).output
    assert read is not None
    assert [each.arguments for message in read for each in message.tool_calls or []] == ['{"city": "Zürich"}']


@pytest.mark.parametrize("target", ["responses", "messages"])
def test_a_translated_answer_is_the_first_choice_and_names_the_others(target: ApiName) -> None:
    answer = completion({"content": "One."}, {"content": "Two."})
    assert texts_of(translate_answer("chat", target, answer)) == "One."
    assert left_out("chat", target, answer) == ["choices[1]"]


@pytest.mark.parametrize("target", ["responses", "messages"])
def test_a_call_that_is_named_as_left_out_is_no_call_without_a_name(target: ApiName) -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}
    answer = completion({"content": "Fine.", "tool_calls": [call]})
    translated_whole = translate_answer("chat", target, answer)
    assert translated_whole == translate_answer("chat", target, completion({"content": "Fine."}))
    assert left_out("chat", target, answer) == ["choices[].message.tool_calls[custom]"]


@pytest.mark.parametrize("target", ["responses", "messages"])
def test_the_parts_of_a_text_are_joined_and_other_parts_are_named(target: ApiName) -> None:
    parts = [{"type": "text", "text": "One, "}, {"type": "image", "image": "x"}, {"type": "text", "text": "two."}]
    answer = completion({"content": parts})
    assert texts_of(translate_answer("chat", target, answer)) == "One, two."
    assert left_out("chat", target, answer) == ["choices[].message.content[image]"]

"""Translated streams: each event is worked on once, and whatever the order of its pieces, nothing is lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from quintain.apis.chat import DifferentAnswer, chunk_of
from quintain.apis.requests import left_out
from quintain.apis.streams import STREAMS, StreamTranslation, translate_answer
from quintain.contracts.api_request import ApiName
from quintain_worker.providers.model_answers import read_answer

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

    assert work_for(2_000) <= 2.1 * work_for(1_000)


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

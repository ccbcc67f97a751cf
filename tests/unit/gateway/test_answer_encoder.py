"""Answers of OpenAI's and Anthropic's APIs: whatever is lost, repeated or begun again, what was sent begins the whole
answer, or the stream ends with an error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.apis.streams import STREAMS, translate_answer
from quintain.contracts.api_request import ApiName
from quintain.contracts.invoke import Chunk, Result
from quintain.errors import ProviderFailed
from quintain_gateway.answer_encoder import AnswerEncoder

Json = dict[str, Any]
APIS: Sequence[ApiName] = ("chat", "responses", "messages")
CALLS: Json = {
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "ü 1"}'}},
        {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]
}


def chat(text: str, **more: object) -> Json:
    message = {"role": "assistant", "content": text, "reasoning_content": "Hm.", **more}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in more else "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


def result(body: Json, **more: Any) -> Result:
    return Result(output=[], body=body, target="t", call_count=1, max_calls=1, **more)


def sent_events(data: bytes) -> list[Json]:
    lines = [line[6:] for line in data.splitlines() if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def assembled(api: ApiName, events: Sequence[Json]) -> Json:
    assembler = STREAMS[api]()
    for event in events:
        assembler.feed(event)
    return assembler.answer()


def own(api: ApiName, body: Json) -> Json:
    """The answer with the id that the encoder gives it, as a client without usage sees it."""
    [whole] = [AnswerEncoder(api, "k", "t").encode_response([result(body)])]
    return {name: value for name, value in whole.items() if name != "usage"} if api == "chat" else whole


def pieces_of(api: ApiName, body: Json, attempt: int = 1) -> list[Chunk]:
    return [
        Chunk(attempt=attempt, seq=seq, delta="", events=[event])
        for seq, event in enumerate(STREAMS[api]().rest_of(body))
    ]


@pytest.mark.parametrize("api", APIS)
@given(data=st.data())
def test_whatever_is_lost_or_repeated_the_stream_is_the_whole_answer(api: ApiName, data: st.DataObject) -> None:
    body = translate_answer("chat", api, chat("one two", **(CALLS if data.draw(st.booleans()) else {})))
    attempts = data.draw(st.integers(1, 2))
    chunks = [chunk for attempt in range(1, attempts + 1) for chunk in pieces_of(api, body, attempt)]
    kept = [chunk for chunk in chunks for _ in range(data.draw(st.integers(0, 2)))]
    encoder = AnswerEncoder(api, "k", "t")
    stream = b"".join(encoder.encode_chunk(0, chunk) for chunk in kept)
    stream += encoder.encode_result(0, result(body)) + encoder.encode_end([result(body)])
    events = sent_events(stream)
    assert assembled(api, events) == own(api, body)
    if api == "responses":
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert stream.endswith(b"data: [DONE]\n\n") == (api == "chat")


@pytest.mark.parametrize("api", APIS)
def test_an_answer_that_was_begun_again_and_differs_ends_with_an_error(api: ApiName) -> None:
    first, second = (translate_answer("chat", api, chat(text)) for text in ("one two", "uno dos"))
    encoder = AnswerEncoder(api, "k", "t")
    for chunk in [*pieces_of(api, first)[:-2], *pieces_of(api, second, 2)]:
        stream = encoder.encode_chunk(0, chunk)
    assert stream == b""
    with pytest.raises(ProviderFailed, match="Idempotency-Key") as differs:
        encoder.encode_result(0, result(second))
    assert (differs.value.charged, differs.value.retryable) == (True, False)
    error = encoder.encode_stream_error(differs.value)
    assert error.startswith(b"data: " if api == "chat" else b"event: error\n")
    assert sent_events(error)[0]["error"]["charged"] is True


@pytest.mark.parametrize("written", ['{"a":"ü', '{"a": "ü', '{"a": "\\u00fc'])
def test_the_rest_of_a_tools_input_is_written_as_its_beginning(written: str) -> None:
    body = translate_answer("chat", "messages", chat("", **CALLS))
    body = json.loads(json.dumps(body))
    chunks = pieces_of("messages", body)
    at = next(index for index, chunk in enumerate(chunks) if "partial_json" in str(chunk.events))
    begun = {"type": "input_json_delta", "partial_json": written}
    chunks[at] = Chunk(attempt=1, seq=at, delta="", events=[{**(chunks[at].events or [{}])[0], "delta": begun}])
    encoder = AnswerEncoder("messages", "k", "t")
    stream = b"".join(encoder.encode_chunk(0, chunk) for chunk in chunks[: at + 1])
    assert assembled("messages", sent_events(stream + encoder.encode_result(0, result(body)))) == own("messages", body)


@pytest.mark.parametrize("api", APIS)
def test_every_line_of_a_stream_is_what_an_event_stream_may_hold(api: ApiName) -> None:
    body = translate_answer("chat", api, chat("line\nline\r\n\r\u2028data: x\n\nevent: y\n"))
    encoder = AnswerEncoder(api, "k", "t")
    stream = b"".join(encoder.encode_chunk(0, piece) for piece in pieces_of(api, body))
    stream += encoder.encode_result(0, result(body)) + encoder.encode_end([result(body)])
    lines = [line for line in stream.split(b"\n") if line]
    assert all(line.startswith((b"data: {", b"data: [DONE]", b"event: ")) for line in lines)
    assert assembled(api, sent_events(stream)) == own(api, body)


@pytest.mark.parametrize("api", APIS)
def test_an_answer_that_was_begun_again_before_a_word_is_the_later_one(api: ApiName) -> None:
    first, second = (translate_answer("chat", api, chat(text)) for text in ("", "uno dos"))
    encoder = AnswerEncoder(api, "k", "t")
    chunks = [*pieces_of(api, first)[:1], *pieces_of(api, second, 2)]
    stream = b"".join(encoder.encode_chunk(0, chunk) for chunk in chunks) + encoder.encode_result(0, result(second))
    assert assembled(api, sent_events(stream)) == own(api, second)


def test_usage_is_one_event_at_the_end_where_it_is_asked_for() -> None:
    body = chat("one")
    for include_usage in (True, False):
        encoder = AnswerEncoder("chat", "k", "t", include_usage)
        events = sent_events(b"".join(encoder.encode_result(choice, result(body)) for choice in range(2)))
        end = sent_events(encoder.encode_end([result(body), result(body)]))
        assert not any(event.get("usage") for event in events)
        assert {choice["index"] for event in events for choice in event["choices"]} == {0, 1}
        assert [(event["choices"], event["usage"]["total_tokens"]) for event in end] == (
            [([], 10)] if include_usage else []
        )


def test_events_are_the_providers_own_but_for_the_id_and_a_model_that_is_absent() -> None:
    choice = {"index": 0, "delta": {"content": "a", "new": [1.0]}, "finish_reason": None, "other": {"x": None}}
    event = {"id": "p", "object": "chat.completion.chunk", "obfuscation": "x", "choices": [choice]}
    for model in ({"model": "m"}, {}):
        chunk = Chunk(attempt=1, seq=0, delta="", events=[event | model])
        assert sent_events(AnswerEncoder("chat", "k", "t").encode_chunk(0, chunk)) == [
            {**event, "model": "t", **model, "id": "chatcmpl-k"}
        ]


@pytest.mark.parametrize("api", APIS)
def test_what_a_call_was_made_without_is_named(api: ApiName) -> None:
    body = translate_answer("chat", api, chat("one"))
    answered = result(body, ignored=["top_k"])
    assert AnswerEncoder(api, "k", "t").encode_response([answered])["ignored_parameters"] == ["top_k"]
    end = AnswerEncoder(api, "k", "t").encode_end([answered])
    if api == "chat":
        assert sent_events(end)[0]["ignored_parameters"] == ["top_k"]
    else:
        assert end == b': ignored_parameters ["top_k"]\n\n'
    assert "ignored_parameters" not in AnswerEncoder(api, "k", "t").encode_response([result(body)])
    assert b"ignored_parameters" not in AnswerEncoder(api, "k", "t").encode_end([result(body)])

"""Answers to requests of the vendors' APIs: whole and streamed, with everything that the provider said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from quintain.apis.translation import written_usage
from quintain.contracts.api_request import ApiName
from quintain.contracts.invoke import TokenUsage
from quintain_worker.providers.provider import Delta, ProviderAnswer
from support.model_calls import CONVERSATIONS, api_provider, api_request, call, whole_and_streamed
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse
from support.model_streams import chat_call_events, event
from support.model_wires import chat_calls

CITATION = {"type": "url_citation", "url_citation": {"url": "https://example.org", "start_index": 0, "end_index": 4}}
LOGPROBS = {"content": [{"token": "Fine", "logprob": -0.5, "bytes": [70], "top_logprobs": []}], "refusal": None}
CHAT_USAGE = {
    "prompt_tokens": 21, "completion_tokens": 9, "total_tokens": 30, "cost": 0.25,
    "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2, "audio_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": 1, "accepted_prediction_tokens": 5},
}  # fmt: skip
CHAT_MESSAGE = {"role": "assistant", "content": "Fine.", "refusal": None, "annotations": [CITATION], "own": {"a": 1}}
CHAT_CHOICE = {"index": 0, "message": CHAT_MESSAGE, "logprobs": LOGPROBS, "finish_reason": "stop", "own_reason": "x"}
CHAT_HEAD: dict[str, Any] = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "served",
    "system_fingerprint": "fp_1", "service_tier": "flex", "provider": "elsewhere",
}  # fmt: skip

TEXT_CITATION = {"type": "char_location", "cited_text": "x", "document_index": 0, "document_title": None}
MESSAGE_USAGE = {
    "input_tokens": 15, "output_tokens": 9, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2000,
    "cache_creation": {"ephemeral_5m_input_tokens": 2000, "ephemeral_1h_input_tokens": 0},
    "service_tier": "priority", "server_tool_use": {"web_search_requests": 1},
}  # fmt: skip
MESSAGE_HEAD: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "served"}
#: Each block of the message, and the deltas in which it is streamed.
BLOCKS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        [
            {"type": "thinking_delta", "thinking": "Hm"},
            {"type": "thinking_delta", "thinking": "."},
            {"type": "signature_delta", "signature": "sig"},
        ],
    ),
    (
        {"type": "text", "text": "Fine.", "citations": [TEXT_CITATION]},
        [
            {"type": "text_delta", "text": "Fi"},
            {"type": "citations_delta", "citation": TEXT_CITATION},
            {"type": "text_delta", "text": "ne."},
        ],
    ),
    (
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "q"}},
        [{"type": "input_json_delta", "partial_json": part} for part in ('{"que', 'ry":"q"}')],
    ),
    ({"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"type": "web_search_result"}]}, []),
    (
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1.5, {"b": None}]}},
        [{"type": "input_json_delta", "partial_json": part} for part in ("", '{"a":[1.5,{"b":null}]}')],
    ),
    ({"type": "own_block", "anything": {"at": "all"}}, []),
]
MESSAGE_END = {"stop_reason": "stop_sequence", "stop_sequence": "END", "container": {"id": "c"}}

REASONING_ITEM = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"}
MESSAGE_ITEM = {
    "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "final_answer",
    "content": [{"type": "output_text", "text": "Fine.", "annotations": [CITATION], "logprobs": []}],
}  # fmt: skip
RESPONSE_USAGE = {
    "input_tokens": 21, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
    "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 30,
}  # fmt: skip
COMPLETION_HEAD: dict[str, Any] = {
    "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "served", "system_fingerprint": "fp_1",
}  # fmt: skip
COMPLETION_USAGE = {"prompt_tokens": 21, "completion_tokens": 9, "total_tokens": 30}

WHOLES: dict[ApiName, dict[str, Any]] = {
    "chat": {**CHAT_HEAD, "choices": [CHAT_CHOICE], "usage": CHAT_USAGE},
    "responses": {
        "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "served",
        "service_tier": "flex", "own": {"a": 1}, "usage": RESPONSE_USAGE,
        "output": [REASONING_ITEM, {"type": "own_item", "id": "o_1", "anything": [1]}, MESSAGE_ITEM],
    },
    "completions": {
        **COMPLETION_HEAD, "usage": COMPLETION_USAGE,
        "choices": [{"index": 0, "text": "Fine.", "logprobs": {"tokens": ["Fine", "."]}, "finish_reason": "stop"}],
    },
    "embeddings": {
        "object": "list", "model": "served", "own": 1, "usage": {"prompt_tokens": 21, "total_tokens": 21},
        "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -1e-7]}],
    },
    "messages": {**MESSAGE_HEAD, "content": [block for block, _ in BLOCKS], **MESSAGE_END, "usage": MESSAGE_USAGE},
}  # fmt: skip

FULL_USAGE = TokenUsage(input=21, output=9, cached=4, cache_write=2, reasoning=3)
USAGES: dict[ApiName, TokenUsage] = {
    "chat": FULL_USAGE,
    "responses": FULL_USAGE,
    "completions": TokenUsage(input=21, output=9),
    "embeddings": TokenUsage(input=21, output=0),
    "messages": TokenUsage(input=2019, output=9, cached=4, cache_write=2000),
}


def chat_chunks() -> list[dict[str, Any]]:
    """The chunks of the chat answer, its fields spread over them as servers do it."""
    head = CHAT_HEAD | {"object": "chat.completion.chunk"}
    deltas: list[dict[str, Any]] = [
        {"delta": {"role": "assistant", "content": "", "refusal": None}},
        {"delta": {"content": "Fi"}, "logprobs": {"content": LOGPROBS["content"], "refusal": None}},
        {"delta": {"content": "ne."}},
        {"delta": {"annotations": [CITATION], "own": {"a": 1}}},
        {"delta": {}, "finish_reason": "stop", "own_reason": "x"},
    ]
    chunks = [{**head, "choices": [{"index": 0, "finish_reason": None, **choice}]} for choice in deltas]
    return [*chunks, {**head, "choices": [], "usage": CHAT_USAGE}]


def completion_chunks() -> list[dict[str, Any]]:
    """The chunks of the completion."""
    pieces: list[tuple[str, str | None]] = [("Fine", None), (".", "stop")]
    choices = [
        {"index": 0, "text": text, "logprobs": {"tokens": [text]}, "finish_reason": reason} for text, reason in pieces
    ]
    chunks = [{**COMPLETION_HEAD, "choices": [choice]} for choice in choices]
    return [*chunks, {**COMPLETION_HEAD, "choices": [], "usage": COMPLETION_USAGE}]


def message_events() -> list[dict[str, Any]]:
    """The events of the message, as Anthropic's API sends them."""
    begun = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": MESSAGE_USAGE | {"output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": MESSAGE_HEAD | begun}, {"type": "ping"}]
    empty = {"thinking": "", "signature": "", "text": "", "citations": [], "input": {}}
    for index, (block, deltas) in enumerate(BLOCKS):
        opened = block | {name: value for name, value in empty.items() if name in block}
        events.append({"type": "content_block_start", "index": index, "content_block": opened})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    end = {"type": "message_delta", "delta": MESSAGE_END, "usage": {"output_tokens": 9}}
    return [*events, end, {"type": "message_stop"}]


def response_events() -> list[dict[str, Any]]:
    """The events of the response; one of them is of a kind that nobody knows."""
    whole = WHOLES["responses"]
    begun = whole | {"status": "in_progress", "output": [], "usage": None}
    at = {"item_id": "msg_1", "output_index": 2, "content_index": 0}
    events = [
        {"type": "response.created", "response": begun},
        {"type": "response.own_event", "anything": 1},
        {"type": "response.output_item.added", "output_index": 0, "item": REASONING_ITEM},
        {"type": "response.output_item.done", "output_index": 0, "item": REASONING_ITEM},
        {"type": "response.output_item.added", "output_index": 2, "item": {"type": "message", "content": []}},
        {"type": "response.output_text.delta", **at, "delta": "Fine."},
        {"type": "response.output_item.done", "output_index": 2, "item": MESSAGE_ITEM},
        {"type": "response.completed", "response": whole},
    ]
    return [{**each, "sequence_number": number} for number, each in enumerate(events)]


STREAMS: dict[ApiName, list[dict[str, Any]]] = {
    "chat": chat_chunks(),
    "completions": completion_chunks(),
    "messages": message_events(),
    "responses": response_events(),
}


async def answer_of(
    server: ModelServer, provider_api: ApiName, api: ApiName, heard: list[Delta] | None = None
) -> ProviderAnswer:
    return await call(api_provider(server.url, provider_api), api_request(api), heard)


async def body_of(server: ModelServer, provider_api: ApiName, api: ApiName, heard: list[Delta] | None = None) -> Any:
    return (await answer_of(server, provider_api, api, heard)).body


def streamed(events: Sequence[dict[str, Any]]) -> StreamedResponse:
    return StreamedResponse(events=[*(event(each, each.get("type")) for each in events), event("[DONE]")])


@pytest.mark.parametrize("api", WHOLES)
async def test_an_answer_is_equal_json_and_a_streams_events_are_passed_on(server: ModelServer, api: ApiName) -> None:
    server.set_responses(ScriptedResponse(body=WHOLES[api]), streamed(STREAMS.get(api, [])))
    heard: list[Delta] = []
    answers = [await answer_of(server, api, api)]
    answers += [await answer_of(server, api, api, heard)] if api in STREAMS else []
    for answer in answers:
        assert answer.body == WHOLES[api]
        assert (answer.model, answer.token_usage) == ("served", USAGES[api])
    assert heard == STREAMS.get(api, [])


@pytest.mark.parametrize("api", CONVERSATIONS)
@pytest.mark.parametrize("provider_api", CONVERSATIONS)
async def test_a_translated_answer_is_the_same_whole_and_streamed(
    server: ModelServer, provider_api: ApiName, api: ApiName
) -> None:
    server.set_responses(streamed(STREAMS[provider_api]), ScriptedResponse(body=WHOLES[provider_api]))
    heard, heard_of_whole = list[Delta](), list[Delta]()
    of_stream = await answer_of(server, provider_api, api, heard)
    of_whole = await answer_of(server, provider_api, api)
    assert await answer_of(server, provider_api, api, heard_of_whole) == of_whole
    assert of_stream.body == of_whole.body
    assert "Fine." in str(of_whole.body)
    for answer in (of_stream, of_whole):
        assert answer.token_usage is not None
        assert answer.token_usage.cache_write == USAGES[provider_api].cache_write
    assert heard
    assert heard_of_whole


@whole_and_streamed
@pytest.mark.parametrize(("api", "items", "name"), [("responses", "output", "call_id"), ("messages", "content", "id")])
async def test_a_call_without_an_id_has_one_in_another_api(
    server: ModelServer, api: ApiName, items: str, name: str, is_streamed: bool
) -> None:
    server.set_responses(
        StreamedResponse(events=chat_call_events([("", "clock", ["{", "}"]), ("", "clock", [])]))
        if is_streamed
        else ScriptedResponse(body=chat_calls([("", "clock", "{}"), ("", "clock", "{}")]))
    )
    heard: list[Delta] = []
    ids = [item[name] for item in (await body_of(server, "chat", api, heard if is_streamed else None))[items]]
    assert len({*ids, ""}) == 3
    assert all(each in str(heard) for each in ids if is_streamed)


async def test_what_was_written_to_a_cache_is_counted_in_the_words_of_each_api(server: ModelServer) -> None:
    server.set_responses(ScriptedResponse(body=WHOLES["messages"]))
    chat = (await body_of(server, "messages", "chat"))["usage"]
    details = {"cached_tokens": 4, "cache_write_tokens": 2000}
    assert (chat["prompt_tokens"], chat["prompt_tokens_details"]) == (15 + 4 + 2000, details)
    assert (await body_of(server, "messages", "responses"))["usage"]["input_tokens_details"] == details
    server.set_responses(ScriptedResponse(body=WHOLES["chat"]))
    message = (await body_of(server, "chat", "messages"))["usage"]
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert [message[name] for name in names] == [15, 4, 2]


FIVE = {"prompt_tokens": 5, "completion_tokens": 2}


@whole_and_streamed
@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        *((usage, None) for usage in (None, {}, [], "many", {"prompt_tokens": 5}, {"completion_tokens": 2})),
        *((FIVE | {"prompt_tokens": wrong}, None) for wrong in (-5, "5", True, 10**30, 10**9)),
        *((FIVE | {"completion_tokens": wrong}, None) for wrong in (-1, 2.5)),
        *((FIVE | {"prompt_tokens_details": {"cached_tokens": wrong}}, None) for wrong in (6, -1)),
        (FIVE | {"prompt_tokens_details": 7}, TokenUsage(input=5, output=2)),
    ],
)
async def test_usage_that_cannot_be_is_not_counted(
    server: ModelServer, usage: object, counted: TokenUsage | None, is_streamed: bool
) -> None:
    chunks = [*chat_chunks()[:-1], {"choices": [], "usage": usage}]
    whole = ScriptedResponse(body=WHOLES["chat"] | {"usage": usage})
    server.set_responses(streamed(chunks) if is_streamed else whole)
    answer: Any = await answer_of(server, "chat", "chat", [] if is_streamed else None)
    assert answer.token_usage == counted
    assert answer.body["choices"][0]["message"]["content"] == "Fine."


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens", "cache_creation_input_tokens"])
@pytest.mark.parametrize("value", [-5, "many", 1.5, None, [], 10**30])
async def test_no_count_of_anthropics_breaks_an_answer(server: ModelServer, name: str, value: object) -> None:
    server.set_responses(ScriptedResponse(body=WHOLES["messages"] | {"usage": MESSAGE_USAGE | {name: value}}))
    for api in ("messages", "chat"):
        answer = await answer_of(server, "messages", api)
        assert answer.token_usage is None or min(answer.token_usage.input, answer.token_usage.output) >= 0


@whole_and_streamed
async def test_tokens_that_are_cached_for_an_hour_are_counted_apart(server: ModelServer, is_streamed: bool) -> None:
    made = {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30}
    usage = {"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 50, "cache_creation": made}
    whole = WHOLES["messages"] | {"usage": usage}
    events = [
        {"type": "message_start", "message": whole | {"content": [], "stop_reason": None}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
    server.set_responses(streamed(events) if is_streamed else ScriptedResponse(body=whole))
    answer = await answer_of(server, "messages", "messages", [] if is_streamed else None)
    assert answer.token_usage == TokenUsage(input=60, output=5, cache_write=50, cache_write_1h=30)
    assert written_usage("messages", answer.token_usage)["cache_creation"] == made

"""Answers to requests of the vendors' APIs: whole and streamed, with everything that the provider said."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest

from quintain.apis.translation import written_usage
from quintain.contracts.api_request import ApiName, ApiRequest, json_text
from quintain.contracts.invoke import TokenUsage
from quintain_worker.providers.provider import Delta, ProviderAnswer
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse
from support.model_streams import chat_call_events, event
from support.model_wires import ANTHROPIC, CHAT, Wire, chat_calls

REQUESTS: dict[ApiName, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "q"}]},
    "responses": {"input": "q"},
    "completions": {"prompt": "q"},
    "embeddings": {"input": "q"},
    "messages": {"messages": [{"role": "user", "content": "q"}], "max_tokens": 9},
}

CITATION = {"type": "url_citation", "url_citation": {"url": "https://example.org", "start_index": 0, "end_index": 4}}
LOGPROBS = {"content": [{"token": "Fine", "logprob": -0.5, "bytes": [70], "top_logprobs": []}], "refusal": None}
CHAT_USAGE = {
    "prompt_tokens": 21,
    "completion_tokens": 9,
    "total_tokens": 30,
    "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2, "audio_tokens": 1},
    "completion_tokens_details": {
        "reasoning_tokens": 3,
        "audio_tokens": 1,
        "accepted_prediction_tokens": 5,
        "rejected_prediction_tokens": 6,
    },
    "cost": 0.25,
}
CHAT_MESSAGE = {"role": "assistant", "content": "Fine.", "refusal": None, "annotations": [CITATION], "own": {"a": 1}}
CHAT_WHOLE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "served",
    "system_fingerprint": "fp_1",
    "service_tier": "flex",
    "provider": "elsewhere",
    "choices": [
        {"index": 0, "message": CHAT_MESSAGE, "logprobs": LOGPROBS, "finish_reason": "stop", "own_reason": "x"}
    ],
    "usage": CHAT_USAGE,
}

TEXT_CITATION = {"type": "char_location", "cited_text": "x", "document_index": 0, "document_title": None}
MESSAGE_USAGE = {
    "input_tokens": 15,
    "output_tokens": 9,
    "cache_read_input_tokens": 4,
    "cache_creation_input_tokens": 2000,
    "cache_creation": {"ephemeral_5m_input_tokens": 2000, "ephemeral_1h_input_tokens": 0},
    "service_tier": "priority",
    "server_tool_use": {"web_search_requests": 1},
}
MESSAGE_WHOLE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "served",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "text", "text": "Fine.", "citations": [TEXT_CITATION]},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"type": "web_search_result"}]},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1.5, {"b": None}]}},
        {"type": "own_block", "anything": {"at": "all"}},
    ],
    "stop_reason": "stop_sequence",
    "stop_sequence": "END",
    "container": {"id": "c"},
    "usage": MESSAGE_USAGE,
}

RESPONSE_WHOLE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "served",
    "service_tier": "flex",
    "own": {"a": 1},
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"},
        {"type": "own_item", "id": "o_1", "anything": [1]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "final_answer",
            "content": [{"type": "output_text", "text": "Fine.", "annotations": [CITATION], "logprobs": []}],
        },
    ],
    "usage": {
        "input_tokens": 21,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 30,
    },
}

COMPLETION_WHOLE: dict[str, Any] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "served",
    "system_fingerprint": "fp_1",
    "choices": [{"index": 0, "text": "Fine.", "logprobs": {"tokens": ["Fine", "."]}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 21, "completion_tokens": 9, "total_tokens": 30},
}

EMBEDDING_WHOLE: dict[str, Any] = {
    "object": "list",
    "model": "served",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -1e-7]}],
    "usage": {"prompt_tokens": 21, "total_tokens": 21},
    "own": 1,
}

WHOLES: dict[ApiName, dict[str, Any]] = {
    "chat": CHAT_WHOLE,
    "responses": RESPONSE_WHOLE,
    "completions": COMPLETION_WHOLE,
    "embeddings": EMBEDDING_WHOLE,
    "messages": MESSAGE_WHOLE,
}

FULL_USAGE = TokenUsage(input=21, output=9, cached=4, cache_write=2, reasoning=3)
USAGES: dict[ApiName, TokenUsage] = {
    "chat": FULL_USAGE,
    "responses": FULL_USAGE,
    "completions": TokenUsage(input=21, output=9),
    "embeddings": TokenUsage(input=21, output=0),
    "messages": TokenUsage(input=2019, output=9, cached=4, cache_write=2000),
}


def chat_chunks() -> list[dict[str, Any]]:
    """The chunks of `CHAT_WHOLE`, its fields spread over them as servers do it."""
    head = {name: value for name, value in CHAT_WHOLE.items() if name not in {"choices", "usage"}}
    head |= {"object": "chat.completion.chunk"}
    deltas: list[dict[str, Any]] = [
        {"delta": {"role": "assistant", "content": "", "refusal": None}},
        {"delta": {"content": "Fi"}, "logprobs": {"content": LOGPROBS["content"], "refusal": None}},
        {"delta": {"content": "ne."}},
        {"delta": {"annotations": [CITATION], "own": {"a": 1}}},
    ]
    chunks = [{**head, "choices": [{"index": 0, "finish_reason": None, **choice}]} for choice in deltas]
    end = {"index": 0, "delta": {}, "finish_reason": "stop", "own_reason": "x"}
    return [*chunks, {**head, "choices": [end]}, {**head, "choices": [], "usage": CHAT_USAGE}]


def completion_chunks() -> list[dict[str, Any]]:
    """The chunks of `COMPLETION_WHOLE`."""
    head = {name: value for name, value in COMPLETION_WHOLE.items() if name not in {"choices", "usage"}}
    pieces = [("Fine", {"tokens": ["Fine"]}, None), (".", {"tokens": ["."]}, "stop")]
    chunks = [
        {**head, "choices": [{"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}]}
        for text, logprobs, reason in pieces
    ]
    return [*chunks, {**head, "choices": [], "usage": COMPLETION_WHOLE["usage"]}]


def message_events() -> list[dict[str, Any]]:
    """The events of `MESSAGE_WHOLE`, as Anthropic's API sends them."""
    start = {**MESSAGE_WHOLE, "content": [], "stop_reason": None, "stop_sequence": None}
    start = {name: value for name, value in start.items() if name != "container"}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start | {"usage": MESSAGE_USAGE | {"output_tokens": 1}}},
        {"type": "ping"},
    ]
    deltas: list[list[dict[str, Any]]] = [
        [
            {"type": "thinking_delta", "thinking": "Hm"},
            {"type": "thinking_delta", "thinking": "."},
            {"type": "signature_delta", "signature": "sig"},
        ],
        [
            {"type": "text_delta", "text": "Fi"},
            {"type": "citations_delta", "citation": TEXT_CITATION},
            {"type": "text_delta", "text": "ne."},
        ],
        [
            {"type": "input_json_delta", "partial_json": '{"que'},
            {"type": "input_json_delta", "partial_json": 'ry":"q"}'},
        ],
        [],
        [
            {"type": "input_json_delta", "partial_json": ""},
            {"type": "input_json_delta", "partial_json": '{"a":[1.5,{"b":null}]}'},
        ],
        [],
    ]
    empty = {"thinking": "", "signature": "", "text": "", "citations": [], "input": {}}
    for index, (block, pieces) in enumerate(zip(MESSAGE_WHOLE["content"], deltas, strict=True)):
        opened = block | {name: value for name, value in empty.items() if name in block}
        events.append({"type": "content_block_start", "index": index, "content_block": opened})
        events += [{"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces]
        events.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": "stop_sequence", "stop_sequence": "END", "container": {"id": "c"}}
    return [
        *events,
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]


def response_events() -> list[dict[str, Any]]:
    """The events of `RESPONSE_WHOLE`; one of them is of a kind that nobody knows."""
    begun = RESPONSE_WHOLE | {"status": "in_progress", "output": [], "usage": None}
    at = {"item_id": "msg_1", "output_index": 2, "content_index": 0}
    events = [
        {"type": "response.created", "response": begun},
        {"type": "response.own_event", "anything": 1},
        {"type": "response.output_item.added", "output_index": 0, "item": RESPONSE_WHOLE["output"][0]},
        {"type": "response.output_item.done", "output_index": 0, "item": RESPONSE_WHOLE["output"][0]},
        {"type": "response.output_item.added", "output_index": 2, "item": {"type": "message", "content": []}},
        {"type": "response.output_text.delta", **at, "delta": "Fine."},
        {"type": "response.output_item.done", "output_index": 2, "item": RESPONSE_WHOLE["output"][2]},
        {"type": "response.completed", "response": RESPONSE_WHOLE},
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
    wire: Wire = ANTHROPIC if provider_api == "messages" else CHAT
    provider = wire.provider(server.url, **({} if provider_api == "messages" else {"api": provider_api}))
    request = ApiRequest(api, json_text(REQUESTS[api]))
    try:
        listener = None if heard is None else heard.append
        return await provider.answer(request, timeout_seconds=10, on_text=listener)  # type: ignore[arg-type]
    finally:
        await provider.close()


def streamed(events: Sequence[dict[str, Any]]) -> StreamedResponse:
    return StreamedResponse(events=[*(event(each, each.get("type")) for each in events), event("[DONE]")])


@pytest.mark.parametrize("api", WHOLES)
async def test_a_whole_answer_is_equal_json(server: ModelServer, api: ApiName) -> None:
    server.set_responses(ScriptedResponse(body=WHOLES[api]))
    answer = await answer_of(server, api, api)
    assert answer.body == WHOLES[api]
    assert (answer.model, answer.token_usage) == ("served", USAGES[api])


@pytest.mark.parametrize("api", STREAMS)
async def test_a_streams_events_are_passed_on_and_put_together(server: ModelServer, api: ApiName) -> None:
    server.set_responses(streamed(STREAMS[api]))
    heard: list[Delta] = []
    answer = await answer_of(server, api, api, heard)
    assert heard == STREAMS[api]
    assert answer.body == WHOLES[api]
    assert (answer.model, answer.token_usage) == ("served", USAGES[api])


@pytest.mark.parametrize(
    ("provider_api", "api"),
    [(one, other) for one in ("chat", "responses", "messages") for other in ("chat", "responses", "messages")],
)
async def test_a_translated_answer_is_the_same_whole_and_streamed(
    server: ModelServer, provider_api: ApiName, api: ApiName
) -> None:
    server.set_responses(streamed(STREAMS[provider_api]), ScriptedResponse(body=WHOLES[provider_api]))
    heard: list[Delta] = []
    of_stream = await answer_of(server, provider_api, api, heard)
    of_whole = await answer_of(server, provider_api, api)
    heard_of_whole: list[Delta] = []
    assert await answer_of(server, provider_api, api, heard_of_whole) == of_whole
    assert heard_of_whole
    assert of_stream.body is not None
    assert of_whole.body is not None
    for answer in (of_stream, of_whole):
        assert "Fine." in str(answer.body)
        assert answer.token_usage is not None
        assert answer.token_usage.cache_write == USAGES[provider_api].cache_write
    assert of_stream.body == of_whole.body
    assert heard


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("api", "items", "name"), [("responses", "output", "call_id"), ("messages", "content", "id")])
async def test_a_call_without_an_id_has_one_in_another_api(
    server: ModelServer, api: ApiName, items: str, name: str, stream: bool
) -> None:
    if stream:
        server.set_responses(StreamedResponse(events=chat_call_events([("", "clock", ["{", "}"]), ("", "clock", [])])))
    else:
        server.set_responses(ScriptedResponse(body=chat_calls([("", "clock", "{}"), ("", "clock", "{}")])))
    heard: list[Delta] = []
    body: Any = (await answer_of(server, "chat", api, heard if stream else None)).body
    ids = [item[name] for item in body[items]]
    assert len({*ids, ""}) == 3
    assert all(each in str(heard) for each in ids if stream)


async def test_what_anthropic_wrote_to_its_cache_is_counted_in_the_words_of_each_api(server: ModelServer) -> None:
    server.set_responses(ScriptedResponse(body=MESSAGE_WHOLE))
    chat = (await answer_of(server, "messages", "chat")).body
    assert chat is not None
    assert chat["usage"]["prompt_tokens"] == 15 + 4 + 2000
    assert chat["usage"]["prompt_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 2000}
    response = (await answer_of(server, "messages", "responses")).body
    assert response is not None
    assert response["usage"]["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 2000}
    whole = copy.deepcopy(CHAT_WHOLE)
    server.set_responses(ScriptedResponse(body=whole))
    message = (await answer_of(server, "chat", "messages")).body
    assert message is not None
    counts = message["usage"]
    assert (counts["input_tokens"], counts["cache_read_input_tokens"], counts["cache_creation_input_tokens"]) == (
        15,
        4,
        2,
    )


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (None, None),
        ({}, None),
        ([], None),
        ("many", None),
        ({"prompt_tokens": -5, "completion_tokens": -1}, None),
        ({"prompt_tokens": 5, "completion_tokens": -1}, None),
        ({"prompt_tokens": 5}, None),
        ({"completion_tokens": 2}, None),
        ({"prompt_tokens": "5", "completion_tokens": 2}, None),
        ({"prompt_tokens": True, "completion_tokens": 2.5}, None),
        ({"prompt_tokens": 10**30, "completion_tokens": 2}, None),
        ({"prompt_tokens": 10**9, "completion_tokens": 2}, None),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}}, None),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": 7}, TokenUsage(input=5, output=2)),
        (
            {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": -1}},
            None,
        ),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_usage_that_cannot_be_is_not_counted(
    server: ModelServer, usage: object, counted: TokenUsage | None, is_streamed: bool
) -> None:
    chunks = [*chat_chunks()[:-1], {"choices": [], "usage": usage}]
    server.set_responses(streamed(chunks) if is_streamed else ScriptedResponse(body=CHAT_WHOLE | {"usage": usage}))
    answer = await answer_of(server, "chat", "chat", [] if is_streamed else None)
    assert answer.token_usage == counted
    assert answer.body is not None
    assert answer.body["choices"][0]["message"]["content"] == "Fine."


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens", "cache_creation_input_tokens"])
@pytest.mark.parametrize("value", [-5, "many", 1.5, None, [], 10**30])
async def test_no_count_of_anthropics_breaks_an_answer(server: ModelServer, name: str, value: object) -> None:
    server.set_responses(ScriptedResponse(body=MESSAGE_WHOLE | {"usage": MESSAGE_USAGE | {name: value}}))
    for api in ("messages", "chat"):
        answer = await answer_of(server, "messages", api)
        assert answer.token_usage is None or min(answer.token_usage.input, answer.token_usage.output) >= 0


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_tokens_that_are_cached_for_an_hour_are_counted_apart(server: ModelServer, *, is_streamed: bool) -> None:
    made = {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30}
    usage = {"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 50, "cache_creation": made}
    whole = MESSAGE_WHOLE | {"usage": usage}
    events = [
        {"type": "message_start", "message": whole | {"content": [], "stop_reason": None}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
    server.set_responses(streamed(events) if is_streamed else ScriptedResponse(body=whole))
    answer = await answer_of(server, "messages", "messages", [] if is_streamed else None)
    assert answer.token_usage == TokenUsage(input=60, output=5, cache_write=50, cache_write_1h=30)
    assert written_usage("messages", answer.token_usage)["cache_creation"] == made

"""Anthropic's API over a real socket: its official client, and what no official client sends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio

from quintain.contracts.credentials import SessionToken
from support.gateway_client import GatewayClient, open_gateway_client
from support.model_fleet import OVER_MEMORY, ModelFleet
from support.model_server import ScriptedResponse, StreamedResponse
from support.model_wires import ANTHROPIC, CHAT
from support.official_clients import SentRequests, anthropic_client

pytestmark = [pytest.mark.asyncio(loop_scope="module"), OVER_MEMORY]

HELLO: Any = [{"role": "user", "content": "Hello there"}]
ASK: Any = {"model": "echo", "max_tokens": 100, "messages": HELLO}
WEATHER: Any = {
    "name": "weather",
    "description": "The weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
PIXEL = "iVBORw0KGgo="


@pytest_asyncio.fixture(loop_scope="module")
async def official_client(
    fleet: ModelFleet, gateway_client: GatewayClient
) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, SentRequests]]:
    """The official client of the same session."""
    async with anthropic_client(fleet.url, gateway_client.token) as client:
        yield client


@pytest.fixture
def client(official_client: tuple[anthropic.AsyncAnthropic, SentRequests]) -> anthropic.AsyncAnthropic:
    return official_client[0]


@pytest.fixture
def sent(official_client: tuple[anthropic.AsyncAnthropic, SentRequests]) -> SentRequests:
    return official_client[1]


# Models.


async def test_the_models_are_the_targets_that_the_session_may_call(
    client: anthropic.AsyncAnthropic, gateway_client: GatewayClient
) -> None:
    page = await client.models.list()
    told = (await gateway_client.http.get("/info")).json()["availableTargets"]
    assert [one.id for one in page.data] == told
    assert (page.has_more, page.first_id, page.last_id) == (False, told[0], told[-1])
    assert [one.id async for one in client.models.list()] == told
    one = await client.models.retrieve("echo")
    assert (one.id, one.type, one.display_name) == ("echo", "model", "echo")
    assert one.created_at.timestamp() == 0
    with pytest.raises(anthropic.NotFoundError, match="no such target"):
        await client.models.retrieve("nobody")
    # Whoever does not say that it is Anthropic's is answered as OpenAI's.
    assert (await gateway_client.http.get("/v1/models")).json()["object"] == "list"


# Answers.


async def test_a_message_has_anthropics_shape(client: anthropic.AsyncAnthropic) -> None:
    raw = await client.messages.with_raw_response.create(**{**ASK, "model": "fixed"})
    answer = json.loads(await raw.read())
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "mock",
        "content": [{"type": "text", "text": "A fixed answer"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "output_tokens": 5,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
        },
    }
    assert raw.headers["x-quintain-call-count"] == "1"
    assert raw.headers["x-quintain-max-calls"] == "5"
    assert int(raw.headers["x-quintain-queued-ms"]) >= 0
    assert "x-quintain-ignored" not in raw.headers
    assert raw.headers["request-id"] == raw.headers["x-request-id"]


async def test_an_answer_without_words_has_no_block(client: anthropic.AsyncAnthropic) -> None:
    answer = await client.messages.create(**{**ASK, "model": "silent"})
    assert (answer.content, answer.stop_reason) == ([], "end_turn")


@pytest.mark.parametrize("prefix", ["", "/run/42"])
async def test_the_token_comes_as_a_key_or_as_a_bearer_behind_any_prefix(fleet: ModelFleet, prefix: str) -> None:
    token = await fleet.token()
    async with anthropic_client(fleet.url + prefix, token) as (client, sent):
        assert (await client.messages.create(**ASK)).content[0].to_dict()["text"] == "Hello there"
        assert sent.requests[0].headers["authorization"] == f"Bearer {token}"
    async with open_gateway_client(fleet.url + prefix) as other:
        response = await other.http.post("/v1/messages", json=ASK, headers={"x-api-key": token})
        assert (response.status_code, response.json()["content"][0]["text"]) == (200, "Hello there")
        metrics = (await other.http.get(f"{fleet.url}/metrics")).text
    assert 'route="/v1/messages"' in metrics
    assert "run/42" not in metrics


CONVERSATION: Any = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is it?", "cache_control": {"type": "ephemeral"}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Zürich"}},
            {"type": "tool_use", "id": "t2", "name": "weather", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "Rain"},
            {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "Sun"}]},
            {"type": "text", "text": "And now?"},
        ],
    },
]


async def test_what_a_client_sends_reaches_openais_provider(
    fleet: ModelFleet, client: anthropic.AsyncAnthropic
) -> None:
    fleet.provider.set_responses(ScriptedResponse(body=CHAT.answer("It rains")))
    answer = await client.messages.create(
        model="model",
        max_tokens=77,
        system=[{"type": "text", "text": "Be brief."}],
        messages=CONVERSATION,
        extra_body={"temperature": 0.25},
        stop_sequences=["END"],
        tools=[WEATHER],
        tool_choice={"type": "tool", "name": "weather"},
    )
    assert (answer.content[0].to_dict()["text"], answer.model) == ("It rains", "served-2026-01-01")
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens, answer.usage.output_tokens) == (17, 4, 9)
    said = fleet.provider.requests[-1].body
    got: Any = said["messages"]
    assert [message["role"] for message in got] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert got[0]["content"] == "Be brief."
    assert got[1]["content"][0]["text"] == "What is it?"
    assert got[1]["content"][1]["image_url"]["url"] == f"data:image/png;base64,{PIXEL}"
    assert got[2]["content"] == "I look."
    assert [(call["id"], json.loads(call["function"]["arguments"])) for call in got[2]["tool_calls"]] == [
        ("t1", {"city": "Zürich"}),
        ("t2", {}),
    ]
    assert [(one["tool_call_id"], one["content"]) for one in got[3:5]] == [("t1", "Rain"), ("t2", "Sun")]
    assert "And now?" in json.dumps(got[5])
    assert (said["temperature"], said["max_tokens"], said["stop"]) == (0.25, 77, ["END"])
    assert said["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert said["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather",
                "parameters": WEATHER["input_schema"],
            },
        }
    ]


async def test_every_parameter_reaches_the_provider(fleet: ModelFleet, client: anthropic.AsyncAnthropic) -> None:
    thinking = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "r"}]
    answer = ANTHROPIC.answer("Yes")
    text: Any = answer["content"]
    fleet.provider.set_responses(ScriptedResponse(body=answer | {"content": [*thinking, *text]}))
    settings: Any = {
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "stop_sequences": ["END"],
        "tools": [{**WEATHER, "cache_control": {"type": "ephemeral"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "output_config": {"effort": "high"},
    }
    others = {"top_p": 0.5, "top_k": 5, "service_tier": "auto", "inference_geo": "us"}
    history: Any = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": "no"}]},
    ]
    ask = {**ASK, "model": "claude", "max_tokens": 2048, "messages": history}
    said = await client.messages.create(**ask, metadata={"user_id": "u"}, extra_body=others, **settings)
    assert [block.to_dict() for block in said.content] == [*thinking, *text]
    sent = fleet.provider.requests[-1]
    assert sent.body == {**ask, "model": "served", "metadata": {"user_id": "u"}, **others, **settings}


async def test_the_providers_answer_arrives_with_everything_that_it_says(
    fleet: ModelFleet, gateway_client: GatewayClient
) -> None:
    answer: Any = ANTHROPIC.answer("Hi") | {"stop_reason": "stop_sequence", "stop_sequence": "END", "new": [1.0, None]}
    answer["usage"] |= {"cache_creation_input_tokens": 2000, "service_tier": "standard"}
    answer["content"][0]["citations"] = [{"type": "char_location", "cited_text": "x"}]
    fleet.provider.set_responses(ScriptedResponse(body=answer))
    headers = {"anthropic-beta": "some-2026-01-01", "anthropic-version": "2023-06-01"}
    response = await gateway_client.http.post("/v1/messages", json={**ASK, "model": "claude"}, headers=headers)
    came = response.json()
    assert (response.status_code, came) == (200, answer | {"id": came["id"]})
    assert came["id"] != answer["id"]
    sent = fleet.provider.requests[-1].headers
    assert {name: sent[name] for name in headers} == headers


async def test_what_cannot_be_honoured_is_refused_and_ignored_on_request(
    fleet: ModelFleet, gateway_client: GatewayClient, client: anthropic.AsyncAnthropic
) -> None:
    ask: Any = {**ASK, "model": "mute", "tools": [{**WEATHER, "defer_loading": True}]}
    with pytest.raises(anthropic.BadRequestError) as refused:
        await client.messages.create(**ask)
    assert refused.value.body["error"]["code"] == "unsupported_parameter"  # type: ignore[index]
    assert await gateway_client.read_call_count() == 0
    async with anthropic_client(fleet.url, await fleet.token(unsupported="ignore")) as (lenient, _):
        raw = await lenient.messages.with_raw_response.create(**ask, extra_body={"top_p": 0.5})
    assert raw.headers["x-quintain-ignored"].split(", ") == ["max_tokens", "tools", "tools.0.defer_loading", "top_p"]


# Refusals.


async def test_every_refusal_is_the_clients_own_exception(fleet: ModelFleet, client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await client.messages.create(**{**ASK, "model": "nope"})
    assert unknown.value.type == "not_found_error"
    assert unknown.value.request_id
    assert "Unknown target 'nope'. Available: echo, fixed" in str(unknown.value)
    async with anthropic_client(fleet.url, SessionToken.mint().text) as (nobody, _):
        with pytest.raises(anthropic.AuthenticationError) as unauthorized:
            await nobody.messages.create(**ASK)
    assert unauthorized.value.type == "authentication_error"
    async with anthropic_client(fleet.url, await fleet.token(allowed_targets=["echo"])) as (narrow, _):
        with pytest.raises(anthropic.PermissionDeniedError) as forbidden:
            await narrow.messages.create(**{**ASK, "model": "fixed"})
    assert forbidden.value.type == "permission_error"


async def test_a_spent_budget_is_402_and_no_client_repeats_it(fleet: ModelFleet) -> None:
    async with anthropic_client(fleet.url, await fleet.token(1)) as (client, sent):
        await client.messages.create(**ASK)
        for stream in (False, True):
            before = len(sent.requests)
            with pytest.raises(anthropic.APIStatusError) as spent:
                await client.messages.create(**ASK, stream=stream)
            assert (spent.value.status_code, spent.value.type) == (402, "billing_error")
            assert spent.value.body["error"]["code"] == "insufficient_quota"  # type: ignore[index]
            assert spent.value.response.headers["x-should-retry"] == "false"
            assert len(sent.requests) == before + 1


def _content(*blocks: object) -> dict[str, object]:
    return {**ASK, "messages": [{"role": "user", "content": list(blocks)}]}


BAD: list[tuple[object, str | None]] = [
    (b"{", None),
    (b"null", None),
    (b"[]", None),
    (b"[" * 100_000, None),
    ({}, "model"),
    ({"model": "echo", "messages": HELLO}, "max_tokens"),
    ({"model": "echo", "max_tokens": 5}, "messages"),
    *(
        ({**ASK, field: value}, field)
        for field, values in {
            "model": ["", 5, None, []],
            "messages": [[], "hi", [None], [{}], [{"role": "king", "content": "x"}], [{"role": "user"}]],
            "max_tokens": [0, -1, "5", 1.5, True, None],
            "system": [5, {}, [5], ["x"]],
            "temperature": ["hot", True],
            "stop_sequences": ["x", [5], {}],
            "stream": ["true", 1],
            "tools": [
                "x",
                [5],
                [{}],
                [{"name": "a"}],
                [{"name": 5, "input_schema": {}}],
                [{**WEATHER, "type": "bash"}],
            ],
            "output_config": [5, {"format": {"type": "text"}}, {"format": {"type": "json_schema"}}],
            "tool_choice": ["auto", {}, {"type": "some"}, {"type": "tool"}],
        }.items()
        for value in values
    ),
    ({**ASK, "messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    (_content(5), "messages.0.content"),
    (_content({}), "messages.0.content.0.type"),
    (_content({"type": "thinking", "thinking": "x"}), "messages.0.content.0.type"),
    (_content({"type": "tool_use", "id": "t", "name": "n", "input": {}}), "messages.0.content.0.type"),
    (_content({"type": "text"}), "messages.0.content.0.text"),
    (_content({"type": "text", "text": 5}), "messages.0.content.0.text"),
    (_content({"type": "image"}), "messages.0.content.0.source"),
    (_content({"type": "image", "source": {"type": "file", "file_id": "x"}}), "messages.0.content.0.source"),
    (_content({"type": "image", "source": {"type": "url"}}), "messages.0.content.0.source"),
    (_content({"type": "tool_result"}), "messages.0.content.0.tool_use_id"),
    (_content({"type": "tool_result", "tool_use_id": "t", "content": [{}]}), "messages.0.content.0.content.0.type"),
    ({**ASK, "system": [{"type": "text"}]}, "system.0.text"),
]


async def test_a_bad_request_is_400_names_its_field_and_costs_nothing(gateway_client: GatewayClient) -> None:
    for body, field in BAD:
        status, answer = await gateway_client.post("/v1/messages", body)
        said = f"{str(body)[:200]} is answered {answer}"
        assert status == 400, said
        assert (answer.keys(), answer["type"]) == ({"type", "error"}, "error"), said
        error = answer["error"]
        assert (error["type"], error["code"], error["charged"]) == ("invalid_request_error", "bad_request", False), said
        assert field is None or field in error["message"], said
    assert await gateway_client.read_call_count() == 0


# Streams.


async def test_a_stream_says_piece_by_piece_what_the_whole_says(client: anthropic.AsyncAnthropic) -> None:
    ask: Any = {**ASK, "model": "words"}
    whole = (await client.messages.create(**ask)).to_dict()
    events = [event async for event in await client.messages.create(**ask, stream=True)]
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert len(kinds[2:-3]) > 1
    async with client.messages.stream(**ask) as stream:
        assert "".join([text async for text in stream.text_stream]) == "one two three four five"
        assembled = (await stream.get_final_message()).to_dict()
    for name in ("role", "type", "stop_reason", "stop_sequence"):
        assert assembled[name] == whole[name]
    assert [block["text"] for block in assembled["content"]] == ["one two three four five"]  # type: ignore[attr-defined]
    for name in ("input_tokens", "output_tokens"):
        assert assembled["usage"][name] == whole["usage"][name] > 0  # type: ignore[index]


async def test_tool_calls_are_streamed(fleet: ModelFleet, client: anthropic.AsyncAnthropic) -> None:
    calls = [("c1", "weather", ['{"city"', ': "Paris"}']), ("c2", "weather", ["{}"])]
    ask: Any = {**ASK, "model": "model", "tools": [WEATHER]}
    fleet.provider.set_responses(StreamedResponse(events=CHAT.call_events(calls)))
    async with client.messages.stream(**ask) as stream:
        answer = await stream.get_final_message()
    assert answer.stop_reason == "tool_use"
    said = [(block.type, block.id, block.name, block.input) for block in answer.content if block.type == "tool_use"]
    assert said == [("tool_use", "c1", "weather", {"city": "Paris"}), ("tool_use", "c2", "weather", {})]
    assert len(answer.content) == len(said)


async def test_what_fails_within_a_stream_ends_it_with_an_error(
    fleet: ModelFleet, gateway_client: GatewayClient, client: anthropic.AsyncAnthropic
) -> None:
    fleet.provider.set_responses(
        StreamedResponse(events=CHAT.events(["The ", "first ", "words"]), event_count=3, then="close"),
        ScriptedResponse(status=400, body={"error": {"message": "no", "type": "invalid_request_error"}}),
    )
    said = ""
    with pytest.raises(anthropic.APIStatusError) as failed:
        async with client.messages.stream(**{**ASK, "model": "model"}) as stream:
            async for text in stream.text_stream:
                said += text
    assert said
    assert "The first words".startswith(said)
    assert failed.value.body["type"] == "error"  # type: ignore[index]
    assert failed.value.body["error"]["charged"] is True  # type: ignore[index]
    assert await gateway_client.read_call_count() == 1


async def test_thinking_of_earlier_answers_goes_back_to_the_provider_that_signed_it(
    fleet: ModelFleet, client: anthropic.AsyncAnthropic
) -> None:
    content: Any = [
        {"type": "thinking", "thinking": "Ask the service.", "signature": "s"},
        {"type": "redacted_thinking", "data": "r"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Paris"}},
    ]
    history: Any = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "Rain"}]},
    ]
    ask = {**ASK, "messages": history, "tools": [WEATHER]}
    fleet.provider.set_responses(ScriptedResponse(body=ANTHROPIC.answer("Rain")))
    raw = await client.messages.with_raw_response.create(**{**ask, "model": "claude"})
    sent: Any = fleet.provider.requests[-1].body["messages"]
    assert sent[1]["content"] == content
    assert "x-quintain-ignored" not in raw.headers
    # Another API has no place for it: the answer says so.
    fleet.provider.set_responses(ScriptedResponse(body=CHAT.answer("Rain")))
    raw = await client.messages.with_raw_response.create(**{**ask, "model": "model"})
    assert "Ask the service." not in str(fleet.provider.requests[-1].body)
    assert raw.headers["x-quintain-ignored"] == "messages.reasoning"


async def test_a_pdf_reaches_the_provider(fleet: ModelFleet, client: anthropic.AsyncAnthropic) -> None:
    source: Any = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"}
    document: Any = {"type": "document", "source": source}
    ask = {**ASK, "messages": [{"role": "user", "content": [document, {"type": "text", "text": "What is it?"}]}]}
    fleet.provider.set_responses(ScriptedResponse(body=ANTHROPIC.answer("A paper")))
    await client.messages.create(**{**ask, "model": "claude"})
    sent: Any = fleet.provider.requests[-1].body["messages"]
    assert sent[0]["content"] == [document, {"type": "text", "text": "What is it?"}]
    fleet.provider.set_responses(ScriptedResponse(body=CHAT.answer("A paper")))
    await client.messages.create(**{**ask, "model": "model"})
    sent = fleet.provider.requests[-1].body["messages"]
    assert sent[0]["content"][0]["file"]["file_data"] == "data:application/pdf;base64,JVBERi0xLjQK"

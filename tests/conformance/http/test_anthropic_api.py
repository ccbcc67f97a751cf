"""Anthropic's API over a real socket: its official client, and what is sent to providers of other APIs for it."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from support.gateway_client import GatewayClient, open_gateway_client
from support.model_fleet import ModelFleet
from support.model_server import ScriptedResponse
from support.model_wires import ANTHROPIC
from support.official_clients import OfficialClients, official_clients

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO: Any = [{"role": "user", "content": "Hello there"}]
ASK: Any = {"model": "echo", "max_tokens": 100, "messages": HELLO}
WEATHER: Any = {
    "name": "weather",
    "description": "The weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
PIXEL, PDF = "iVBORw0KGgo=", "JVBERi0xLjQK"


async def test_the_models_are_the_targets_that_the_session_may_call(
    clients: OfficialClients, gateway_client: GatewayClient
) -> None:
    page = await clients.anthropic.models.list()
    told = (await gateway_client.http.get("/info")).json()["availableTargets"]
    assert [one.id for one in page.data] == told
    assert (page.has_more, page.first_id, page.last_id) == (False, told[0], told[-1])
    assert [one.id async for one in clients.anthropic.models.list()] == told
    one = await clients.anthropic.models.retrieve("echo")
    assert (one.id, one.type, one.display_name, one.created_at.timestamp()) == ("echo", "model", "echo", 0)
    with pytest.raises(anthropic.NotFoundError, match="no such target"):
        await clients.anthropic.models.retrieve("nobody")
    # Whoever does not say that it is Anthropic's is answered as OpenAI's.
    assert (await gateway_client.http.get("/v1/models")).json()["object"] == "list"


async def test_a_message_has_anthropics_shape(clients: OfficialClients) -> None:
    raw = await clients.anthropic.messages.with_raw_response.create(**{**ASK, "model": "fixed"})
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
    assert (raw.headers["x-quintain-call-count"], raw.headers["x-quintain-max-calls"]) == ("1", "5")
    assert raw.headers["request-id"] == raw.headers["x-request-id"]
    silent = await clients.anthropic.messages.create(**{**ASK, "model": "silent"})
    assert (silent.content, silent.stop_reason) == ([], "end_turn")


async def test_the_token_comes_as_a_key_or_as_a_bearer_behind_any_prefix(fleet: ModelFleet) -> None:
    token = await fleet.token()
    async with official_clients(f"{fleet.url}/run/42", token) as clients:
        answer = await clients.anthropic.messages.create(**ASK)
        assert answer.content[0].to_dict()["text"] == "Hello there"
        assert clients.sent.requests[0].headers["authorization"] == f"Bearer {token}"
    async with open_gateway_client(f"{fleet.url}/run/42") as other:
        response = await other.http.post("/v1/messages", json=ASK, headers={"x-api-key": token})
        assert (response.status_code, response.json()["content"][0]["text"]) == (200, "Hello there")
        metrics = (await other.http.get(f"{fleet.url}/metrics")).text
    assert 'route="/v1/messages"' in metrics
    assert "run/42" not in metrics


DOCUMENT = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}
CONVERSATION: Any = [
    {"role": "user", "content": [
        {"type": "text", "text": "What is it?", "cache_control": {"type": "ephemeral"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        DOCUMENT,
    ]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Ask the service.", "signature": "s"},
        {"type": "redacted_thinking", "data": "r"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Zürich"}},
        {"type": "tool_use", "id": "t2", "name": "weather", "input": {}},
    ]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": "Rain"},
        {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "Sun"}]},
        {"type": "text", "text": "And now?"},
    ]},
]  # fmt: skip
SETTINGS: Any = {
    "system": [{"type": "text", "text": "Be brief."}],
    "stop_sequences": ["END"],
    "tools": [WEATHER],
    "tool_choice": {"type": "tool", "name": "weather"},
}


async def test_what_a_client_sends_reaches_anthropics_as_it_is_and_so_does_what_that_answers(
    fleet: ModelFleet, clients: OfficialClients
) -> None:
    answer: Any = ANTHROPIC.answer("Hi") | {"stop_reason": "stop_sequence", "stop_sequence": "END", "new": [1.0, None]}
    answer["usage"] |= {"cache_creation_input_tokens": 2000, "service_tier": "standard"}
    answer["content"][0]["citations"] = [{"type": "char_location", "cited_text": "x"}]
    fleet.provider.set_responses(ScriptedResponse(body=answer))
    headers = {"anthropic-beta": "some-2026-01-01", "anthropic-version": "2023-06-01"}
    ask = {"model": "claude", "max_tokens": 2048, "messages": CONVERSATION, **SETTINGS}
    others = {"top_k": 5, "inference_geo": "us"}
    raw = await clients.anthropic.messages.with_raw_response.create(**ask, extra_body=others, extra_headers=headers)
    came = json.loads(await raw.read())
    assert came == answer | {"id": came["id"]}
    assert came["id"] != answer["id"]
    assert "x-quintain-ignored" not in raw.headers
    sent = fleet.provider.requests[-1]
    assert sent.body == {**ask, "model": "served", **others}
    assert {name: sent.headers[name] for name in headers} == headers


async def test_a_stream_says_piece_by_piece_what_the_whole_says(clients: OfficialClients) -> None:
    ask: Any = {**ASK, "model": "words"}
    whole = (await clients.anthropic.messages.create(**ask)).to_dict()
    kinds = [event.type async for event in await clients.anthropic.messages.create(**ask, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert (set(kinds[2:-3]), len(kinds) > 6) == ({"content_block_delta"}, True)
    async with clients.anthropic.messages.stream(**ask) as stream:
        assert "".join([text async for text in stream.text_stream]) == "one two three four five"
        assembled: Any = (await stream.get_final_message()).to_dict()
    for name in ("role", "type", "stop_reason", "stop_sequence"):
        assert assembled[name] == whole[name]
    assert [block["text"] for block in assembled["content"]] == ["one two three four five"]
    for name in ("input_tokens", "output_tokens"):
        assert assembled["usage"][name] == whole["usage"][name] > 0

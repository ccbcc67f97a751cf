"""OpenAI's API over a real socket, over every transport: its official client, and what no official client sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from quintain.contracts.credentials import SessionToken
from support.gateway_client import GatewayClient, open_gateway_client
from support.model_fleet import ModelFleet
from support.model_server import ScriptedResponse, StreamedResponse
from support.model_wires import CHAT
from support.official_clients import SentRequests, openai_client

pytestmark = pytest.mark.asyncio(loop_scope="module")

TARGETS = ["echo", "fixed", "mute", "silent", "slow", "words", "endless", "broken", "model", "limited", "claude"]
HELLO: Any = [{"role": "user", "content": "Hello there"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest_asyncio.fixture(loop_scope="module")
async def official_client(
    fleet: ModelFleet, gateway_client: GatewayClient
) -> AsyncIterator[tuple[openai.AsyncOpenAI, SentRequests]]:
    """The official client of the same session."""
    async with openai_client(fleet.url, gateway_client.token) as client:
        yield client


@pytest.fixture
def client(official_client: tuple[openai.AsyncOpenAI, SentRequests]) -> openai.AsyncOpenAI:
    return official_client[0]


@pytest.fixture
def sent(official_client: tuple[openai.AsyncOpenAI, SentRequests]) -> SentRequests:
    return official_client[1]


# Models.


async def test_the_models_are_the_targets_that_the_session_may_call(
    fleet: ModelFleet, client: openai.AsyncOpenAI
) -> None:
    assert [model.id for model in (await client.models.list()).data] == TARGETS
    one = await client.models.retrieve("echo")
    assert (one.id, one.object, one.owned_by) == ("echo", "model", "quintain")
    async with openai_client(fleet.url, await fleet.token(allowed_targets=["echo"])) as (narrow, _):
        assert [model.id for model in (await narrow.models.list()).data] == ["echo"]
        with pytest.raises(openai.NotFoundError) as refused:
            await narrow.models.retrieve("fixed")
    assert (refused.value.code, refused.value.status_code) == ("model_not_found", 404)


@pytest.mark.parametrize("prefix", ["", "/run/42"])
async def test_the_api_stands_behind_any_prefix(fleet: ModelFleet, gateway_client: GatewayClient, prefix: str) -> None:
    async with openai_client(fleet.url + prefix, gateway_client.token) as (client, _):
        assert len((await client.models.list()).data) == len(TARGETS)
        assert (await client.models.retrieve("echo")).id == "echo"
        answer = await client.chat.completions.create(model="echo", messages=HELLO)
    assert answer.choices[0].message.content == "Hello there"
    metrics = (await gateway_client.http.get("/metrics")).text
    routes = {line.split('route="')[1].split('"')[0] for line in metrics.splitlines() if 'route="' in line}
    assert {"/v1/models", "/v1/models/{model}", "/v1/chat/completions"} <= routes
    assert not any("run" in route or "prefix" in route for route in routes)


# Answers.


async def test_a_completion_has_openais_shape(client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(model="fixed", messages=HELLO)
    answer = json.loads(raw.content)
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "chat.completion",
        "model": "mock",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "A fixed answer", "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    assert raw.headers["x-quintain-call-count"] == "1"
    assert raw.headers["x-quintain-max-calls"] == "5"
    assert int(raw.headers["x-quintain-queued-ms"]) >= 0
    assert raw.headers["x-quintain-request-id"]
    assert "x-quintain-ignored" not in raw.headers
    assert raw.parse()._request_id == raw.headers["x-request-id"]


async def test_a_target_that_counts_no_tokens_has_no_usage(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="mute", messages=HELLO)
    assert (answer.choices[0].message.content, answer.usage) == ("no usage", None)
    empty = await client.chat.completions.create(model="silent", messages=HELLO)
    assert empty.choices[0].message.content == ""


async def test_what_a_client_sends_reaches_the_provider(fleet: ModelFleet, client: openai.AsyncOpenAI) -> None:
    image = "data:image/png;base64,iVBORw0KGgo="
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, _image(image)]},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [_call("c1", '{"city": "Paris"}')]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain"},
        {"role": "assistant", "content": "Rain, it seems."},
        {"role": "user", "content": "And now?"},
    ]
    settings: Any = {
        "temperature": 0.25,
        "max_completion_tokens": 77,
        "seed": 7,
        "stop": ["END", "STOP"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": {"type": "object"}}},
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "top_p": 0.2,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "logit_bias": {"50256": -100},
        "logprobs": True,
        "top_logprobs": 2,
        "reasoning_effort": "high",
        "verbosity": "low",
        "modalities": ["text"],
    }
    servers_own: Any = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "thinking": {"type": "enabled"}}
    fleet.provider.set_responses(ScriptedResponse(body=CHAT.answer("It rains")))
    extra_body = {**servers_own, "chat_template_kwargs": {"think": False}, "unread": None}
    answer = await client.chat.completions.create(model="model", messages=messages, extra_body=extra_body, **settings)
    assert answer.choices[0].message.content == "It rains"
    assert answer.model == "served-2026-01-01"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    said = fleet.provider.requests[-1].body
    assert said == {"model": "served", "messages": messages, **settings, **extra_body}


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def _call(call_id: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": arguments}}


UNKNOWN: Any = {
    "model_extra": 1, "unread": 1, "__class__": 1, "a\r\nb: c": 1, "é" * 100: 2, "\U0001f600": 1, "empty": {},
    "absent": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "name"),
    [
        *(({"extra_body": {field: value}}, field) for field, value in UNKNOWN.items() if len(field) < 60 and value),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"messages": [{"role": "user", "content": "x", "name": "Ada"}]}, "messages.0.name"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name_and_costs_nothing(
    fleet: ModelFleet, client: openai.AsyncOpenAI, gateway_client: GatewayClient, more: dict[str, Any], name: str
) -> None:
    asked = len(fleet.provider.requests)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**{"model": "mute", "messages": HELLO, **more})
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", name)
    assert refused.value.body["charged"] is False  # type: ignore[index]
    assert (await gateway_client.read_call_count(), len(fleet.provider.requests)) == (0, asked)


async def test_what_changes_no_answer_is_accepted_and_named(client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model="echo",
        messages=HELLO,
        user="somebody",
        store=True,
        metadata={"a": "b"},
        service_tier="flex",
        safety_identifier="s",
        prompt_cache_key="k",
    )
    assert (
        raw.headers["x-quintain-ignored"] == "metadata, prompt_cache_key, safety_identifier, service_tier, store, user"
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_that_ignores_what_cannot_be_honoured_gets_its_names(fleet: ModelFleet, stream: bool) -> None:
    token = await fleet.token(unsupported="ignore")
    client = openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key=token, max_retries=0)
    ask: Any = {"messages": HELLO, "extra_body": UNKNOWN, "modalities": ["audio"], "stream": stream}
    if stream:
        chunks = [chunk async for chunk in await client.chat.completions.create(model="mute", **ask)]
        named = chunks[-1].model_extra["ignored_parameters"]
    else:
        raw = await client.chat.completions.with_raw_response.create(model="mute", **ask)
        named = raw.parse().model_extra["ignored_parameters"]
        assert (
            raw.headers["x-quintain-ignored"]
            == "?, " + "?" * 60 + ", __class__, a??b??c, modalities, model_extra, unread"
        )
    assert {"model_extra", "unread", "__class__"} <= set(named)
    await client.close()


# Choices.


async def test_each_choice_is_one_call(gateway_client: GatewayClient, client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(model="fixed", messages=HELLO, n=3)
    answer = raw.parse()
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [
        (index, "A fixed answer") for index in range(3)
    ]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (30, 15)
    assert raw.headers["x-quintain-call-count"] == "3"
    assert await gateway_client.read_call_count() == 3


async def test_choices_that_do_not_fit_are_402_and_cost_nothing(
    gateway_client: GatewayClient, client: openai.AsyncOpenAI, sent: SentRequests
) -> None:
    await client.chat.completions.create(model="echo", messages=HELLO, n=2)
    with pytest.raises(openai.APIStatusError) as refused:
        await client.chat.completions.create(model="echo", messages=HELLO, n=4)
    assert refused.value.status_code == 402
    assert refused.value.message.endswith("Batch would exceed max calls (current: 2, batch: 4, limit: 5)")
    assert (await gateway_client.read_call_count(), len(sent.requests)) == (2, 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_that_may_not_be_asked_leave_nothing_reserved(
    fleet: ModelFleet, client: openai.AsyncOpenAI, gateway_client: GatewayClient, stream: bool
) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="nope", messages=HELLO, n=3, stream=stream)
    lost: Any = [{"role": "user", "content": "half of a pair: \ud83d"}]
    status, answer = await gateway_client.post("/v1/chat/completions", {"model": "echo", "messages": lost, "n": 3})
    assert (status, answer["error"]["code"]) == (400, "bad_request")
    assert await gateway_client.read_call_count() == 0
    async with openai_client(fleet.url, await fleet.token(5, allowed_targets=["echo"])) as (narrow, _):
        with pytest.raises(openai.PermissionDeniedError):
            await narrow.chat.completions.create(model="fixed", messages=HELLO, n=3)
        async with open_gateway_client(fleet.url, narrow.api_key) as visitor:
            assert await visitor.read_call_count() == 0


async def test_one_choice_that_fails_fails_the_request(
    fleet: ModelFleet, gateway_client: GatewayClient, client: openai.AsyncOpenAI
) -> None:
    fleet.provider.set_responses(
        ScriptedResponse(body=CHAT.answer("fine")),
        ScriptedResponse(status=400, body={"error": {"message": "bad", "type": "invalid_request_error"}}),
        ScriptedResponse(body=CHAT.answer("fine")),
    )
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="model", messages=HELLO, n=2)
    assert (refused.value.code, refused.value.body["message"]) == ("invalid_request_error", "bad")  # type: ignore[index]
    assert 1 <= await gateway_client.read_call_count() <= 2


# Idempotency.


async def test_a_retry_under_the_same_key_is_the_same_call(
    fleet: ModelFleet, gateway_client: GatewayClient, client: openai.AsyncOpenAI
) -> None:
    fleet.provider.set_responses(
        ScriptedResponse(body=CHAT.answer("first")), ScriptedResponse(body=CHAT.answer("second"))
    )
    under: Any = {"model": "model", "messages": HELLO, "extra_headers": {"Idempotency-Key": "my key/1"}}
    raw = await client.chat.completions.with_raw_response.create(**under)
    again = await client.chat.completions.with_raw_response.create(**under)
    streamed = await client.chat.completions.create(**under, stream=True)
    assert raw.headers["x-quintain-request-id"] == again.headers["x-quintain-request-id"] == "my key/1"
    assert raw.parse().choices[0].message.content == again.parse().choices[0].message.content == "first"
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in streamed]) == "first"
    assert await gateway_client.read_call_count() == 1
    with pytest.raises(openai.ConflictError) as conflict:
        await client.chat.completions.create(**{**under, "seed": 1})
    assert conflict.value.code == "request_conflict"
    assert await gateway_client.read_call_count() == 1


async def test_a_retry_while_the_first_one_still_runs_waits_for_its_answer(
    gateway_client: GatewayClient, client: openai.AsyncOpenAI
) -> None:
    under: Any = {"model": "words", "messages": HELLO, "extra_headers": {"Idempotency-Key": "twice"}}
    answers = await asyncio.gather(*(client.chat.completions.create(**under) for _ in range(3)))
    assert [answer.choices[0].message.content for answer in answers] == ["one two three four five"] * 3
    assert await gateway_client.read_call_count() == 1


async def test_choices_under_the_same_key_are_the_same_calls(
    gateway_client: GatewayClient, client: openai.AsyncOpenAI
) -> None:
    under: Any = {"model": "echo", "messages": HELLO, "extra_headers": {"Idempotency-Key": "k"}}
    for choices in (3, 3, 1, 2):
        answer = await client.chat.completions.create(**under, n=choices)
        assert len(answer.choices) == choices
    assert await gateway_client.read_call_count() == 3


@pytest.mark.parametrize("key", ["", "k" * 121, "a\tb"])
async def test_a_key_that_cannot_be_kept_is_400(gateway_client: GatewayClient, key: str) -> None:
    body = {"model": "echo", "messages": HELLO}
    response = await gateway_client.http.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": key})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "bad_request")
    assert await gateway_client.read_call_count() == 0


# Refusals.


async def test_every_refusal_is_the_clients_own_exception(fleet: ModelFleet, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="nope", messages=HELLO)
    assert (unknown.value.code, unknown.value.param, unknown.value.type) == (
        "model_not_found", "model", "invalid_request_error",
    )  # fmt: skip
    assert unknown.value.message.endswith(f"Unknown target 'nope'. Available: {', '.join(TARGETS)}")
    assert unknown.value.request_id
    async with openai_client(fleet.url, SessionToken.mint().text) as (nobody, _):
        with pytest.raises(openai.AuthenticationError) as unauthorized:
            await nobody.chat.completions.create(model="echo", messages=HELLO)
        with pytest.raises(openai.AuthenticationError):
            await nobody.models.list()
    assert unauthorized.value.code == "unauthorized"
    assert unauthorized.value.response.headers["www-authenticate"] == "Bearer"
    async with openai_client(fleet.url, await fleet.token(allowed_targets=["echo"])) as (narrow, _):
        with pytest.raises(openai.PermissionDeniedError) as forbidden:
            await narrow.chat.completions.create(model="fixed", messages=HELLO)
    assert (forbidden.value.code, forbidden.value.type) == ("forbidden_target", "permission_error")


async def test_a_spent_budget_is_402_and_no_client_repeats_it(
    gateway_client: GatewayClient, client: openai.AsyncOpenAI, sent: SentRequests
) -> None:
    await client.chat.completions.create(model="echo", messages=HELLO, n=5)
    for stream in (False, True):
        before = len(sent.requests)
        with pytest.raises(openai.APIStatusError) as spent:
            await client.chat.completions.create(model="echo", messages=HELLO, stream=stream)
        assert (spent.value.status_code, spent.value.code) == (402, "insufficient_quota")
        assert spent.value.type == "insufficient_quota"
        assert spent.value.response.headers["x-should-retry"] == "false"
        assert len(sent.requests) == before + 1
    assert await gateway_client.read_call_count() == 5


BAD: list[tuple[object, str | None]] = [
    (b"{", None),
    (b"", None),
    (b"null", None),
    (b"[]", None),
    (b'"text"', None),
    (b"\xff\xfe", None),
    (b'{"model": "echo", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}', "temperature"),
    (b'{"model": "echo", "messages": [{"role": "user", "content": "x"}], "seed": 1e999}', "seed"),
    (b'{"model": "echo", "messages": [{"role": "user", "content": "x"}], "tools": [{"a": -Infinity}]}', "tools.0.a"),
    (b"[" * 100_000, None),
    ({}, "model"),
    ({"model": "echo"}, "messages"),
    ({"model": "", "messages": HELLO}, "model"),
    ({"model": 5, "messages": HELLO}, "model"),
    ({"model": None, "messages": HELLO}, "model"),
    ({"model": "echo", "messages": []}, "messages"),
    ({"model": "echo", "messages": "hi"}, "messages"),
    ({"model": "echo", "messages": [None]}, "messages.0"),
    ({"model": "echo", "messages": ["hi"]}, "messages.0"),
    ({"model": "echo", "messages": [{"role": "user"}]}, "messages.0.content"),
    ({"model": "echo", "messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ({"model": "echo", "messages": [{"role": "user", "content": ["x"]}]}, "messages.0.content"),
    ({"model": "echo", "messages": [{"content": "x"}]}, "messages.0.role"),
    ({"model": "echo", "messages": [{"role": "king", "content": "x"}]}, "messages.0.role"),
    ({"model": "echo", "messages": [{"role": "assistant", "tool_calls": 5}]}, "messages.0.tool_calls"),
    ({"model": "echo", "messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages.0.tool_calls.0.id"),
    ({"model": "echo", "messages": [{"role": "tool", "content": "x", "tool_call_id": 5}]}, "messages.0.tool_call_id"),
    *(
        ({"model": "echo", "messages": HELLO, field: value}, field)
        for field, values in {
            "n": [0, 129, -1, "2", 1.5, True, [], 10**30],
            "stream": ["true", 1, []],
            "stream_options": [5, []],
            "temperature": ["hot", True, [], {}],
            "max_tokens": [0, {}, -1, "5", 1.5, True],
            "seed": ["x", 1.5, True],
            "stop": [5, [5], {}],
            "response_format": ["json", 5, []],
            "tools": ["x", {}, ["x"]],
            "tool_choice": [5, []],
            "top_p": [1.5, -1, "0.2", True],
            "min_p": [2],
            "top_k": ["x", 1.5],
            "frequency_penalty": ["x"],
            "logit_bias": [5, {"a": "b"}],
            "logprobs": [5, "true"],
            "top_logprobs": [-1, True],
            "reasoning_effort": [5],
            "parallel_tool_calls": ["no"],
            "modalities": ["text"],
            "extra_body": [5, {}],
        }.items()
        for value in values
    ),
    ({"model": "echo", "messages": HELLO, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
]


async def test_a_bad_request_is_400_names_its_field_and_costs_nothing(fleet: ModelFleet) -> None:
    # Together: one after the other they would wait for the broker a hundred times. Some reach a worker.
    async with open_gateway_client(fleet.url, await fleet.token(len(BAD))) as door:
        answers = await asyncio.gather(*(door.post("/v1/chat/completions", body) for body, _ in BAD))
        assert await door.read_call_count() == 0
    for (body, field), (status, answer) in zip(BAD, answers, strict=True):
        said = f"{str(body)[:200]} is answered {answer}"
        assert status == 400, said
        error = answer["error"]
        assert error.keys() == {"message", "type", "param", "code", "charged"}, said
        assert (error["code"], error["type"]) == ("bad_request", "invalid_request_error"), said
        assert (error["charged"], error["message"] != "") == (False, True), said
        if field is not None:
            named = error["param"] or ""
            assert named == field or named.startswith(f"{field}."), said
            assert field in error["message"], said


@pytest.mark.parametrize("depth", [100, 250, 400, 900])
async def test_deep_nesting_is_answered_and_never_a_defect(gateway_client: GatewayClient, depth: int) -> None:
    deep = b'{"a": ' * depth + b"1" + b"}" * depth
    body = b'{"model": "echo", "messages": [{"role": "user", "content": "x"}], "response_format": %s}' % deep
    status, answer = await gateway_client.post("/v1/chat/completions", body)
    assert status in {200, 400}, answer
    assert await gateway_client.read_call_count() == (1 if status == 200 else 0)


@pytest.mark.parametrize("body", [b"{", b"{}", b'{"model": "echo", "messages": [], "n": 2}'])
async def test_who_has_no_token_hears_nothing_about_the_body(fleet: ModelFleet, body: bytes) -> None:
    for token in ("", "x", SessionToken.mint().text):
        async with open_gateway_client(fleet.url, token) as nobody:
            status, answer = await nobody.post("/v1/chat/completions", body)
        assert (status, answer["error"]["code"], answer["error"]["message"]) == (401, "unauthorized", "Unauthorized")


# Streams.


async def test_a_stream_says_piece_by_piece_what_the_whole_says(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="words", messages=HELLO, stream=True)
    assert stream.response.headers["content-type"].startswith("text/event-stream")
    assert stream.response.headers["cache-control"] == "no-cache"
    assert stream.response.headers["x-quintain-request-id"]
    chunks = [chunk async for chunk in stream]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content for chunk in chunks[:-1]]
    assert len(pieces) > 1
    assert "".join(piece or "" for piece in pieces) == "one two three four five"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


async def test_a_stream_tells_its_usage_where_that_is_asked_for(client: openai.AsyncOpenAI) -> None:
    options: Any = {"include_usage": True}
    told = [
        chunk
        async for chunk in await client.chat.completions.create(
            model="fixed", messages=HELLO, n=2, stream=True, stream_options=options
        )
    ]
    assert (told[-1].choices, told[-1].usage is not None) == ([], True)
    assert told[-1].usage is not None
    assert (told[-1].usage.prompt_tokens, told[-1].usage.completion_tokens) == (20, 10)
    mute = [
        chunk
        async for chunk in await client.chat.completions.create(
            model="mute", messages=HELLO, stream=True, stream_options=options
        )
    ]
    assert mute[-1].choices[0].finish_reason == "stop"


async def test_choices_are_streamed_beside_each_other(
    gateway_client: GatewayClient, client: openai.AsyncOpenAI
) -> None:
    texts: dict[int, str] = {}
    finished: list[int] = []
    async for chunk in await client.chat.completions.create(model="words", messages=HELLO, n=3, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        finished += [choice.index] if choice.finish_reason else []
    assert texts == dict.fromkeys(range(3), "one two three four five")
    assert sorted(finished) == [0, 1, 2]
    assert await gateway_client.read_call_count() == 3


async def test_the_first_token_comes_before_the_provider_has_finished(
    fleet: ModelFleet, client: openai.AsyncOpenAI
) -> None:
    fleet.provider.disconnected.clear()
    fleet.provider.set_responses(
        StreamedResponse(events=CHAT.events(["The ", "first ", "words"]), event_count=3, then="stall")
    )
    async with await client.chat.completions.create(model="model", messages=HELLO, stream=True) as stream:
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
    # Who leaves in the middle has the provider's request ended.
    await fleet.provider.disconnected.wait()


@pytest.mark.parametrize(
    ("model", "kind", "status"),
    [("nope", openai.NotFoundError, 404), ("broken", openai.InternalServerError, 502)],
)
async def test_what_fails_before_a_stream_has_begun_has_its_status(
    client: openai.AsyncOpenAI, model: str, kind: type[openai.APIStatusError], status: int
) -> None:
    with pytest.raises(kind) as refused:
        await client.chat.completions.create(model=model, messages=HELLO, stream=True)
    assert refused.value.status_code == status


async def test_what_fails_within_a_stream_ends_it_with_an_error(
    fleet: ModelFleet, gateway_client: GatewayClient, client: openai.AsyncOpenAI
) -> None:
    fleet.provider.set_responses(
        StreamedResponse(events=CHAT.events(["The ", "first ", "words"]), event_count=3, then="close"),
        ScriptedResponse(status=400, body={"error": {"message": "no", "type": "invalid_request_error"}}),
    )
    said = ""
    with pytest.raises(openai.APIError) as failed:
        async for chunk in await client.chat.completions.create(model="model", messages=HELLO, stream=True):
            said += chunk.choices[0].delta.content or ""
    assert said
    assert "The first words".startswith(said)
    assert not isinstance(failed.value, openai.APIStatusError)
    assert isinstance(failed.value.body, dict)
    assert failed.value.body["charged"] is True
    assert failed.value.code == failed.value.body["code"]
    assert await gateway_client.read_call_count() == 1

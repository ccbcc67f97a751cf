"""OpenAI's chat, completions and embeddings over a real socket: its official client, and what no client sends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from support.gateway_client import GatewayClient, open_gateway_client
from support.model_fleet import ModelFleet
from support.model_server import ScriptedResponse, StreamedResponse
from support.model_streams import event
from support.model_wires import CHAT
from support.official_clients import OfficialClients, official_clients

pytestmark = pytest.mark.asyncio(loop_scope="module")

TARGETS = ["echo", "fixed", "mute", "silent", "slow", "words", "endless", "broken", "model", "limited", "claude"]
HELLO: Any = [{"role": "user", "content": "Hello there"}]
FIVE_WORDS = "one two three four five"


async def test_the_models_are_the_targets_that_the_session_may_call(
    fleet: ModelFleet, clients: OfficialClients
) -> None:
    assert [model.id for model in (await clients.openai.models.list()).data] == TARGETS
    one = await clients.openai.models.retrieve("echo")
    assert (one.id, one.object, one.owned_by) == ("echo", "model", "quintain")
    async with official_clients(fleet.url, await fleet.token(allowed_targets=["echo"])) as narrow:
        assert [model.id for model in (await narrow.openai.models.list()).data] == ["echo"]
        with pytest.raises(openai.NotFoundError) as refused:
            await narrow.openai.models.retrieve("fixed")
    assert (refused.value.code, refused.value.status_code) == ("model_not_found", 404)


async def test_a_completion_has_openais_shape(clients: OfficialClients) -> None:
    raw = await clients.openai.chat.completions.with_raw_response.create(model="fixed", messages=HELLO)
    answer = json.loads(raw.content)
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    message = {"role": "assistant", "content": "A fixed answer", "refusal": None}
    assert answer == {
        "object": "chat.completion",
        "model": "mock",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    assert (raw.headers["x-quintain-call-count"], raw.headers["x-quintain-max-calls"]) == ("1", "5")
    assert int(raw.headers["x-quintain-queued-ms"]) >= 0
    assert raw.headers["x-quintain-request-id"]
    assert "x-quintain-ignored" not in raw.headers
    assert raw.parse()._request_id == raw.headers["x-request-id"]
    mute = await clients.openai.chat.completions.create(model="mute", messages=HELLO)
    assert (mute.choices[0].message.content, mute.usage) == ("no usage", None)


UNKNOWN: Any = {
    "model_extra": 1, "unread": 1, "__class__": 1, "a\r\nb: c": 1, "é" * 100: 2, "\U0001f600": 1, "empty": {},
    "absent": None,
}  # fmt: skip


async def test_what_cannot_be_honoured_is_refused_by_name_and_costs_nothing(
    fleet: ModelFleet, clients: OfficialClients, gateway_client: GatewayClient
) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        *(({"extra_body": {field: value}}, field) for field, value in UNKNOWN.items() if len(field) < 60 and value),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"messages": [{"role": "user", "content": "x", "name": "Ada"}]}, "messages.0.name"),
    ]
    for more, name in refused:
        with pytest.raises(openai.BadRequestError) as caught:
            await clients.openai.chat.completions.create(**{"model": "mute", "messages": HELLO, **more})
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)
        assert caught.value.body["charged"] is False
    assert await gateway_client.read_call_count() == 0
    of_no_effect = ("metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user")
    values: list[Any] = [{"a": "b"}, "k", "s", "flex", True, "somebody"]
    raw = await clients.openai.chat.completions.with_raw_response.create(
        model="echo", messages=HELLO, **dict(zip(of_no_effect, values, strict=True))
    )
    assert raw.headers["x-quintain-ignored"] == ", ".join(of_no_effect)


async def test_a_session_that_ignores_what_cannot_be_honoured_gets_its_names(fleet: ModelFleet) -> None:
    ask: Any = {"model": "mute", "messages": HELLO, "extra_body": UNKNOWN, "modalities": ["audio"]}
    async with official_clients(fleet.url, await fleet.token(unsupported="ignore")) as clients:
        raw = await clients.openai.chat.completions.with_raw_response.create(**ask)
        chunks = [chunk async for chunk in await clients.openai.chat.completions.create(**ask, stream=True)]
    names = "?, " + "?" * 60 + ", __class__, a??b??c, modalities, model_extra, unread"
    assert raw.headers["x-quintain-ignored"] == names
    for told in (raw.parse(), chunks[-1]):
        assert {"model_extra", "unread", "__class__"} <= set(told.model_extra["ignored_parameters"])


# Choices and prompts: each is one call.


async def test_each_choice_is_one_call(gateway_client: GatewayClient, clients: OfficialClients) -> None:
    raw = await clients.openai.chat.completions.with_raw_response.create(model="fixed", messages=HELLO, n=3)
    answer = raw.parse()
    choices = [(choice.index, choice.message.content) for choice in answer.choices]
    assert choices == [(index, "A fixed answer") for index in range(3)]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (30, 15)
    assert raw.headers["x-quintain-call-count"] == "3"
    with pytest.raises(openai.APIStatusError) as refused:
        await clients.openai.chat.completions.create(model="echo", messages=HELLO, n=4)
    assert refused.value.status_code == 402
    assert refused.value.message.endswith("Batch would exceed max calls (current: 3, batch: 4, limit: 5)")
    assert (await gateway_client.read_call_count(), len(clients.sent.requests)) == (3, 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_that_may_not_be_asked_leave_nothing_reserved(
    fleet: ModelFleet, clients: OfficialClients, gateway_client: GatewayClient, stream: bool
) -> None:
    with pytest.raises(openai.NotFoundError):
        await clients.openai.chat.completions.create(model="nope", messages=HELLO, n=3, stream=stream)
    lost: Any = [{"role": "user", "content": "half of a pair: \ud83d"}]
    status, answer = await gateway_client.post("/v1/chat/completions", {"model": "echo", "messages": lost, "n": 3})
    assert (status, answer["error"]["code"]) == (400, "bad_request")
    assert await gateway_client.read_call_count() == 0
    token = await fleet.token(5, allowed_targets=["echo"])
    async with official_clients(fleet.url, token) as narrow, open_gateway_client(fleet.url, token) as visitor:
        with pytest.raises(openai.PermissionDeniedError):
            await narrow.openai.chat.completions.create(model="fixed", messages=HELLO, n=3)
        assert await visitor.read_call_count() == 0


async def test_one_choice_that_fails_fails_the_request(
    fleet: ModelFleet, gateway_client: GatewayClient, clients: OfficialClients
) -> None:
    fine = ScriptedResponse(body=CHAT.answer("fine"))
    bad = {"error": {"message": "bad", "type": "invalid_request_error"}}
    fleet.provider.set_responses(fine, ScriptedResponse(status=400, body=bad), fine)
    with pytest.raises(openai.BadRequestError) as refused:
        await clients.openai.chat.completions.create(model="model", messages=HELLO, n=2)
    assert (refused.value.code, refused.value.body["message"]) == ("invalid_request_error", "bad")
    assert 1 <= await gateway_client.read_call_count() <= 2


# Idempotency.


async def test_a_retry_under_the_same_key_is_the_same_call(
    fleet: ModelFleet, gateway_client: GatewayClient, clients: OfficialClients
) -> None:
    fleet.provider.set_responses(*(ScriptedResponse(body=CHAT.answer(text)) for text in ("first", "second")))
    create = clients.openai.chat.completions.create
    under: Any = {"model": "model", "messages": HELLO, "extra_headers": {"Idempotency-Key": "my key/1"}}
    raw, again = [await clients.openai.chat.completions.with_raw_response.create(**under) for _ in range(2)]
    assert raw.headers["x-quintain-request-id"] == again.headers["x-quintain-request-id"] == "my key/1"
    assert raw.parse().choices[0].message.content == again.parse().choices[0].message.content == "first"
    streamed = [chunk.choices[0].delta.content or "" async for chunk in await create(**under, stream=True)]
    assert "".join(streamed) == "first"
    with pytest.raises(openai.ConflictError) as conflict:
        await create(**{**under, "seed": 1})
    assert (conflict.value.code, await gateway_client.read_call_count()) == ("request_conflict", 1)
    # One that comes while the first one still runs waits for its answer.
    under |= {"model": "words", "extra_headers": {"Idempotency-Key": "twice"}}
    answers = await asyncio.gather(*(create(**under) for _ in range(3)))
    assert [answer.choices[0].message.content for answer in answers] == [FIVE_WORDS] * 3
    assert await gateway_client.read_call_count() == 2


async def test_choices_under_the_same_key_are_the_same_calls(
    gateway_client: GatewayClient, clients: OfficialClients
) -> None:
    under: Any = {"model": "echo", "messages": HELLO, "extra_headers": {"Idempotency-Key": "k"}}
    for choices in (3, 3, 1, 2):
        answer = await clients.openai.chat.completions.create(**under, n=choices)
        assert len(answer.choices) == choices
    assert await gateway_client.read_call_count() == 3


async def test_a_key_that_cannot_be_kept_is_400(gateway_client: GatewayClient) -> None:
    body = {"model": "echo", "messages": HELLO}
    for key in ("", "k" * 121, "a\tb"):
        response = await gateway_client.http.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": key})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "bad_request")
    assert await gateway_client.read_call_count() == 0


# Streams.


async def test_a_stream_says_piece_by_piece_what_the_whole_says(clients: OfficialClients) -> None:
    stream = await clients.openai.chat.completions.create(model="words", messages=HELLO, stream=True)
    assert stream.response.headers["content-type"].startswith("text/event-stream")
    assert stream.response.headers["cache-control"] == "no-cache"
    assert stream.response.headers["x-quintain-request-id"]
    chunks = [chunk async for chunk in stream]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert (len(pieces) > 1, "".join(pieces)) == (True, FIVE_WORDS)
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


async def test_choices_are_streamed_beside_each_other_with_their_usage_where_it_is_asked_for(
    gateway_client: GatewayClient, clients: OfficialClients
) -> None:
    texts, finished = dict[int, str](), list[int]()
    ask: Any = {"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
    chunks = [chunk async for chunk in await clients.openai.chat.completions.create(**ask, model="words", n=3)]
    for choice in [choice for chunk in chunks for choice in chunk.choices]:
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        finished += [choice.index] if choice.finish_reason else []
    assert texts == dict.fromkeys(range(3), FIVE_WORDS)
    assert sorted(finished) == [0, 1, 2]
    usage = chunks[-1].usage
    assert (chunks[-1].choices, usage is not None and usage.completion_tokens) == ([], 15)
    assert await gateway_client.read_call_count() == 3
    mute = [chunk async for chunk in await clients.openai.chat.completions.create(**ask, model="mute")]
    assert mute[-1].choices[0].finish_reason == "stop"


async def test_the_first_token_comes_before_the_provider_has_finished(
    fleet: ModelFleet, clients: OfficialClients
) -> None:
    fleet.provider.disconnected.clear()
    events = CHAT.events(["The ", "first ", "words"])
    fleet.provider.set_responses(StreamedResponse(events=events, event_count=3, then="stall"))
    async with await clients.openai.chat.completions.create(model="model", messages=HELLO, stream=True) as stream:
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
    # Who leaves in the middle has the provider's request ended.
    await fleet.provider.disconnected.wait()


# Completions and embeddings.

LOGPROBS: dict[str, Any] = {
    "tokens": ["2 + 2", " =", " 4"],
    "token_logprobs": [None, -0.5, -0.25],
    "top_logprobs": [None, {" =": -0.5}, {" 4": -0.25, " four": -3.0}],
    "text_offset": [0, 5, 7],
}


def completion(text: str, **choice: object) -> dict[str, object]:
    """A completion of the provider's."""
    choices = [{"index": 0, "text": text, "finish_reason": "length", "logprobs": None, **choice}]
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "served-2026-01-01"}
    return {**head, "choices": choices, "usage": usage}


def embeddings(*vectors: object) -> dict[str, object]:
    """The vectors of the provider's, the last one first."""
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    usage = {"prompt_tokens": 7, "total_tokens": 7}
    return {"object": "list", "data": data[::-1], "model": "served-2026-01-01", "usage": usage}


async def test_each_prompt_is_a_call_and_its_answer_stands_in_its_place(
    fleet: ModelFleet, clients: OfficialClients, gateway_client: GatewayClient
) -> None:
    # As lm-eval's log-likelihood tasks ask: tokens, several prompts at once.
    create, tasks = clients.openai.completions.create, {"echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0}
    fleet.provider.response_for = lambda request: ScriptedResponse(
        body=completion(str(request.body["prompt"]), logprobs=LOGPROBS)
    )
    try:
        answer = await create(model="model", prompt=[[1, 2], [3]], seed=1, n=2, extra_body=tasks)
        one = await create(model="model", prompt=[7, 8])
    finally:
        fleet.provider.response_for = None
    texts = [(choice.index, choice.text) for choice in answer.choices]
    assert texts == [(0, "[1, 2]"), (1, "[1, 2]"), (2, "[3]"), (3, "[3]")]
    assert answer.choices[3].logprobs.to_dict() == LOGPROBS
    assert [(choice.text, one.object, one.model) for choice in one.choices] == [
        ("[7, 8]", "text_completion", "served-2026-01-01")
    ]
    assert await gateway_client.read_call_count() == 5


async def test_a_completion_is_streamed(fleet: ModelFleet, clients: OfficialClients) -> None:
    pieces: list[dict[str, Any]] = [
        {"text": "2 + 2", "finish_reason": None},
        {"text": " = 4", "finish_reason": "length", "logprobs": LOGPROBS},
    ]
    events = [*(completion(**piece) | {"usage": None} for piece in pieces), completion("") | {"choices": []}]
    fleet.provider.set_responses(StreamedResponse(events=[*map(event, events), b"data: [DONE]\n\n"]))
    ask: Any = {"model": "model", "prompt": "2", "stream": True, "stream_options": {"include_usage": True}}
    chunks = [chunk async for chunk in await clients.openai.completions.create(**ask)]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "2 + 2 = 4"
    ends = [choice for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert [(end.finish_reason, end.logprobs is not None) for end in ends] == [("length", True)]
    assert chunks[-1].usage.total_tokens == 4


async def test_a_target_without_the_endpoint_is_400_and_costs_nothing(
    clients: OfficialClients, gateway_client: GatewayClient
) -> None:
    for target in ("echo", "claude", "mute"):
        with pytest.raises(openai.BadRequestError):
            await clients.openai.completions.create(model=target, prompt="x")
        with pytest.raises(openai.BadRequestError):
            await clients.openai.embeddings.create(model=target, input="x")
    with pytest.raises(openai.BadRequestError) as refused:  # more completions than are charged
        await clients.openai.completions.create(model="model", prompt="x", best_of=2)
    assert (refused.value.param, await gateway_client.read_call_count()) == ("best_of", 0)


async def test_embeddings_are_one_call_and_the_providers_own(
    fleet: ModelFleet, gateway_client: GatewayClient, clients: OfficialClients
) -> None:
    vectors = embeddings([0.5, -0.25], "AAAAPwAAgL4=")
    fleet.provider.set_responses(ScriptedResponse(body=vectors))
    fields = {"input": ["one", "two"], "dimensions": 2, "user": "me", "encoding_format": "base64"}
    assert await gateway_client.post("/v1/embeddings", {"model": "model", **fields}) == (200, vectors)
    asked = fleet.provider.requests[-1]
    assert (asked.path, asked.body) == ("/v1/embeddings", {"model": "served", **fields})
    assert await gateway_client.read_call_count() == 1
    fleet.provider.set_responses(ScriptedResponse(body=embeddings([0.5, -0.25])))
    answer = await clients.openai.embeddings.create(model="model", input=[1, 2, 3])
    assert fleet.provider.requests[-1].body["input"] == [1, 2, 3]
    assert (answer.data[0].embedding, answer.model) == ([0.5, -0.25], "served-2026-01-01")

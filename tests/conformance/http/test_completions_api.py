"""OpenAI's completions and embeddings over a real socket: its official client, and what log-likelihood tasks send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from quintain.contracts.api_request import ApiRequest, json_text
from quintain_runner.graders.similar import read_embeddings
from support.gateway_client import GatewayClient
from support.model_fleet import OVER_MEMORY, ModelFleet
from support.model_server import ScriptedResponse, StreamedResponse
from support.model_streams import event
from support.official_clients import openai_client

pytestmark = [pytest.mark.asyncio(loop_scope="module"), OVER_MEMORY]

LOGPROBS: dict[str, Any] = {
    "tokens": ["2 + 2", " =", " 4"],
    "token_logprobs": [None, -0.5, -0.25],
    "top_logprobs": [None, {" =": -0.5}, {" 4": -0.25, " four": -3.0}],
    "text_offset": [0, 5, 7],
}


def completion(text: str, **choice: object) -> dict[str, object]:
    """A completion of the provider's."""
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "served-2026-01-01",
        "choices": [{"index": 0, "text": text, "finish_reason": "length", "logprobs": None, **choice}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }


def embeddings(*vectors: object) -> dict[str, object]:
    """The vectors of the provider's, the last one first."""
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    usage = {"prompt_tokens": 7, "total_tokens": 7}
    return {"object": "list", "data": data[::-1], "model": "served-2026-01-01", "usage": usage}


@pytest_asyncio.fixture(loop_scope="module")
async def client(fleet: ModelFleet, gateway_client: GatewayClient) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client of the same session."""
    async with openai_client(fleet.url, gateway_client.token) as (client, _):
        yield client


# Completions.


async def test_what_a_client_sends_reaches_the_provider_and_comes_back(
    fleet: ModelFleet, client: openai.AsyncOpenAI
) -> None:
    fleet.provider.set_responses(ScriptedResponse(body=completion("2 + 2 = 4", logprobs=LOGPROBS)))
    settings: Any = {
        "echo": True,
        "logprobs": 1,
        "max_tokens": 0,
        "temperature": 0,
        "top_p": 0.5,
        "frequency_penalty": 0.25,
        "presence_penalty": 0.75,
        "logit_bias": {"50256": -100},
        "seed": 1234,
        "stop": ["END"],
        "suffix": "!",
    }
    answer = await client.completions.create(
        model="model", prompt="2 + 2 = 4", **settings, user="me", n=1, extra_body={"a": None}
    )
    wanted = {"model": "served", "prompt": "2 + 2 = 4", "user": "me", "a": None, **settings}
    assert (fleet.provider.requests[-1].path, fleet.provider.requests[-1].body) == ("/v1/completions", wanted)
    [choice] = answer.choices
    assert (answer.object, answer.model) == ("text_completion", "served-2026-01-01")
    assert (choice.text, choice.finish_reason) == ("2 + 2 = 4", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.to_dict() == LOGPROBS
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 1, 4)


async def test_each_prompt_is_a_call_and_its_answer_stands_in_its_place(
    fleet: ModelFleet, client: openai.AsyncOpenAI, gateway_client: GatewayClient
) -> None:
    # As lm-eval's log-likelihood tasks ask: tokens, several prompts at once.
    def echo(request: Any) -> ScriptedResponse:
        return ScriptedResponse(body=completion(str(request.body["prompt"])))

    fleet.provider.response_for = echo
    try:
        answer = await client.completions.create(
            model="model", prompt=[[1, 2], [3]], echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1, n=2
        )
        one = await client.completions.create(model="model", prompt=[7, 8])
    finally:
        fleet.provider.response_for = None
    texts = [(choice.index, choice.text) for choice in answer.choices]
    assert texts == [(0, "[1, 2]"), (1, "[1, 2]"), (2, "[3]"), (3, "[3]")]
    assert [choice.text for choice in one.choices] == ["[7, 8]"]
    assert await gateway_client.read_call_count() == 5


async def test_a_completion_is_streamed(fleet: ModelFleet, client: openai.AsyncOpenAI) -> None:
    pieces: list[dict[str, Any]] = [
        {"text": "2 + 2", "finish_reason": None},
        {"text": " = 4", "finish_reason": "length", "logprobs": LOGPROBS},
    ]
    events = [completion(**piece) | {"usage": None} for piece in pieces]
    usage = completion("") | {"choices": []}
    fleet.provider.set_responses(StreamedResponse(events=[*map(event, [*events, usage]), b"data: [DONE]\n\n"]))
    chunks = [
        chunk
        async for chunk in await client.completions.create(
            model="model", prompt="2", stream=True, stream_options={"include_usage": True}
        )
    ]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "2 + 2 = 4"
    ends = [choice for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert [(end.finish_reason, end.logprobs is not None) for end in ends] == [("length", True)]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 4


@pytest.mark.parametrize("target", ["echo", "claude", "mute"])
async def test_a_target_without_the_endpoint_is_400_and_costs_nothing(
    client: openai.AsyncOpenAI, gateway_client: GatewayClient, target: str
) -> None:
    with pytest.raises(openai.BadRequestError):
        await client.completions.create(model=target, prompt="x")
    with pytest.raises(openai.BadRequestError):
        await client.embeddings.create(model=target, input="x")
    assert await gateway_client.read_call_count() == 0


async def test_more_completions_than_are_charged_are_refused(
    client: openai.AsyncOpenAI, gateway_client: GatewayClient
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model="model", prompt="x", best_of=2)
    assert refused.value.param == "best_of"
    assert await gateway_client.read_call_count() == 0


async def test_a_providers_failure_comes_with_its_own_words(
    fleet: ModelFleet, client: openai.AsyncOpenAI, gateway_client: GatewayClient
) -> None:
    error = {"message": "This is a chat model", "type": "invalid_request_error", "param": "model", "code": "wrong"}
    for send in (
        client.completions.create(model="model", prompt="x"),
        client.embeddings.create(model="model", input="x"),
    ):
        fleet.provider.set_responses(ScriptedResponse(status=400, body={"error": error}))
        with pytest.raises(openai.APIStatusError) as failed:
            await send
        assert failed.value.status_code in {400, 422}
        assert "This is a chat model" in failed.value.message
    assert await gateway_client.read_call_count() == 2


@pytest.mark.parametrize("body", [{}, {"choices": []}, [], b"<html>"])
async def test_an_answer_that_cannot_be_read_is_a_provider_error(
    fleet: ModelFleet, client: openai.AsyncOpenAI, body: object
) -> None:
    fleet.provider.set_responses(ScriptedResponse(body=body))
    with pytest.raises(openai.APIStatusError) as failed:
        await client.completions.create(model="model", prompt="x", extra_headers=await _soon(client))
    assert failed.value.status_code in {502, 504}


async def _soon(client: openai.AsyncOpenAI) -> dict[str, str]:
    info: Any = await client.get("/../info", cast_to=object)
    return {"x-quintain-deadline": str(info["now"] + 800)}


# Embeddings.


async def test_embeddings_are_one_call_and_the_providers_own(fleet: ModelFleet, gateway_client: GatewayClient) -> None:
    vectors = embeddings([0.5, -0.25], "AAAAPwAAgL4=")
    fleet.provider.set_responses(ScriptedResponse(body=vectors))
    fields = {"input": ["one", "two"], "dimensions": 2, "user": "me", "encoding_format": "base64"}
    status, answer = await gateway_client.post("/v1/embeddings", {"model": "model", **fields})
    said = fleet.provider.requests[-1]
    assert (said.path, said.body) == ("/v1/embeddings", {"model": "served", **fields})
    assert (status, answer) == (200, vectors)
    assert await gateway_client.read_call_count() == 1


async def test_the_official_client_reads_its_vectors(fleet: ModelFleet, client: openai.AsyncOpenAI) -> None:
    fleet.provider.set_responses(ScriptedResponse(body=embeddings([0.5, -0.25])))
    answer = await client.embeddings.create(model="model", input=[1, 2, 3])
    assert fleet.provider.requests[-1].body["input"] == [1, 2, 3]
    assert (answer.data[0].embedding, answer.model) == ([0.5, -0.25], "served-2026-01-01")


async def test_a_graders_embeddings_are_charged_once_and_told_by_its_name(fleet: ModelFleet) -> None:
    fleet.provider.set_responses(ScriptedResponse(body=embeddings([1.0, 0.0], [1.0, 1.0])))
    asked = len(fleet.provider.requests)
    request = ApiRequest("embeddings", json_text({"input": ["Rome", "It is Rome"]}), target="model", grader="near")
    async with fleet.fleet.client("model") as client:
        first = await client.send(request, request_id="embed-1")
        again = await client.send(request, request_id="embed-1")
        info = await client.get_info(usage=True)
    assert read_embeddings(first.body, count=2)[0].tolist() == [1.0, 0.0]
    assert (again.body, again.replayed) == (first.body, True)
    assert (len(fleet.provider.requests) - asked, info.call_count) == (1, 1)
    assert [(line.target, line.grader, line.calls) for line in info.usage or ()] == [("model", "near", 1)]


async def test_vectors_that_are_missing_are_a_provider_error(fleet: ModelFleet, client: openai.AsyncOpenAI) -> None:
    fleet.provider.set_responses(ScriptedResponse(body={"object": "list", "data": []}))
    with pytest.raises(openai.APIStatusError) as failed:
        await client.embeddings.create(model="model", input="x", extra_headers=await _soon(client))
    assert failed.value.status_code in {502, 504}


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("completions", {"model": "model", "prompt": []}, "prompt"),
    ("completions", {"model": "model", "prompt": [[]]}, "prompt"),
    ("completions", {"model": "model", "prompt": ["x", 5]}, "prompt"),
    ("completions", {"model": "model", "prompt": {"a": 1}}, "prompt"),
    ("completions", {"model": "model", "prompt": "x", "n": 0}, "n"),
    ("embeddings", {"model": "model"}, "input"),
    ("embeddings", {"model": "model", "input": ""}, "input"),
    ("embeddings", {"model": "model", "input": []}, "input"),
    ("embeddings", {"model": "model", "input": [""]}, "input"),
    ("embeddings", {"model": "model", "input": [1.5]}, "input"),
]


async def test_a_bad_request_is_400_names_its_field_and_costs_nothing(gateway_client: GatewayClient) -> None:
    for api, body, field in BAD:
        status, answer = await gateway_client.post(f"/v1/{api}", body)
        assert (status, answer["error"]["code"]) == (400, "bad_request"), f"{body} is answered {answer}"
        assert (answer["error"]["param"] or "").split(".")[0] == field, f"{body} is answered {answer}"
    assert await gateway_client.read_call_count() == 0

"""A provider's failures in the official clients: each raises its own typed exception, with the provider's words."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest

from support.gateway_client import open_gateway_client
from support.model_fleet import OVER_MEMORY, ModelFleet
from support.model_server import ScriptedResponse
from support.official_clients import anthropic_client, openai_client

pytestmark = [pytest.mark.asyncio(loop_scope="module"), OVER_MEMORY]

HELLO: Any = [{"role": "user", "content": "Hello there"}]
TOO_LONG = "This model's maximum context length is 8192 tokens, your messages have 9000"


@dataclass(frozen=True)
class Failure:
    """What a provider answers, and the status, code and parameter of the error that clients get."""

    status: int
    error: dict[str, object]
    expected_status: int
    code: str
    param: str | None = None

    @property
    def response(self) -> ScriptedResponse:
        return ScriptedResponse(status=self.status, body={"error": self.error})


FAILURES = {
    "context length": Failure(
        400, {"message": TOO_LONG, "code": "context_length_exceeded", "param": "messages"},
        400, "context_length_exceeded", "messages",
    ),
    "context length of vLLM": Failure(
        400, {"message": TOO_LONG, "type": "BadRequestError", "code": 400}, 400, "context_length_exceeded"
    ),
    "content filter": Failure(
        400, {"message": "The prompt triggered a policy", "code": "content_filter"}, 400, "content_filter"
    ),
    "bad parameter": Failure(
        400, {"message": "Bad value", "type": "invalid_request_error", "param": "temperature"},
        400, "invalid_request_error", "temperature",
    ),
    "too large": Failure(413, {"message": "Too large", "code": "too_large"}, 413, "too_large"),
    "unknown model": Failure(404, {"message": "No such model", "code": "model_not_found"}, 404, "model_not_found"),
    "model that is not allowed": Failure(
        403, {"message": "No access to this model", "code": "model_not_found"}, 404, "model_not_found"
    ),
    "spent quota": Failure(
        429, {"message": "You exceeded your current quota", "code": "insufficient_quota"}, 402, "insufficient_quota"
    ),
    "refused key": Failure(
        401, {"message": "Incorrect API key provided: sk-abcdefgh", "code": "invalid_api_key"}, 502, "upstream_auth"
    ),
    "refused access": Failure(403, {"message": "Your key sk-abcdefgh is blocked"}, 502, "upstream_auth"),
}  # fmt: skip

OPENAI_CLASSES = {400: openai.BadRequestError, 404: openai.NotFoundError, 502: openai.InternalServerError}
ANTHROPIC_CLASSES = {
    400: anthropic.BadRequestError,
    404: anthropic.NotFoundError,
    413: anthropic.RequestTooLargeError,
    502: anthropic.InternalServerError,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_the_clients_raise_their_own_exceptions(fleet: ModelFleet, failure: Failure, stream: bool) -> None:
    token = await fleet.token(5)
    async with openai_client(fleet.url, token) as (of_openai, sent):
        fleet.provider.set_responses(failure.response)
        with pytest.raises(OPENAI_CLASSES.get(failure.expected_status, openai.APIStatusError)) as refused:
            await of_openai.chat.completions.create(model="model", messages=HELLO, stream=stream)
        assert refused.value.status_code == failure.expected_status
        assert (refused.value.code, refused.value.param) == (failure.code, failure.param)
        assert len(sent.requests) == 1
    async with anthropic_client(fleet.url, token) as (of_anthropic, sent):
        fleet.provider.set_responses(failure.response)
        with pytest.raises(
            ANTHROPIC_CLASSES.get(failure.expected_status, anthropic.APIStatusError)
        ) as refused_by_anthropic:
            await of_anthropic.messages.create(model="model", max_tokens=5, messages=HELLO, stream=stream)
        assert refused_by_anthropic.value.status_code == failure.expected_status
        assert len(sent.requests) == 1
    for shown in (str(refused.value), str(refused_by_anthropic.value)):
        if failure.code == "upstream_auth":
            assert "key" not in shown.lower()
            assert "sk-" not in shown
        else:
            assert str(failure.error["message"]) in shown


async def test_what_a_quota_holds_until_its_deadline_is_429_in_both_apis(fleet: ModelFleet) -> None:
    slow_down = {"error": {"message": "slow down"}}
    fleet.provider.set_responses(ScriptedResponse(status=429, headers={"retry-after": "60"}, body=slow_down))
    token = await fleet.token(5)
    async with (
        openai_client(fleet.url, token) as (of_openai, sent),
        anthropic_client(fleet.url, token) as (of_anthropic, sent_by_anthropic),
        open_gateway_client(fleet.url, token) as door,
    ):
        deadline = (await door.get("/info"))[1]["now"] + 3000
        ask: Any = {
            "model": "limited",
            "messages": HELLO,
            "max_tokens": 5,
            "extra_headers": {"x-quintain-deadline": str(deadline)},
        }
        calls = (
            create(**ask, stream=stream)
            for create in (of_openai.chat.completions.create, of_anthropic.messages.create)
            for stream in (False, True)
        )
        ended = await asyncio.gather(*calls, return_exceptions=True)
        info = (await door.get("/info"))[1]
    assert info["now"] >= deadline
    assert (info["callCount"], info["committed"], info["inDoubt"]) == (0, 0, 0)
    assert [type(error) for error in ended] == [openai.RateLimitError] * 2 + [anthropic.RateLimitError] * 2
    for error in ended:
        assert isinstance(error, openai.RateLimitError | anthropic.RateLimitError)
        told: Any = error.body
        told = told.get("error", told)
        assert (told["type"], told["code"], told["charged"]) == ("rate_limit_error", "rate_limit_exceeded", False)
        assert 0 < int(error.response.headers["retry-after"]) <= 60
        assert error.response.headers["x-should-retry"] == "false"
    assert (len(sent.requests), len(sent_by_anthropic.requests)) == (2, 2)


async def test_anthropics_clients_find_the_sentence_that_they_look_for(fleet: ModelFleet) -> None:
    async with anthropic_client(fleet.url, await fleet.token(5)) as (client, _):
        fleet.provider.set_responses(FAILURES["context length"].response)
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await client.messages.create(model="model", max_tokens=5, messages=HELLO)
    async with openai_client(fleet.url, await fleet.token(5)) as (of_openai, _):
        error = {"type": "invalid_request_error", "message": "prompt is too long: 9000 tokens > 8192 maximum"}
        fleet.provider.set_responses(ScriptedResponse(status=400, body={"type": "error", "error": error}))
        with pytest.raises(openai.BadRequestError) as refused:
            await of_openai.chat.completions.create(model="claude", messages=HELLO)
    assert refused.value.code == "context_length_exceeded"


async def test_agentvs_paths_keep_the_codes_of_the_protocol(fleet: ModelFleet) -> None:
    fleet.provider.set_responses(FAILURES["context length"].response)
    async with open_gateway_client(fleet.url, await fleet.token(5)) as door:
        status, answer = await door.post("/invoke", {"question": "x", "target": "model"})
        assert (status, answer["code"]) == (500, "rejected")
        assert (await door.post("/invoke", {"question": "x", "target": "nope"}))[1]["code"] == "unknown_target"


@pytest.mark.parametrize("prefix", ["", "/run/42"])
@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/messages/batches", "/v1/models/a/b", "/v1/"])
async def test_what_is_not_there_is_404_in_the_format_of_the_api(fleet: ModelFleet, prefix: str, path: str) -> None:
    headers = {"x-api-key": await fleet.token(5)}
    async with open_gateway_client(fleet.url) as door:
        for method in ("GET", "POST"):
            nobody = await door.http.request(method, prefix + path)
            there = await door.http.request(
                method, prefix + path, headers={"Authorization": f"Bearer {headers['x-api-key']}"}
            )
            as_anthropic = await door.http.request(
                method, prefix + path, headers={**headers, "anthropic-version": "2023-06-01"}
            )
            assert (nobody.status_code, there.status_code, as_anthropic.status_code) == (401, 404, 404)
            assert there.json()["error"]["code"] == as_anthropic.json()["error"]["code"] == "not_found"
            assert as_anthropic.json()["type"] == "error"
            assert as_anthropic.json()["error"]["type"] == "not_found_error"
            of_anthropic = path.startswith("/v1/messages")
            assert (there.json().get("type") == "error") == (nobody.json().get("type") == "error") == of_anthropic


async def test_agentvs_paths_stay_below_any_prefix_and_a_large_head_has_the_format_of_the_api(
    fleet: ModelFleet,
) -> None:
    async with open_gateway_client(fleet.url, await fleet.token(5)) as door:
        assert (await door.post("/x/v1/invoke", {"question": "hi"}))[1]["rawText"] == "hi"
        assert (await door.get("/v1/info"))[0] == 200
        large = {"x-large": "y" * 20_000}
        assert "code" in (await door.http.get("/info", headers=large)).json()
        for path, kind in (("/v1/models", "invalid_request_error"), ("/v1/messages", "invalid_request_error")):
            response = await door.http.get(path, headers=large)
            assert (response.status_code, response.json()["error"]["type"]) == (431, kind)


async def test_a_limit_in_money_that_is_reached_is_402_in_each_api(fleet: ModelFleet) -> None:
    token = await fleet.token(5, max_cost_usd=0.015)
    ask: Any = {"model": "silent", "messages": HELLO, "max_tokens": 5}
    async with (
        openai_client(fleet.url, token) as (of_openai, _),
        anthropic_client(fleet.url, token) as (of_anthropic, _),
        open_gateway_client(fleet.url, token) as door,
    ):
        await of_openai.chat.completions.create(**ask)
        for create in (of_openai.chat.completions.create, of_anthropic.messages.create):
            for stream in (False, True):
                with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as spent:
                    await create(**ask, stream=stream)
                assert spent.value.status_code == 402
                assert "$0.015" in str(spent.value)
        status, answer = await door.post("/invoke", {"question": "x", "target": "silent"})
        assert (status, answer["code"], answer["charged"]) == (429, "budget_exhausted", False)
        info = (await door.get("/info"))[1]
    assert (info["maxCostUsd"], info["cost"]["spentUsd"], info["callCount"]) == (0.015, 0.01, 1)


async def test_a_child_session_has_its_own_limit_in_money_within_that_of_its_parent(fleet: ModelFleet) -> None:
    token = await fleet.token(5, max_cost_usd=0.025)
    async with open_gateway_client(fleet.url, token) as door:
        opened = await door.post("/sessions", {"defaultTarget": "silent", "maxCalls": 4, "maxCostUsd": 0.01})
        async with open_gateway_client(fleet.url, opened[1]["token"]) as child:
            assert (await child.post("/invoke", {"question": "x"}))[0] == 200
            assert (await child.post("/invoke", {"question": "y"}))[1]["code"] == "budget_exhausted"
        assert (await door.post("/invoke", {"question": "z", "target": "silent"}))[0] == 200
        assert (await door.post("/invoke", {"question": "?", "target": "silent"}))[1]["code"] == "budget_exhausted"
        assert (await door.get("/info"))[1]["cost"]["spentUsd"] == 0.02

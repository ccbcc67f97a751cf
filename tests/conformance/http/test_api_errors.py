"""What fails in the official clients: each failure is their own typed exception, with the provider's words."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest

from quintain.contracts.api_request import ApiName
from quintain.contracts.credentials import SessionToken
from support.gateway_client import GatewayClient, open_gateway_client
from support.model_calls import CONVERSATIONS
from support.model_fleet import ModelFleet
from support.model_server import ScriptedResponse, StreamedResponse
from support.model_wires import CHAT
from support.official_clients import OfficialClients, official_clients

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
HELLO: Any = [{"role": "user", "content": "Hello there"}]
ASK: Any = {"model": "model", "messages": HELLO, "max_tokens": 50}
TOO_LONG = "This model's maximum context length is 8192 tokens, your messages have 9000"

#: A status of the gateway, and the classes of the clients that raise it.
CLASSES: dict[int, tuple[type[openai.APIStatusError], type[anthropic.APIStatusError]]] = {
    400: (openai.BadRequestError, anthropic.BadRequestError),
    401: (openai.AuthenticationError, anthropic.AuthenticationError),
    402: (openai.APIStatusError, anthropic.APIStatusError),
    403: (openai.PermissionDeniedError, anthropic.PermissionDeniedError),
    404: (openai.NotFoundError, anthropic.NotFoundError),
    413: (openai.APIStatusError, anthropic.RequestTooLargeError),
    429: (openai.RateLimitError, anthropic.RateLimitError),
    502: (openai.InternalServerError, anthropic.InternalServerError),
}


async def refusal_of(clients: OfficialClients, api: ApiName, status: int, *, stream: bool = False, **more: Any) -> Any:
    """The exception of this status that the client of an API raises at its only request."""
    before = len(clients.sent.requests)
    with pytest.raises(CLASSES[status][api == "messages"]) as refused:
        await clients.ask[api](**{**ASK, **more}, stream=stream)
    assert refused.value.status_code == status
    assert len(clients.sent.requests) == before + 1
    return refused.value


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_a_providers_failure_has_its_words(
    fleet: ModelFleet, clients: OfficialClients, failure: Failure, stream: bool
) -> None:
    for api in ("chat", "messages"):
        fleet.provider.set_responses(failure.response)
        refused = await refusal_of(clients, api, failure.expected_status, stream=stream)
        if api == "chat":
            assert (refused.code, refused.param) == (failure.code, failure.param)
        if failure.code == "upstream_auth":
            assert "key" not in str(refused).lower()
            assert "sk-" not in str(refused)
        else:
            assert str(failure.error["message"]) in str(refused)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", CONVERSATIONS)
async def test_every_refusal_is_the_clients_own_exception(
    fleet: ModelFleet, clients: OfficialClients, gateway_client: GatewayClient, api: ApiName, stream: bool
) -> None:
    unknown = await refusal_of(clients, api, 404, stream=stream, model="nope")
    assert "Unknown target 'nope'. Available: echo, fixed" in str(unknown)
    assert unknown.request_id
    async with official_clients(fleet.url, SessionToken.mint().text) as nobody:
        unauthorized = await refusal_of(nobody, api, 401, stream=stream)
    assert unauthorized.response.headers["www-authenticate"] == "Bearer"
    async with official_clients(fleet.url, await fleet.token(allowed_targets=["echo"])) as narrow:
        forbidden = await refusal_of(narrow, api, 403, stream=stream, model="fixed")
    assert await gateway_client.read_call_count() == 0
    async with official_clients(fleet.url, await fleet.token(0)) as poor:
        spent = await refusal_of(poor, api, 402, stream=stream, model="fixed")
    assert spent.response.headers["x-should-retry"] == "false"
    refusals = (unknown, unauthorized, forbidden, spent)
    if api == "messages":
        types = ["not_found_error", "authentication_error", "permission_error", "billing_error"]
        assert [refused.type for refused in refusals] == types
    else:
        codes = ["model_not_found", "unauthorized", "forbidden_target", "insufficient_quota"]
        assert [refused.code for refused in refusals] == codes
        assert (unknown.param, unknown.type) == ("model", "invalid_request_error")
        assert (forbidden.type, spent.type) == ("permission_error", "insufficient_quota")


@pytest.mark.parametrize("api", CONVERSATIONS)
async def test_a_stream_that_fails_ends_with_an_error(
    fleet: ModelFleet, clients: OfficialClients, gateway_client: GatewayClient, api: ApiName
) -> None:
    fleet.provider.set_responses(
        StreamedResponse(events=CHAT.events(["The ", "first ", "words"]), event_count=3, then="close"),
        ScriptedResponse(status=400, body={"error": {"message": "no", "type": "invalid_request_error"}}),
    )
    heard = ""
    with pytest.raises((openai.APIError, anthropic.APIStatusError)) as failed:
        async for event in await clients.ask[api](**ASK, stream=True):
            heard += str(event)
    assert "The " in heard
    assert not isinstance(failed.value, openai.APIStatusError)
    told: Any = failed.value.body
    told = told.get("error", told) if isinstance(told, dict) else {}
    assert told["charged"] is True
    assert await gateway_client.read_call_count() == 1
    for model, status in (("nope", 404), ("broken", 502)):  # what fails before it has begun has its status
        await refusal_of(clients, api, status, stream=True, model=model)


async def test_a_bad_body_is_400_in_the_format_of_the_api_and_costs_nothing(
    fleet: ModelFleet, gateway_client: GatewayClient
) -> None:
    # Some are refused by the worker. tests/unit/gateway/test_model_bodies.py has what is refused, and by which name.
    wrong = ({"model": "echo"}, {**ASK, "input": "q", "model": "echo", "top_p": "hot"})
    for api, path in PATHS.items():
        for body in (b"{", *wrong):
            status, answer = await gateway_client.post(path, body)
            error = answer["error"]
            assert (status, error["code"], error["charged"]) == (400, "bad_request", False), answer
            assert error["type"] == "invalid_request_error"
            names = {"message", "type", "code", "charged"} | (set() if api == "messages" else {"param"})
            assert (error.keys() >= names, answer.get("type")) == (True, "error" if api == "messages" else None)
            for token in ("", "x", SessionToken.mint().text):  # who has no token hears nothing about the body
                async with open_gateway_client(fleet.url, token) as nobody:
                    status, answer = await nobody.post(path, body)
                assert (status, answer["error"]["message"]) == (401, "Unauthorized")
    assert await gateway_client.read_call_count() == 0


@pytest.mark.parametrize("depth", [100, 250, 400, 900])
async def test_deep_nesting_is_answered_and_never_a_defect(gateway_client: GatewayClient, depth: int) -> None:
    deep = b'{"a": ' * depth + b"1" + b"}" * depth
    body = b'{"model": "echo", "messages": [{"role": "user", "content": "x"}], "response_format": %s}' % deep
    status, answer = await gateway_client.post("/v1/chat/completions", body)
    assert status in {200, 400}, answer
    assert await gateway_client.read_call_count() == (1 if status == 200 else 0)


async def test_what_a_quota_holds_until_its_deadline_is_429(fleet: ModelFleet) -> None:
    slow_down = {"error": {"message": "slow down"}}
    fleet.provider.set_responses(ScriptedResponse(status=429, headers={"retry-after": "60"}, body=slow_down))
    token = await fleet.token(5)
    async with official_clients(fleet.url, token) as clients, open_gateway_client(fleet.url, token) as door:
        deadline = (await door.get("/info"))[1]["now"] + 1500
        more = {"model": "limited", "extra_headers": {"x-quintain-deadline": str(deadline)}}
        calls = (
            clients.ask[api](**{**ASK, **more}, stream=stream)
            for api in ("chat", "messages")
            for stream in (False, True)
        )
        ended: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        info = (await door.get("/info"))[1]
        assert len(clients.sent.requests) == 4
    assert info["now"] >= deadline
    assert (info["callCount"], info["committed"], info["inDoubt"]) == (0, 0, 0)
    assert [type(error) for error in ended] == [openai.RateLimitError] * 2 + [anthropic.RateLimitError] * 2
    for error in ended:
        told = error.body.get("error", error.body)
        assert (told["type"], told["code"], told["charged"]) == ("rate_limit_error", "rate_limit_exceeded", False)
        assert 0 < int(error.response.headers["retry-after"]) <= 60
        assert error.response.headers["x-should-retry"] == "false"


async def test_each_client_finds_the_sentence_and_the_code_that_it_looks_for(
    fleet: ModelFleet, clients: OfficialClients, gateway_client: GatewayClient
) -> None:
    fleet.provider.set_responses(FAILURES["context length"].response)
    assert "prompt is too long" in str(await refusal_of(clients, "messages", 400))
    error = {"type": "invalid_request_error", "message": "prompt is too long: 9000 tokens > 8192 maximum"}
    fleet.provider.set_responses(ScriptedResponse(status=400, body={"type": "error", "error": error}))
    assert (await refusal_of(clients, "chat", 400, model="claude")).code == "context_length_exceeded"
    # AgentV's paths keep the codes of the protocol.
    fleet.provider.set_responses(FAILURES["context length"].response)
    status, answer = await gateway_client.post("/invoke", {"question": "x", "target": "model"})
    assert (status, answer["code"]) == (500, "rejected")


@pytest.mark.parametrize("prefix", ["", "/run/42"])
@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/messages/batches", "/v1/models/a/b", "/v1/"])
async def test_what_is_not_there_is_404_in_the_format_of_the_api(fleet: ModelFleet, prefix: str, path: str) -> None:
    token = await fleet.token(5)
    bearer, anthropics = {"Authorization": f"Bearer {token}"}, {"x-api-key": token, "anthropic-version": "2023-06-01"}
    async with open_gateway_client(fleet.url) as door:
        for method in ("GET", "POST"):
            nobody, there, as_anthropic = [
                await door.http.request(method, prefix + path, headers=headers) for headers in ({}, bearer, anthropics)
            ]
            assert (nobody.status_code, there.status_code, as_anthropic.status_code) == (401, 404, 404)
            assert there.json()["error"]["code"] == as_anthropic.json()["error"]["code"] == "not_found"
            assert (as_anthropic.json()["type"], as_anthropic.json()["error"]["type"]) == ("error", "not_found_error")
            of_anthropic = path.startswith("/v1/messages")
            assert (there.json().get("type") == "error") == (nobody.json().get("type") == "error") == of_anthropic


async def test_agentvs_paths_stay_below_any_prefix_and_a_large_head_has_the_format_of_the_api(
    gateway_client: GatewayClient,
) -> None:
    assert (await gateway_client.post("/x/v1/invoke", {"question": "hi"}))[1]["rawText"] == "hi"
    assert (await gateway_client.get("/v1/info"))[0] == 200
    large = {"x-large": "y" * 20_000}
    assert "code" in (await gateway_client.http.get("/info", headers=large)).json()
    for path in ("/v1/models", "/v1/messages"):
        response = await gateway_client.http.get(path, headers=large)
        assert (response.status_code, response.json()["error"]["type"]) == (431, "invalid_request_error")


async def test_a_limit_in_money_that_is_reached_is_402_in_each_api(fleet: ModelFleet) -> None:
    token = await fleet.token(5, max_cost_usd=0.015)
    async with official_clients(fleet.url, token) as clients, open_gateway_client(fleet.url, token) as door:
        await clients.ask["chat"](**{**ASK, "model": "silent"})
        for api in ("chat", "messages"):
            for stream in (False, True):
                assert "$0.015" in str(await refusal_of(clients, api, 402, stream=stream, model="silent"))
        status, answer = await door.post("/invoke", {"question": "x", "target": "silent"})
        assert (status, answer["code"], answer["charged"]) == (429, "budget_exhausted", False)
        info = (await door.get("/info"))[1]
    assert (info["maxCostUsd"], info["cost"]["spentUsd"], info["callCount"]) == (0.015, 0.01, 1)

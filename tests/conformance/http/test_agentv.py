"""AgentV's proxy API over a real socket: equal to AgentV's own proxy but for listed differences.

AgentV's answers are recorded; tests/clients/test_agentv_proxy.py holds them against the proxy that npm has. To write
the table of ``docs/protocol/fields.md`` again, run this file with ``QUINTAIN_RECORD_SNAPSHOTS=1``. Where
``docs/protocol/http.md`` differs from AgentV on purpose, it wins.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from quintain.programs.agent_urls import session_variables
from support.agentv_requests import CONFIG, DEFAULT_TARGET, RECORDED, REQUESTS, TARGETS, AgentVRequest, answer_of
from support.gateway_client import GatewayClient, open_gateway_client, open_raw_connection, request_head
from support.memory_fleet import MemoryFleet, memory_fleet
from support.pages import assert_documented

pytestmark = pytest.mark.asyncio(loop_scope="module")

MALFORMED = "the caller's mistake, and not the server's"
TYPES = "AgentV checks no type, and its provider gets the value"
METHOD = "405 says which method the path has"
KEY = "the same call: charged once, with the same answer"

#: Why the gateway does not do as AgentV does.
REASONS: Mapping[str, str] = {
    "HEAD /info": METHOD,
    "PUT /invoke": METHOD,
    "info with the scheme in lower case": "a scheme has no case (RFC 9110)",
    "2 MiB": "a body has a limit",
    "target: an object": "the text names the type that is missing",
    "target: null": "`null` is absent: AgentV's Python client sends it for every key that is not set",
    "provider in place of target": "the name that AgentV's later versions have for it",
    "null": MALFORMED,
    "an empty body": MALFORMED,
    "malformed JSON": MALFORMED,
    "a body that is not UTF-8": "AgentV replaces the bytes, and the provider gets another question",
    "NaN": MALFORMED,
    "a key twice": "nobody knows which of the two was meant",
    "systemPrompt: a number": TYPES,
    "evalCaseId: a number": TYPES,
    "attempt: a string": TYPES,
    "attempt: -1": TYPES,
    "the same key again": KEY,
    "the same key again at a spent budget": KEY,
    "a batch that is null": MALFORMED,
    "a batch of malformed JSON": MALFORMED,
    "a batch with an empty body": MALFORMED,
    "malformed JSON at a spent budget": MALFORMED,
    "an item with target: null": "`null` is absent",
    "an item that is null": "its item is an error, and the answers of the others are kept",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MemoryFleet]:
    """The targets of AgentV's recorded answers."""
    async with memory_fleet(tmp_path_factory.mktemp("fleet"), CONFIG) as fleet:
        yield fleet


@pytest_asyncio.fixture(loop_scope="module")
async def gateway_client(fleet: MemoryFleet) -> AsyncIterator[GatewayClient]:
    """A session of five calls."""
    token = (await fleet.open_session(DEFAULT_TARGET, 5)).token
    async with open_gateway_client(fleet.gateway_url, token) as client:
        yield client


async def answer_here(
    fleet: MemoryFleet, http: httpx2.AsyncClient, turns: asyncio.Semaphore, request: AgentVRequest
) -> dict[str, Any]:
    """What the gateway answers, in a session of the request's own."""
    allowed = {} if request.targets == TARGETS else {"allowed_targets": list(request.targets)}
    async with turns:
        token = (await fleet.open_session(DEFAULT_TARGET, request.max_calls, **allowed)).token
        return await answer_of(http, fleet.gateway_url, token, request)


def cell(answer: Mapping[str, Any]) -> str:
    calls = answer["calls"]
    return f"{answer['status']}" + (f", {calls} call{'s' * (calls > 1)}" if calls else "")


async def test_the_gateway_answers_as_agentv_but_for_the_listed_differences(fleet: MemoryFleet) -> None:
    recorded = json.loads(RECORDED.read_text())
    turns = asyncio.Semaphore(10)  # a busy machine answers the last of all at once too late
    async with httpx2.AsyncClient(timeout=60) as http:
        answers = await asyncio.gather(*(answer_here(fleet, http, turns, request) for request in REQUESTS))
    here = {request.name: answer for request, answer in zip(REQUESTS, answers, strict=True)}
    assert recorded.keys() == here.keys()
    differences = {name for name, answer in here.items() if answer != recorded[name]}
    assert {name: (recorded[name], here[name]) for name in differences - REASONS.keys()} == {}
    assert differences == REASONS.keys()
    rows = [[name, cell(recorded[name]), cell(here[name]), reason] for name, reason in REASONS.items()]
    assert_documented("agentv", [["request", "AgentV 4.42.4", "Quintain", "because"], *rows])


async def test_both_eras_of_its_clients_find_their_names(gateway_client: GatewayClient) -> None:
    info = (await gateway_client.get("/info"))[1]
    assert (info["targetName"], info["providerLabel"]) == (DEFAULT_TARGET, DEFAULT_TARGET)
    assert info["availableTargets"] == info["availableProviderLabels"] == [*TARGETS]
    answer = (await gateway_client.post("/invoke", {"question": "q", "provider": "echo"}))[1]
    assert answer["output"] == answer["outputMessages"] == [{"role": "assistant", "content": "q"}]
    for word in ("target", "provider"):
        status, answer = await gateway_client.post("/invoke", {"question": "x", word: "nope"})
        assert (status, answer["error"]) == (400, f"Unknown {word} 'nope'. Available: {', '.join(TARGETS)}")
        assert answer["availableTargets"] == [*TARGETS]


BODY = b'{"question":"q","systemPrompt":"s","evalCaseId":"c","attempt":2,"target":"echo"}'


@pytest.mark.parametrize("prefix", ["", "/run/42"])
@pytest.mark.parametrize("era", ["TARGET", "PROVIDER"])
async def test_the_variables_of_a_grader_lead_here_and_its_two_headers_suffice(
    fleet: MemoryFleet, era: str, prefix: str
) -> None:
    given = session_variables(fleet.gateway_url + prefix, (await fleet.open_session(DEFAULT_TARGET)).token)
    url, token = str(given[f"AGENTV_{era}_PROXY_URL"]), str(given[f"AGENTV_{era}_PROXY_TOKEN"])
    batch = b'{"requests":[%s]}' % BODY
    for method, name, body in (("GET", "info", b""), ("POST", "invoke", BODY), ("POST", "invokeBatch", batch)):
        length = {"Content-Length": str(len(body))} if body else {}
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}", **length}
        async with open_raw_connection(url) as socket:
            await socket.write(request_head(method, f"{prefix}/{name}", headers) + body)
            answer = await socket.read_response()
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")


async def test_a_batch_of_more_than_can_be_reserved_is_413(gateway_client: GatewayClient) -> None:
    status, answer = await gateway_client.post("/invokeBatch", {"requests": [0] * 10_001})
    assert (status, answer["error"]) == (413, "requests: 10001 are too many; a batch has at most 10000")


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"x-quintain-request-id": ""}, 400, "bad_request"),
        ({"x-quintain-request-id": "x" * 129}, 400, "bad_request"),
        *(
            ({"x-quintain-deadline": deadline}, 400, "bad_request")
            for deadline in ("soon", "nan", "inf", "99999999999999.5", "1e14", str(10**14))
        ),
        ({"x-quintain-deadline": "1"}, 504, "expired"),
    ],
)
async def test_terms_that_cannot_be_kept_cost_nothing(
    gateway_client: GatewayClient, headers: dict[str, str], status: int, code: str
) -> None:
    response = await gateway_client.http.post("/invoke", json={"question": "x"}, headers=headers)
    answer = response.json()
    assert (response.status_code, answer["code"], answer["charged"]) == (status, code, False)
    if "x-quintain-deadline" in headers:
        batch = {"requests": [{"question": "x"}]}
        response = await gateway_client.http.post("/invokeBatch", json=batch, headers=headers)
        assert response.status_code == status
    assert await gateway_client.read_call_count() == 0


async def test_messages_may_stand_in_place_of_the_question(gateway_client: GatewayClient) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    ask = {"messages": turns, "target": "echo"}
    assert (await gateway_client.post("/invoke", ask))[1]["rawText"] == "c"
    batch = await gateway_client.post("/invokeBatch", {"requests": [ask, {"messages": []}]})
    assert [item["rawText"] for item in batch[1]["responses"]] == ["c", "Error: Missing required field: question"]


async def test_unknown_keys_are_ignored_and_named_and_unknown_settings_refused(gateway_client: GatewayClient) -> None:
    ask = {"question": "x", "temperature": 2, "model": "x", "nothing": None}
    bodies = {"/invoke": ask, "/invokeBatch": {"requests": [ask, "no request", {"question": "y"}]}}
    for path, body in bodies.items():
        response = await gateway_client.http.post(path, json=body)
        assert (response.status_code, response.headers["x-quintain-ignored"]) == (200, "model, temperature")
    count = await gateway_client.read_call_count()
    settings = {"temprature": 1}
    status, answer = await gateway_client.post("/invoke", {"question": "x", "settings": settings})
    assert (status, answer["code"], answer["parameter"]) == (400, "unsupported_parameter", "temprature")
    assert (answer["charged"], await gateway_client.read_call_count()) == (False, count)
    lenient = {"question": "x", "settings": {**settings, "unsupported": "ignore"}}
    status, answer = await gateway_client.post("/invoke", lenient)
    assert (status, answer["ignored"]) == (200, ["temprature"])

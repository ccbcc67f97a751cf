"""AgentV's proxy API over a real socket, over every transport: what the recorded answers of its own proxy do not show.

Those are compared in `test_agentv_differences`. Numbers in names are those of AgentV's own tests of its proxy; where
``docs/protocol/http.md`` differs from AgentV on purpose, it wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from quintain.settings import MEMORY_URL
from support.gateway_client import GatewayClient, open_gateway_client, open_raw_connection, request_head
from support.memory_fleet import ADMIN_TOKEN, MemoryFleet, memory_fleet
from support.process_fleet import delete_protocol_queues

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = """
targets:
  judge: {provider: mock, response: "Response from judge", token_usage: {input: 10, output: 5}}
  alt-target: {provider: mock, response: "Response from alt-target"}
  echo: {provider: mock}
  mute: {provider: command, command: [printf, "no usage"]}
  silent: {provider: mock, response: ""}
  broken: {provider: mock, fail_rate: 1, max_tries: 1}
  slow: {provider: mock, delay_ms: 300}
"""
TARGETS = ["judge", "alt-target", "echo", "mute", "silent", "broken", "slow"]
AVAILABLE = f"Available: {', '.join(TARGETS)}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(bus_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MemoryFleet]:
    shared = bus_url != MEMORY_URL
    if shared:
        await asyncio.to_thread(delete_protocol_queues, bus_url, TARGETS)
    async with memory_fleet(tmp_path_factory.mktemp("fleet"), CONFIG, broker_url=bus_url) as fleet:
        yield fleet
    if shared:
        await asyncio.to_thread(delete_protocol_queues, bus_url, TARGETS)


@pytest_asyncio.fixture(loop_scope="module")
async def gateway_client(fleet: MemoryFleet) -> AsyncIterator[GatewayClient]:
    """A session of five calls whose default target is judge."""
    async with open_gateway_client(fleet.gateway_url, (await fleet.open_session("judge", 5)).token) as visitor:
        yield visitor


def both_eras(word: str) -> Any:
    """Tests that hold in the target era and in the provider era: upstream has each of them twice."""
    return pytest.mark.parametrize(word, ["target", "provider"])


# The session and the target's name.


async def test_01_info_with_only_a_default(fleet: MemoryFleet) -> None:
    token = (await fleet.open_session("judge", 50, allowed_targets=["judge"])).token
    async with open_gateway_client(fleet.gateway_url, token) as door:
        status, info = await door.get("/info")
    assert status == 200
    # Every era's client finds its keys; ours find the rest of the session beside them.
    assert info.items() >= {"targetName": "judge", "providerLabel": "judge", "maxCalls": 50, "callCount": 0}.items()
    assert info["availableTargets"] == info["availableProviderLabels"] == ["judge"]


@pytest.mark.parametrize("key", ["availableTargets", "availableProviderLabels"])
async def test_02_info_lists_every_target_once(gateway_client: GatewayClient, key: str) -> None:
    # AgentV lists the evaluated target twice.
    assert (await gateway_client.get("/info"))[1][key] == TARGETS


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer{}", "Basic {}", "Bearer x{}", "{}"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/info"), ("POST", "/invoke"), ("POST", "/invokeBatch"), ("GET", "/nowhere"), ("HEAD", "/info")],
)
async def test_04_without_its_token_every_path_is_401(
    fleet: MemoryFleet, header: str | None, method: str, path: str
) -> None:
    token = (await fleet.open_session("judge")).token
    headers = {} if header is None else {"Authorization": header.format(token)}
    async with open_gateway_client(fleet.gateway_url) as door:
        response = await door.http.request(method, path, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert method == "HEAD" or response.json()["error"] == "Unauthorized"


@both_eras("word")
async def test_06_an_invoke_names_its_target(gateway_client: GatewayClient, word: str) -> None:
    status, answer = await gateway_client.post("/invoke", {"question": "x", word: "alt-target"})
    assert (status, answer["rawText"]) == (200, "Response from alt-target")


@both_eras("word")
@pytest.mark.parametrize("name", ["nope", ""])
async def test_07_an_unknown_target_is_400_in_the_callers_word(
    gateway_client: GatewayClient, word: str, name: str
) -> None:
    status, answer = await gateway_client.post("/invoke", {"question": "x", word: name})
    assert (status, answer["error"]) == (400, f"Unknown {word} '{name}'. {AVAILABLE}")
    assert answer["availableTargets"] == TARGETS
    assert await gateway_client.read_call_count() == 0


# What AgentV's `getUsageMetadata()` adds up, our sessions do.


async def read_usage(fleet: MemoryFleet, session_id: str) -> tuple[int, dict[str, int]]:
    async with open_gateway_client(fleet.gateway_url, ADMIN_TOKEN) as admin:
        told = (await admin.get(f"/sessions/{session_id}"))[1]
    return told["callCount"], told["tokenUsage"]


async def wait_for_usage(fleet: MemoryFleet, session_id: str, calls: int) -> tuple[int, dict[str, int]]:
    """The counters once the last settle has arrived: an answer does not wait for it."""
    async with asyncio.timeout(60), open_gateway_client(fleet.gateway_url, ADMIN_TOKEN) as admin:
        while (await admin.get(f"/sessions/{session_id}"))[1]["committed"] < calls:
            await asyncio.sleep(0.02)
    return await read_usage(fleet, session_id)


async def test_10_three_invokes_add_up_their_tokens(fleet: MemoryFleet) -> None:
    session = await fleet.open_session("judge")
    async with open_gateway_client(fleet.gateway_url, session.token) as door:
        for _ in range(3):
            await door.post("/invoke", {"question": "x"})
    assert await wait_for_usage(fleet, session.session_id, 3) == (3, {"input": 30, "output": 15})


async def test_12_a_provider_that_counts_no_tokens_costs_a_call_all_the_same(fleet: MemoryFleet) -> None:
    session = await fleet.open_session("mute")
    async with open_gateway_client(fleet.gateway_url, session.token) as door:
        status, answer = await door.post("/invoke", {"question": "x"})
    assert (status, answer["rawText"], "tokenUsage" in answer) == (200, "no usage", False)
    assert await wait_for_usage(fleet, session.session_id, 1) == (1, {"input": 0, "output": 0})


# What AgentV's client sends, and relies on.

BODY = b'{"question":"q","systemPrompt":"s","evalCaseId":"c","attempt":2,"target":"echo"}'


@pytest.mark.parametrize("prefix", ["", "/run/42"])
@pytest.mark.parametrize("era", ["TARGET", "PROVIDER"])
async def test_14_to_16_the_variables_of_a_grader_lead_here(fleet: MemoryFleet, era: str, prefix: str) -> None:
    from quintain.programs.session_variables import session_variables

    given = session_variables(fleet.gateway_url + prefix, (await fleet.open_session("judge")).token)
    url, token = given[f"AGENTV_{era}_PROXY_URL"], given[f"AGENTV_{era}_PROXY_TOKEN"]
    assert url
    assert token
    async with open_gateway_client(fleet.gateway_url, token) as door:
        assert (await door.get(f"{url}/info"))[0] == 200


@pytest.mark.parametrize("prefix", ["", "/run/42"])
@pytest.mark.parametrize(
    ("method", "name", "body"),
    [("GET", "info", b""), ("POST", "invoke", BODY), ("POST", "invokeBatch", b'{"requests":[%s]}' % BODY)],
)
async def test_17_to_20_24_27_its_three_methods_send_two_headers(
    fleet: MemoryFleet, method: str, name: str, body: bytes, prefix: str
) -> None:
    token = (await fleet.open_session("judge")).token
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    if body:
        headers["Content-Length"] = str(len(body))
    async with open_raw_connection(fleet.gateway_url) as socket:
        await socket.write(request_head(method, f"{prefix}/{name}", headers) + body)
        answer = await socket.read_response()
    assert answer is not None
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")


async def test_21_30_an_invoke_answers_under_both_names(gateway_client: GatewayClient) -> None:
    status, answer = await gateway_client.post("/invoke", BODY)
    assert (status, answer["rawText"], answer["target"]) == (200, "q", "echo")
    assert answer["output"] == answer["outputMessages"] == [{"role": "assistant", "content": "q"}]


# Refusals.


@pytest.mark.parametrize("body", [b"[" * 100_000, {"question": "x", "target": "judge", "provider": "echo"}])
async def test_a_bad_invoke_is_400_and_costs_nothing(gateway_client: GatewayClient, body: object) -> None:
    status, answer = await gateway_client.post("/invoke", body)
    assert (status, answer["code"], answer["charged"]) == (400, "bad_request", False)
    assert await gateway_client.read_call_count() == 0


async def test_a_batch_of_more_than_can_be_reserved_is_413(gateway_client: GatewayClient) -> None:
    status, answer = await gateway_client.post("/invokeBatch", {"requests": [0] * 10_001})
    assert (status, answer["error"]) == (413, "requests: 10001 are too many; a batch has at most 10000")


async def test_a_batch_runs_in_parallel(fleet: MemoryFleet) -> None:
    # AgentV runs it one by one: ten times 0.3 s would be three seconds.
    items = [{"question": str(n), "target": "slow"} for n in range(10)]
    async with open_gateway_client(fleet.gateway_url, (await fleet.open_session("judge")).token) as door:
        began = asyncio.get_running_loop().time()
        status, answer = await door.post("/invokeBatch", {"requests": items})
        assert asyncio.get_running_loop().time() - began < 2
    assert (status, [item["rawText"] for item in answer["responses"]]) == (200, [str(n) for n in range(10)])


async def test_parallel_batches_overspend_nothing(fleet: MemoryFleet) -> None:
    async with open_gateway_client(fleet.gateway_url, (await fleet.open_session("slow", 10)).token) as door:
        batch = {"requests": [{"question": str(n)} for n in range(4)]}
        answers = await asyncio.gather(*(door.post("/invokeBatch", batch) for _ in range(5)))
        assert sorted(status for status, _ in answers) == [200, 200, 429, 429, 429]
        assert await door.read_call_count() == 8


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/info?usage=1"),
        ("POST", "/invoke?usage=true"),
        ("POST", "/invoke?x=1"),
        ("GET", "/inf%6F"),
        ("GET", "/Info"),
        ("GET", "/"),
        ("PUT", "/x"),
        ("PROPFIND", "/x"),
    ],
)
async def test_everything_else_is_404_behind_the_token(gateway_client: GatewayClient, method: str, path: str) -> None:
    response = await gateway_client.http.request(method, path)
    assert response.status_code == 404
    assert method == "HEAD" or response.json()["error"] == "Not found"


@pytest.mark.parametrize("method", ["PUT", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", ["/info", "/invoke", "/prefix/invokeBatch"])
async def test_another_method_of_its_paths_is_405_in_its_own_words(
    gateway_client: GatewayClient, method: str, path: str
) -> None:
    response = await gateway_client.http.request(method, path)
    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == ("GET" if path == "/info" else "POST")


async def test_twenty_sockets_that_stall_between_headers_and_body_overspend_nothing(fleet: MemoryFleet) -> None:
    token = (await fleet.open_session("judge", 1)).token
    body = b'{"question": "x"}'
    headers = {"Authorization": f"Bearer {token}", "Content-Length": str(len(body)), "Connection": "close"}

    async def stall(all_wait: asyncio.Barrier) -> int:
        async with open_raw_connection(fleet.gateway_url) as socket:
            await socket.write(request_head("POST", "/invoke", headers))
            await all_wait.wait()
            await asyncio.sleep(0.2)
            await socket.write(body)
            answer = await socket.read_response()
        assert answer is not None
        return answer.status

    barrier = asyncio.Barrier(20)
    statuses = await asyncio.gather(*(stall(barrier) for _ in range(20)))
    assert sorted(statuses) == [200] + [429] * 19


async def test_unknown_keys_are_ignored_and_named_and_unknown_settings_refused(gateway_client: GatewayClient) -> None:
    ask = {"question": "x", "maxOutputTokens": 5, "colour": None}
    response = await gateway_client.http.post("/invoke", json=ask)
    assert (response.status_code, response.headers["x-quintain-ignored"]) == (200, "maxOutputTokens")
    batch = await gateway_client.http.post("/invokeBatch", json={"requests": [ask, "no request", {"question": "y"}]})
    assert (batch.status_code, batch.headers["x-quintain-ignored"]) == (200, "maxOutputTokens")
    count = await gateway_client.read_call_count()
    status, answer = await gateway_client.post("/invoke", {"question": "x", "settings": {"temprature": 1}})
    assert (status, answer["code"], answer["parameter"]) == (400, "unsupported_parameter", "temprature")
    assert (answer["charged"], await gateway_client.read_call_count()) == (False, count)
    settings = {"temprature": 1, "unsupported": "ignore"}
    status, answer = await gateway_client.post("/invoke", {"question": "x", "settings": settings})
    assert (status, answer["ignored"]) == (200, ["temprature"])

"""AgentV's proxy API over a real socket, over every transport: what upstream tests, and the whole of its status table.

Where ``docs/protocol/http.md`` differs from AgentV on purpose, it wins; each such place is said beside its test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from quintain.contracts.credentials import SessionToken
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


# Upstream's cases 1 to 9, twice.


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


async def test_03_info_counts_an_invoke(gateway_client: GatewayClient) -> None:
    await gateway_client.post("/invoke", {"question": "x"})
    assert await gateway_client.read_call_count() == 1


@pytest.mark.parametrize("header", [None, "", "Bearer", "bearer {}", "Basic {}", "Bearer x{}", "{}"])
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


async def test_05_an_invoke_without_a_target_is_the_defaults(gateway_client: GatewayClient) -> None:
    status, answer = await gateway_client.post("/invoke", {"question": "x"})
    assert (status, answer["rawText"]) == (200, "Response from judge")


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


@both_eras("word")
async def test_08_a_batch_asks_each_ones_target(gateway_client: GatewayClient, word: str) -> None:
    status, answer = await gateway_client.post(
        "/invokeBatch", {"requests": [{"question": "a"}, {"question": "b", word: "alt-target"}]}
    )
    assert status == 200
    assert [one["rawText"] for one in answer["responses"]] == ["Response from judge", "Response from alt-target"]


@both_eras("word")
async def test_09_an_unknown_target_in_a_batch_is_its_items_alone(gateway_client: GatewayClient, word: str) -> None:
    status, answer = await gateway_client.post(
        "/invokeBatch", {"requests": [{"question": "a"}, {"question": "b", word: "nope"}]}
    )
    assert status == 200
    assert answer["responses"][0]["rawText"] == "Response from judge"
    assert answer["responses"][1]["rawText"] == f"Error: Unknown {word} 'nope'. {AVAILABLE}"


# Upstream's cases 10 to 13: what its `getUsageMetadata()` adds up, our sessions do.


async def read_usage(fleet: MemoryFleet, session_id: str) -> tuple[int, dict[str, int]]:
    async with open_gateway_client(fleet.gateway_url, ADMIN_TOKEN) as admin:
        told = (await admin.get(f"/sessions/{session_id}"))[1]
    return told["callCount"], told["tokenUsage"]


async def wait_for_usage(fleet: MemoryFleet, session_id: str, calls: int) -> tuple[int, dict[str, int]]:
    """The counters once the last settle has arrived: an answer does not wait for it."""
    async with asyncio.timeout(10), open_gateway_client(fleet.gateway_url, ADMIN_TOKEN) as admin:
        while (await admin.get(f"/sessions/{session_id}"))[1]["committed"] < calls:
            await asyncio.sleep(0.02)
    return await read_usage(fleet, session_id)


async def test_10_three_invokes_add_up_their_tokens(fleet: MemoryFleet) -> None:
    session = await fleet.open_session("judge")
    async with open_gateway_client(fleet.gateway_url, session.token) as door:
        for _ in range(3):
            await door.post("/invoke", {"question": "x"})
    assert await wait_for_usage(fleet, session.session_id, 3) == (3, {"input": 30, "output": 15})


async def test_11_an_invoke_tells_its_tokens(gateway_client: GatewayClient) -> None:
    assert (await gateway_client.post("/invoke", {"question": "x"}))[1]["tokenUsage"] == {"input": 10, "output": 5}


async def test_12_a_provider_that_counts_no_tokens_costs_a_call_all_the_same(fleet: MemoryFleet) -> None:
    session = await fleet.open_session("mute")
    async with open_gateway_client(fleet.gateway_url, session.token) as door:
        status, answer = await door.post("/invoke", {"question": "x"})
    assert (status, answer["rawText"], "tokenUsage" in answer) == (200, "no usage", False)
    assert await wait_for_usage(fleet, session.session_id, 1) == (1, {"input": 0, "output": 0})


async def test_13_a_batch_adds_up_its_tokens(fleet: MemoryFleet) -> None:
    session = await fleet.open_session("judge")
    async with open_gateway_client(fleet.gateway_url, session.token) as door:
        await door.post("/invokeBatch", {"requests": [{"question": "a"}, {"question": "b"}]})
    assert await wait_for_usage(fleet, session.session_id, 2) == (2, {"input": 20, "output": 10})


# Upstream's cases 14 to 34 are its client's, with `fetch` mocked: here is what that client sends, and relies on.
# 14 to 16 (the pair of variables) are held by tests/unit/runner/test_grader_environment.py as well.

BODY = b'{"question":"q","systemPrompt":"s","evalCaseId":"c","attempt":2,"target":"echo"}'


@pytest.mark.parametrize("prefix", ["", "/run/42"])
@pytest.mark.parametrize("era", ["TARGET", "PROVIDER"])
async def test_14_to_16_the_variables_of_a_grader_lead_here(fleet: MemoryFleet, era: str, prefix: str) -> None:
    from quintain_runner.graders.base import session_variables

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


async def test_22_a_spent_budget_is_429_with_its_sentence(gateway_client: GatewayClient) -> None:
    for _ in range(5):
        assert (await gateway_client.post("/invoke", {"question": "x"}))[0] == 200
    status, answer = await gateway_client.post("/invoke", {"question": "x"})
    assert (status, answer["error"], answer["code"]) == (429, "Max calls exceeded (limit: 5)", "budget_exhausted")
    # As in AgentV, it comes before what is wrong with a request, but never before the replay of a known call.
    for body in ({}, b"{", {"question": "x", "target": "nope"}):
        assert (await gateway_client.post("/invoke", body))[1]["code"] == "budget_exhausted"
    assert await gateway_client.read_call_count() == 5


async def test_23_a_providers_failure_is_500_and_costs_one(gateway_client: GatewayClient) -> None:
    status, answer = await gateway_client.post("/invoke", {"question": "x", "target": "broken"})
    assert (status, answer["code"], answer["charged"]) == (500, "provider_error", True)
    assert await gateway_client.read_call_count() == 1


async def test_25_31_a_batch_keeps_its_order_and_each_ones_target(gateway_client: GatewayClient) -> None:
    items = [{"question": "1", "target": "echo"}, {"question": "2"}, {"question": "3", "target": "echo"}]
    answer = (await gateway_client.post("/invokeBatch", {"requests": items}))[1]
    assert [one["rawText"] for one in answer["responses"]] == ["1", "Response from judge", "3"]
    assert all(one["output"] == one["outputMessages"] for one in answer["responses"])


async def test_26_a_batch_larger_than_what_is_left_is_429_and_costs_nothing(gateway_client: GatewayClient) -> None:
    assert (await gateway_client.post("/invoke", {"question": "x"}))[0] == 200
    # Bad items count too, as in AgentV.
    items = [{"question": "1"}, None, {}, {"question": "4"}, {"question": "5", "target": "nope"}]
    status, answer = await gateway_client.post("/invokeBatch", {"requests": items})
    assert (status, answer["error"]) == (429, "Batch would exceed max calls (current: 1, batch: 5, limit: 5)")
    assert await gateway_client.read_call_count() == 1


async def test_28_info_counts_what_is_left(fleet: MemoryFleet) -> None:
    async with open_gateway_client(fleet.gateway_url, (await fleet.open_session("judge")).token) as door:
        for _ in range(5):
            await door.post("/invoke", {"question": "x"})
        told = (await door.get("/info"))[1]
    assert (told["targetName"], told["maxCalls"], told["callCount"]) == ("judge", 50, 5)


@pytest.mark.parametrize("path", ["/info", "/invoke", "/invokeBatch", "/nowhere"])
async def test_29_a_token_that_opens_nothing_is_401_before_anything_else(fleet: MemoryFleet, path: str) -> None:
    async with open_gateway_client(fleet.gateway_url, SessionToken.mint().text) as door:
        method = "GET" if path in {"/info", "/nowhere"} else "POST"
        status, answer = await door.send(method, path, b"{")
    assert (status, answer["error"]) == (401, "Unauthorized")


async def test_32_to_34_every_refusal_has_a_sentence_and_its_status(gateway_client: GatewayClient) -> None:
    refusals = {
        400: await gateway_client.post("/invoke", {}),
        404: await gateway_client.get("/nowhere"),
        413: await gateway_client.post("/invoke", {"question": "x" * 1024 * 1024}),
        500: await gateway_client.post("/invoke", {"question": "x", "target": "broken"}),
    }
    for expected, (status, answer) in refusals.items():
        assert status == expected
        assert isinstance(answer["error"], str)
        assert answer["error"]


async def test_35_a_graders_own_max_calls_is_its_limit(fleet: MemoryFleet) -> None:
    # Upstream's 36 refuses `target:` in an evaluation file; ours takes it, and no gateway sees it.
    async with open_gateway_client(fleet.gateway_url, (await fleet.open_session("judge", 2)).token) as door:
        statuses = [(await door.post("/invoke", {"question": "x"}))[0] for _ in range(3)]
    assert statuses == [200, 200, 429]


# The statuses of AgentV's proxy, where no case above has the row.


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"question": "ok?", "target": None, "provider": None}, "Response from judge"),
        ({"question": "ok?", "systemPrompt": None, "evalCaseId": None, "attempt": None}, "Response from judge"),
        ({"question": " ", "attempt": 0, "somethingNew": {"a": 1}}, "Response from judge"),
        ({"question": "ok?", "target": "judge"}, "Response from judge"),
        ({"question": "ok?", "target": "silent"}, ""),
    ],
)
async def test_what_agentvs_clients_of_every_language_send_is_answered(
    gateway_client: GatewayClient, body: dict[str, object], text: str
) -> None:
    # `null` is absent: with AgentV's own proxy its Python client fails.
    status, answer = await gateway_client.post("/invoke", body)
    assert (status, answer["rawText"]) == (200, text)
    assert await gateway_client.read_call_count() == 1


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "Missing required field: question"),
        ({"question": ""}, "Missing required field: question"),
        ({"question": 7}, "Missing required field: question"),
        ([], "Missing required field: question"),
        # AgentV answers 500 to these three.
        (b"null", "Missing required field: question"),
        (b"", "The body is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"{", None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
        ({"question": "x", "attempt": "two"}, None),
        ({"question": "x", "target": "judge", "provider": "echo"}, None),
    ],
)
async def test_a_bad_invoke_is_400_and_costs_nothing(
    gateway_client: GatewayClient, body: object, sentence: str | None
) -> None:
    status, answer = await gateway_client.post("/invoke", body)
    assert (status, answer["code"], answer["charged"]) == (400, "bad_request", False)
    assert sentence is None or answer["error"] == sentence
    assert await gateway_client.read_call_count() == 0


async def test_a_batch_loses_nothing_to_a_bad_a_null_or_a_failing_item(gateway_client: GatewayClient) -> None:
    items = [
        {"question": "a", "target": "echo"},
        None,
        {"question": "b", "target": "broken"},
        {},
        {"question": "c"},
    ]
    status, answer = await gateway_client.post("/invokeBatch", {"requests": items})
    assert status == 200
    assert [item["rawText"] for item in answer["responses"]] == [
        "a",
        "Error: Missing required field: question",
        "Error: mock: failed, as fail_rate asks for",
        "Error: Missing required field: question",
        "Response from judge",
    ]
    assert [item.get("code") for item in answer["responses"]] == [
        None, "bad_request", "provider_error", "bad_request", None,
    ]  # fmt: skip
    assert answer["responses"][1]["output"] == answer["responses"][1]["outputMessages"] == []
    assert await gateway_client.read_call_count() == 3  # the failed one had reached its provider


async def test_an_empty_batch_is_answered_at_the_limit(fleet: MemoryFleet) -> None:
    async with open_gateway_client(fleet.gateway_url, (await fleet.open_session("judge", 0)).token) as door:
        assert await door.post("/invokeBatch", {"requests": []}) == (200, {"responses": []})
        assert (await door.post("/invoke", {"question": "x"}))[1]["error"] == "Max calls exceeded (limit: 0)"


@pytest.mark.parametrize("body", [{}, {"requests": "x"}, {"requests": None}, {"requests": {}}, [], b"null"])
async def test_a_batch_without_requests_is_400(gateway_client: GatewayClient, body: object) -> None:
    status, answer = await gateway_client.post("/invokeBatch", body)
    assert (status, answer["error"]) == (400, "Missing required field: requests (array)")


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
        ("POST", "/info"),
        ("GET", "/invoke"),
        ("PUT", "/invoke"),
        ("HEAD", "/info"),
        ("TRACE", "/info"),
        ("GET", "/info/"),
        ("GET", "/info?x=1"),
        ("GET", "/info?perTarget=1"),
        ("POST", "/invoke?perTarget=true"),
        ("POST", "/invoke?x=1"),
        ("GET", "/inf%6F"),
        ("GET", "/Info"),
        ("GET", "/"),
        ("PUT", "/x"),
    ],
)
async def test_everything_else_is_404_behind_the_token(gateway_client: GatewayClient, method: str, path: str) -> None:
    response = await gateway_client.http.request(method, path)
    assert response.status_code == 404
    assert method == "HEAD" or response.json()["error"] == "Not found"


async def test_options_needs_no_token_on_any_path_and_every_answer_carries_cors(
    fleet: MemoryFleet, gateway_client: GatewayClient
) -> None:
    async with open_gateway_client(fleet.gateway_url) as nobody:
        preflights = [await nobody.http.options(path) for path in ("/info", "/anything?x=1", "/a/b/c", "/sessions")]
        refused = await nobody.http.get("/info")
    assert [(one.status_code, one.content) for one in preflights] == [(204, b"")] * 4
    answers = [
        await gateway_client.http.get("/info"),
        await gateway_client.http.post("/invoke", content=b"{"),
        await gateway_client.http.get("/no"),
    ]
    for response in (*preflights, refused, *answers):
        assert response.headers["access-control-allow-origin"] == "*"
        assert response.headers["access-control-allow-methods"] == "GET, POST, OPTIONS"
        assert response.headers["access-control-allow-headers"] == "Content-Type, Authorization"


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

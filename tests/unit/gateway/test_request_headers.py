"""What AgentV's paths take and tell beyond AgentV's own words: a request id, a deadline, messages, whole faults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.gateway_client import GatewayClient, encode_body, open_gateway_client
from support.memory_fleet import MemoryFleet, memory_fleet

CONFIG = "targets: {echo: {provider: mock}, broken: {provider: mock, fail_rate: 1, max_tries: 1}}\n"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[MemoryFleet]:
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        yield fleet


@pytest.fixture
async def gateway_client(fleet: MemoryFleet) -> AsyncIterator[GatewayClient]:
    async with open_gateway_client(
        fleet.gateway_url, (await fleet.open_session("echo", 9, label="mine")).token
    ) as door:
        yield door


async def post(gateway_client: GatewayClient, path: str, body: object, headers: Mapping[str, str]) -> tuple[int, Any]:
    response = await gateway_client.http.post(path, content=encode_body(body), headers=headers)
    return response.status_code, response.json()


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"x-quintain-request-id": ""}, 400, "bad_request"),
        ({"x-quintain-request-id": "x" * 129}, 400, "bad_request"),
        ({"x-quintain-deadline": "soon"}, 400, "bad_request"),
        ({"x-quintain-deadline": "nan"}, 400, "bad_request"),
        ({"x-quintain-deadline": "inf"}, 400, "bad_request"),
        ({"x-quintain-deadline": "99999999999999.5"}, 400, "bad_request"),
        ({"x-quintain-deadline": "1e14"}, 400, "bad_request"),
        ({"x-quintain-deadline": str(10**14)}, 400, "bad_request"),
        ({"x-quintain-deadline": "1"}, 504, "expired"),
    ],
)
async def test_terms_that_cannot_be_kept_cost_nothing(
    fleet: MemoryFleet, gateway_client: GatewayClient, headers: dict[str, str], status: int, code: str
) -> None:
    answered, answer = await post(gateway_client, "/invoke", {"question": "x"}, headers)
    assert (answered, answer["code"], answer["charged"]) == (status, code, False)
    if "x-quintain-deadline" in headers:
        assert (await post(gateway_client, "/invokeBatch", {"requests": [{"question": "x"}]}, headers))[0] == status
    assert await gateway_client.read_call_count() == 0


async def test_messages_may_stand_in_place_of_the_question(gateway_client: GatewayClient) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert (await gateway_client.post("/invoke", {"messages": turns}))[1]["rawText"] == "c"
    batch = await gateway_client.post("/invokeBatch", {"requests": [{"messages": turns}, {"messages": []}]})
    assert [item["rawText"] for item in batch[1]["responses"]] == ["c", "Error: Missing required field: question"]
    for both in ({"question": "x", "messages": turns}, {"question": 7, "messages": turns}):
        assert (await gateway_client.post("/invoke", both))[1]["code"] == "bad_request"

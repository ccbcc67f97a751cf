"""Answers that take long, over a broker: a target whose worker is away, clients that wait, and that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from quintain_gateway.settings import GatewayLimits
from support.gateway_client import GatewayClient, open_gateway_client
from support.model_fleet import ModelFleet, model_fleet
from support.official_clients import OfficialClients

pytestmark = pytest.mark.asyncio(loop_scope="module")

AWAY = "targets: {away: {provider: mock, token_usage: {input: 1, output: 2}}}\n"
AWAY_AND_BROKEN = "targets: {away: {provider: mock, fail_rate: 1, max_tries: 1}}\n"
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
ASK: dict[str, Any] = {"model": "away", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello there"}]}

both_apis = pytest.mark.parametrize("path", [CHAT, MESSAGES])


@pytest.fixture(scope="module")
def bus_url(broker_url: str) -> str:
    return broker_url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(bus_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModelFleet]:
    limits = GatewayLimits(keep_alive_seconds=0.2)
    folder = tmp_path_factory.mktemp("fleet")
    async with model_fleet(folder, broker_url=bus_url, limits=limits, more=("away",)) as fleet:
        async with fleet.worker(AWAY):
            pass  # it is registered, and gone
        yield fleet


@contextlib.asynccontextmanager
async def open_waiting_stream(fleet: ModelFleet, path: str, max_calls: int = 5) -> AsyncIterator[Any]:
    """A response whose headers have come, and the visitor who asked."""
    async with (
        open_gateway_client(fleet.url, await fleet.token(max_calls)) as door,
        door.http.stream("POST", path, json={**ASK, "stream": True}) as response,
    ):
        assert response.status_code == 200
        yield response, door


async def wait_for_call_count(gateway_client: GatewayClient, calls: int) -> None:
    async with asyncio.timeout(60):
        while await gateway_client.read_call_count() != calls:
            await asyncio.sleep(0.02)


async def ask_in_four_ways(clients: OfficialClients, fleet: ModelFleet, worker: str) -> list[Any]:
    """What both clients are answered, whole and streamed, by a worker that comes while they wait."""

    async def streamed_chat() -> str:
        stream = await clients.openai.chat.completions.create(**ASK, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def streamed_message() -> str:
        async with clients.anthropic.messages.stream(**ASK) as stream:
            return await stream.get_final_text()

    asked: list[Any] = [clients.ask["chat"](**ASK), clients.ask["messages"](**ASK), streamed_chat(), streamed_message()]
    tasks = [asyncio.create_task(each) for each in asked]
    await asyncio.sleep(0.7)  # several times as long as it takes to be kept waiting, and as a stream holds its status
    assert not any(task.done() for task in tasks)
    async with fleet.worker(worker):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_official_clients_wait_and_are_answered(fleet: ModelFleet, clients: OfficialClients) -> None:
    whole, message, streamed, text = await ask_in_four_ways(clients, fleet, AWAY)
    assert [whole.choices[0].message.content, message.content[0].text, streamed, text] == ["Hello there"] * 4


async def test_what_fails_late_is_the_clients_own_exception_or_its_error_event(
    fleet: ModelFleet, clients: OfficialClients
) -> None:
    failed = await ask_in_four_ways(clients, fleet, AWAY_AND_BROKEN)
    assert [type(error) for error in failed[:2]] == [openai.InternalServerError, anthropic.InternalServerError]
    assert [error.status_code for error in failed[:2]] == [502, 502]
    assert (isinstance(failed[2], openai.APIError), isinstance(failed[3], anthropic.APIError)) == (True, True)
    assert failed[0].code == failed[2].code == "provider_error"
    assert failed[1].body["error"]["code"] == failed[3].body["error"]["code"] == "provider_error"
    assert len(clients.sent.requests) == 4


async def test_who_waits_holds_the_budget_and_the_next_one_hears_that(fleet: ModelFleet) -> None:
    async with open_waiting_stream(fleet, CHAT, max_calls=1) as (_, door):
        status, answer = await door.post(CHAT, ASK)
        assert (status, answer["error"]["message"]) == (402, "Max calls exceeded (limit: 1)")
        assert await door.read_call_count() == 1


@both_apis
async def test_a_stream_that_is_waited_for_is_kept_alive(fleet: ModelFleet, path: str) -> None:
    async with open_waiting_stream(fleet, path) as (response, _):
        lines = response.aiter_lines()
        heard = 0
        async for line in lines:
            heard += line == ": keep-alive"
            if heard == 3:
                break
        async with fleet.worker(AWAY):
            assert [line async for line in lines if "Hello" in line]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_that_passes_in_the_queue_is_504_or_the_last_event(fleet: ModelFleet, stream: bool) -> None:
    async with open_gateway_client(fleet.url, await fleet.token(5)) as door:
        now = (await door.get("/info"))[1]["now"]

        async def answer_by(milliseconds: int, **more: object) -> Any:
            headers = {"x-quintain-deadline": str(now + milliseconds)}
            return await door.http.post(CHAT, json={**ASK, **more}, headers=headers)

        response = await answer_by(1000, stream=stream)
        assert response.status_code == (200 if stream else 504)
        error = json.loads(response.text.strip().splitlines()[-1].removeprefix("data: "))["error"]
        assert (error["code"], error["charged"]) == ("expired", False)
        await wait_for_call_count(door, 0)
        response = await answer_by(-1)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "expired")
        response = await answer_by(3_600_000)  # no answer is held for so long, and it is not cut
        assert response.status_code == 400
        assert "Idempotency-Key" in response.json()["error"]["message"]


@both_apis
async def test_who_leaves_a_waiting_stream_has_the_call_taken_back(fleet: ModelFleet, path: str) -> None:
    async with open_waiting_stream(fleet, path) as (_, door):
        await wait_for_call_count(door, 1)
        async with (
            open_gateway_client(fleet.url, door.token) as other,
            other.http.stream("POST", path, json={**ASK, "stream": True}),
        ):
            await wait_for_call_count(door, 2)
        await wait_for_call_count(door, 1)  # the one above still waits
    async with open_gateway_client(fleet.url, door.token) as again:
        await wait_for_call_count(again, 0)

"""Answers that take long, over every transport: a target whose worker is away, clients that wait, and clients that
leave."""

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
from support.official_clients import anthropic_client, openai_client

pytestmark = pytest.mark.asyncio(loop_scope="module")

AWAY = "targets: {away: {provider: mock, token_usage: {input: 1, output: 2}}}\n"
AWAY_AND_BROKEN = "targets: {away: {provider: mock, fail_rate: 1, max_tries: 1}}\n"
HELLO: Any = [{"role": "user", "content": "Hello there"}]
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
ASK: dict[str, object] = {"model": "away", "max_tokens": 100, "messages": HELLO}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(bus_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModelFleet]:
    limits = GatewayLimits(keep_alive_seconds=0.2)
    async with model_fleet(
        tmp_path_factory.mktemp("fleet"), broker_url=bus_url, limits=limits, more=("away",)
    ) as fleet:
        async with fleet.worker(AWAY):
            pass  # it is registered, and gone
        yield fleet


@contextlib.asynccontextmanager
async def open_waiting_stream(fleet: ModelFleet, path: str, max_calls: int = 5, **body: object) -> AsyncIterator[Any]:
    """A response whose headers have come, and the visitor who asked."""
    async with (
        open_gateway_client(fleet.url, await fleet.token(max_calls)) as door,
        door.http.stream("POST", path, json={**ASK, **body}) as response,
    ):
        yield response, door


async def wait_for_call_count(gateway_client: GatewayClient, calls: int) -> None:
    async with asyncio.timeout(60):
        while await gateway_client.read_call_count() != calls:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_spent_budget_is_told_before_the_headers(fleet: ModelFleet, path: str, stream: bool) -> None:
    async with open_waiting_stream(fleet, path, max_calls=0, stream=stream) as (response, _):
        assert response.status_code == 402
        assert json.loads(await response.aread())["error"]["code"] == "insufficient_quota"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_forbidden_target_is_told_before_the_headers(fleet: ModelFleet, path: str, stream: bool) -> None:
    async with open_gateway_client(fleet.url, await fleet.token(5, allowed_targets=["echo"])) as door:
        status, answer = await door.post(path, {**ASK, "stream": stream})
        assert (status, answer["error"]["code"]) == (403, "forbidden_target")
        assert await door.read_call_count() == 0


async def test_who_waits_holds_the_budget_and_the_next_one_hears_that(fleet: ModelFleet) -> None:
    async with open_waiting_stream(fleet, CHAT, max_calls=1, stream=True) as (response, door):
        assert response.status_code == 200
        status, answer = await door.post(CHAT, ASK)
        assert (status, answer["error"]["message"]) == (402, "Max calls exceeded (limit: 1)")
        assert await door.read_call_count() == 1
    async with open_gateway_client(fleet.url, door.token) as again:
        await wait_for_call_count(again, 0)


async def test_the_official_clients_wait_and_are_answered(fleet: ModelFleet) -> None:
    token = await fleet.token(5)
    async with (
        openai_client(fleet.url, token) as (of_openai, _),
        anthropic_client(fleet.url, token) as (of_anthropic, _),
    ):
        asked = [
            asyncio.create_task(of_openai.chat.completions.create(model="away", messages=HELLO)),
            asyncio.create_task(of_anthropic.messages.create(model="away", max_tokens=5, messages=HELLO)),
            asyncio.create_task(_streamed_text(of_openai)),
            asyncio.create_task(_streamed_message(of_anthropic)),
        ]
        await asyncio.sleep(0.7)  # several times as long as it takes to be kept waiting
        assert not any(task.done() for task in asked)
        async with fleet.worker(AWAY):
            whole, message, streamed, text = await asyncio.gather(*asked)
    assert whole.choices[0].message.content == streamed == text == "Hello there"  # type: ignore[attr-defined]
    assert message.content[0].to_dict()["text"] == "Hello there"  # type: ignore[attr-defined]


async def _streamed_text(client: openai.AsyncOpenAI) -> str:
    stream = await client.chat.completions.create(model="away", messages=HELLO, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def _streamed_message(client: anthropic.AsyncAnthropic) -> str:
    async with client.messages.stream(model="away", max_tokens=5, messages=HELLO) as stream:
        return await stream.get_final_text()


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_stream_that_is_waited_for_is_kept_alive(fleet: ModelFleet, path: str) -> None:
    async with open_waiting_stream(fleet, path, stream=True) as (response, _):
        assert response.status_code == 200
        lines = response.aiter_lines()
        heard = 0
        async for line in lines:
            heard += line == ": keep-alive"
            if heard == 3:
                break
        async with fleet.worker(AWAY):
            rest = [line async for line in lines if "Hello" in line]
    assert rest


async def test_what_fails_late_is_the_clients_own_exception_or_its_error_event(fleet: ModelFleet) -> None:
    token = await fleet.token(5)
    async with (
        openai_client(fleet.url, token) as (of_openai, sent),
        anthropic_client(fleet.url, token) as (of_anthropic, sent_by_anthropic),
    ):
        asked = [
            asyncio.create_task(of_openai.chat.completions.create(model="away", messages=HELLO)),
            asyncio.create_task(of_anthropic.messages.create(model="away", max_tokens=5, messages=HELLO)),
            asyncio.create_task(_streamed_text(of_openai)),
            asyncio.create_task(_streamed_message(of_anthropic)),
        ]
        await asyncio.sleep(0.5)  # longer than a stream holds its status
        async with fleet.worker(AWAY_AND_BROKEN):
            failed: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(error) for error in failed[:2]] == [openai.InternalServerError, anthropic.InternalServerError]
    assert [error.status_code for error in failed[:2]] == [502, 502]
    assert isinstance(failed[2], openai.APIError)
    assert isinstance(failed[3], anthropic.APIError)
    assert failed[0].code == failed[2].code == "provider_error"
    assert failed[1].body["error"]["code"] == failed[3].body["error"]["code"] == "provider_error"
    assert (len(sent.requests), len(sent_by_anthropic.requests)) == (2, 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_that_passes_in_the_queue_is_504_or_the_last_event(fleet: ModelFleet, stream: bool) -> None:
    async with open_gateway_client(fleet.url, await fleet.token(5)) as door:
        now = (await door.get("/info"))[1]["now"]
        headers = {"x-quintain-deadline": str(now + 1000)}
        response = await door.http.post(CHAT, json={**ASK, "stream": stream}, headers=headers)
        assert response.status_code == (200 if stream else 504)
        last = response.text.strip().splitlines()[-1].removeprefix("data: ")
        assert (json.loads(last)["error"]["code"], json.loads(last)["error"]["charged"]) == ("expired", False)
        await wait_for_call_count(door, 0)
        response = await door.http.post(CHAT, json=ASK, headers={"x-quintain-deadline": str(now - 1)})
        assert (response.status_code, response.json()["error"]["code"]) == (504, "expired")


async def test_a_deadline_for_which_no_answer_is_held_is_refused_and_not_cut(fleet: ModelFleet) -> None:
    async with open_gateway_client(fleet.url, await fleet.token(5)) as door:
        now = (await door.get("/info"))[1]["now"]
        response = await door.http.post(CHAT, json=ASK, headers={"x-quintain-deadline": str(now + 3_600_000)})
        assert response.status_code == 400
        assert "Idempotency-Key" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_who_leaves_a_waiting_stream_has_the_call_taken_back(fleet: ModelFleet, path: str) -> None:
    async with open_waiting_stream(fleet, path, stream=True) as (_, door):
        await wait_for_call_count(door, 1)
        async with (
            open_gateway_client(fleet.url, door.token) as other,
            other.http.stream("POST", path, json={**ASK, "stream": True}),
        ):
            await wait_for_call_count(door, 2)
        await wait_for_call_count(door, 1)  # the one above still waits
    async with open_gateway_client(fleet.url, door.token) as again:
        await wait_for_call_count(again, 0)


async def _post_and_leave(door: GatewayClient, path: str, headers: dict[str, str]) -> None:
    asked = asyncio.create_task(door.http.post(path, json=ASK, headers=headers))
    await asyncio.sleep(0.4)
    asked.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asked


@pytest.mark.parametrize("stream", [False, True])
async def test_who_leaves_under_a_key_is_answered_when_coming_back(fleet: ModelFleet, stream: bool) -> None:
    key = {"Idempotency-Key": f"mine {stream}"}
    async with open_gateway_client(fleet.url, await fleet.token(5)) as door:
        if stream:
            async with door.http.stream("POST", CHAT, json={**ASK, "stream": stream}, headers=key):
                await wait_for_call_count(door, 1)
        else:
            await _post_and_leave(door, CHAT, key)
        async with fleet.worker(AWAY):
            response = await door.http.post(CHAT, json=ASK, headers=key)
        assert response.json()["choices"][0]["message"]["content"] == "Hello there"
        assert await door.read_call_count() == 1


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_who_leaves_a_stream_in_the_middle_has_the_call_cancelled(fleet: ModelFleet, path: str) -> None:
    async with open_gateway_client(fleet.url, await fleet.token(5)) as door:
        before = await _cancelled_calls(door, "endless")
        ask = {**ASK, "model": "endless", "stream": True}
        async with door.http.stream("POST", path, json=ask) as response:
            async for line in response.aiter_lines():
                if "one" in line:
                    break
        async with asyncio.timeout(10):
            while await _cancelled_calls(door, "endless") == before:
                await asyncio.sleep(0.02)
            # Its worker was told, long before the mock would have said its next word.
            while (await door.get("/info"))[1]["running"]:
                await asyncio.sleep(0.02)


async def _cancelled_calls(gateway_client: GatewayClient, target: str) -> float:
    lines = (await gateway_client.http.get("/metrics")).text.splitlines()
    wanted = f'quintain_gateway_calls_total{{code="cancelled",target="{target}"}}'
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted))

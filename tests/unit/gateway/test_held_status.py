"""Whole answers that take long: how long the status is held, the early status, and retries that join their call."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from quintain_gateway.settings import GatewayLimits
from support.gateway_client import GatewayClient, open_gateway_client
from support.memory_fleet import MemoryFleet, memory_fleet
from support.official_clients import openai_client

CONFIG = """
targets:
  slow: {provider: mock, delay_ms: 1500, response: "At last"}
  broken: {provider: mock, delay_ms: 1200, fail_rate: 1, max_tries: 1}
  words: {provider: mock, response: "one two three four", chunk_delay_ms: 400}
"""
CHAT = "/v1/chat/completions"

#: How long the official clients wait at least before they retry. A gateway may see the end of a stream that late.
BACKOFF_SECONDS = 0.5
HELLO: Any = [{"role": "user", "content": "Hello"}]
ASK = {"model": "slow", "messages": HELLO}


@contextlib.asynccontextmanager
async def open_door(folder: Path, **limits: Any) -> AsyncIterator[tuple[GatewayClient, MemoryFleet]]:
    async with (
        memory_fleet(folder, CONFIG, limits=GatewayLimits(keep_alive_seconds=0.2, **limits)) as fleet,
        open_gateway_client(fleet.gateway_url, (await fleet.open_session("slow", 5)).token) as door,
    ):
        yield door, fleet


async def test_a_whole_answer_that_takes_too_long_is_504_and_its_call_is_ended(tmp_path: Path) -> None:
    async with open_door(tmp_path, answer_seconds=0.4) as (door, _):
        async with openai_client(str(door.http.base_url).rstrip("/"), door.token) as (client, sent):
            with pytest.raises(openai.InternalServerError) as late:
                await client.chat.completions.create(model="slow", messages=HELLO)
        assert (late.value.status_code, late.value.code, len(sent.requests)) == (504, "timeout", 1)
        info = (await door.get("/info"))[1]
        assert (info["running"], info["callCount"]) == (0, 1)


async def test_a_call_under_the_clients_key_goes_on_after_its_504(tmp_path: Path) -> None:
    async with open_door(tmp_path, answer_seconds=0.4) as (door, _):
        headers = {"Idempotency-Key": "mine"}
        late = await door.http.post(CHAT, json=ASK, headers=headers)
        assert (late.status_code, late.headers["x-should-retry"]) == (504, "true")
        assert late.json()["error"]["code"] == "still_running"
        async with asyncio.timeout(10):
            while (answer := await door.http.post(CHAT, json=ASK, headers=headers)).status_code == 504:
                await asyncio.sleep(0.05)
        assert answer.json()["choices"][0]["message"]["content"] == "At last"
        assert await door.read_call_count() == 1


@pytest.mark.parametrize(("model", "expected"), [("slow", "At last"), ("broken", None)])
async def test_an_early_status_is_200_and_the_body_begins_with_newlines(
    tmp_path: Path, model: str, expected: str | None
) -> None:
    async with open_door(tmp_path, early_status=True) as (door, _):
        async with door.http.stream("POST", CHAT, json={**ASK, "model": model}) as response:
            assert (response.status_code, "x-quintain-call-count" in response.headers) == (200, False)
            raw = response.aiter_raw()
            assert (await anext(raw)).strip() == b""
            body = json.loads(b"".join([piece async for piece in raw]))
        if expected is None:
            assert (body["error"]["code"], body["error"]["charged"]) == ("provider_error", True)
        else:
            assert body["choices"][0]["message"]["content"] == expected


async def test_the_retry_of_a_client_that_gave_up_joins_its_call(tmp_path: Path) -> None:
    async with open_door(tmp_path) as (door, _):
        url = str(door.http.base_url).rstrip("/")
        async with openai_client(url, door.token, timeout=1, max_retries=3) as (client, sent):
            answer = await client.chat.completions.create(model="slow", messages=HELLO)
        assert answer.choices[0].message.content == "At last"
        assert len(sent.requests) > 1
        assert await door.read_call_count() == 1


async def post_and_leave(door: GatewayClient, headers: dict[str, str], *, times: int = 1, **body: object) -> None:
    """Ask so many times at once, leave as soon as all of these calls run, and wait as official clients do."""
    before = await count_running(door)
    posts = [asyncio.create_task(door.http.post(CHAT, json={**ASK, **body}, headers=headers)) for _ in range(times)]
    async with asyncio.timeout(10):
        while await count_running(door) < before + times:
            await asyncio.sleep(0.02)
    for post in posts:
        post.cancel()
    assert [type(left) for left in await asyncio.gather(*posts, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * times
    await asyncio.sleep(BACKOFF_SECONDS)


async def count_running(door: GatewayClient) -> int:
    return int((await door.get("/info"))[1]["running"])


def attempt(number: int) -> dict[str, str]:
    return {"x-stainless-retry-count": str(number)}


async def test_the_retry_of_a_stream_begins_with_its_first_word(tmp_path: Path) -> None:
    async with open_door(tmp_path) as (door, _):
        await post_and_leave(door, attempt(0), model="words", stream=True)
        response = await door.http.post(CHAT, json={**ASK, "model": "words", "stream": True}, headers=attempt(1))
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
        assert text == "one two three four"
        assert await door.read_call_count() == 1


async def test_only_a_retry_with_one_candidate_joins_a_call(tmp_path: Path) -> None:
    async with open_door(tmp_path) as (door, _):
        await post_and_leave(door, attempt(0), times=2)
        ask_again = door.http.post(CHAT, json=ASK, headers=attempt(1))
        assert (await ask_again).status_code == 200
        assert await door.read_call_count() == 3  # two candidates: it is a call of its own
        await post_and_leave(door, attempt(0), temperature=1)
        assert (await door.http.post(CHAT, json={**ASK, "temperature": 0}, headers=attempt(1))).status_code == 200
        assert await door.read_call_count() == 5  # another body


async def test_a_session_never_joins_the_call_of_another_one(tmp_path: Path) -> None:
    async with open_door(tmp_path) as (door, fleet):
        await post_and_leave(door, attempt(0))
        async with open_gateway_client(fleet.gateway_url, (await fleet.open_session("slow", 5)).token) as other:
            assert (await other.http.post(CHAT, json=ASK, headers=attempt(1))).status_code == 200
            assert await other.read_call_count() == 1


async def test_a_call_that_no_retry_joins_is_cancelled(tmp_path: Path) -> None:
    async with open_door(tmp_path, retry_window_seconds=0.2) as (door, _):
        await post_and_leave(door, attempt(0))
        async with asyncio.timeout(10):
            while 'code="cancelled",target="slow"} 1.0' not in (await door.http.get("/metrics")).text:
                await asyncio.sleep(0.02)

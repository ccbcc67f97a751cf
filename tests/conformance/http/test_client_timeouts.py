"""Clients that give up by a timeout of their own, and answers that take too long: who is told what."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
import pytest_asyncio

from quintain_gateway.settings import GatewayLimits
from support.gateway_client import GatewayClient, open_gateway_client
from support.memory_fleet import MemoryFleet, memory_fleet
from support.model_fleet import ModelFleet, model_fleet
from support.model_server import ScriptedResponse
from support.model_wires import ANTHROPIC, CHAT
from support.official_clients import official_clients

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "Hello"}]
FULL = "targets: {full: {provider: mock, delay_ms: 3500, max_concurrency: 1}}\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModelFleet]:
    """A fleet with the limits of a deployment: a call goes on for as long as its client may wait before it retries."""
    async with model_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


async def ask(fleet: ModelFleet, client: str, model: str, token: str, *, stream: bool = False, **options: Any) -> Any:
    """What a client of its own says of one call, whole or streamed; its status where that is an error."""
    async with official_clients(fleet.url, token, **{"max_retries": 0, **options}) as clients:
        more: Any = {"model": model, "messages": HELLO, "stream": stream, "max_tokens": 9}
        try:
            answer: Any = await clients.ask[client](**more)
            if stream:
                return "".join([chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices])
            return answer.choices[0].message.content if client == "chat" else answer.content[0].text
        except (openai.APIStatusError, anthropic.APIStatusError) as refused:
            return refused.status_code, refused.response.headers.get("retry-after")


async def test_a_throttled_call_is_429_before_its_client_gives_up(fleet: ModelFleet) -> None:
    fleet.provider.set_responses(ScriptedResponse(status=429, headers={"retry-after": "30"}, body={}))
    token = await fleet.token()
    asked = [
        ask(fleet, client, "limited", token, stream=stream, timeout=4)
        for client in ("chat", "messages")
        for stream in (False, True)
    ]
    for status, retry_after in await asyncio.gather(*asked):
        assert (status, 0 < int(retry_after or 0) <= 30) == (429, True)


async def test_a_call_that_still_waits_is_504_before_its_client_gives_up(fleet: ModelFleet) -> None:
    async with fleet.worker(FULL):
        token = await fleet.token()
        running = asyncio.create_task(ask(fleet, "chat", "full", token, timeout=30))
        await asyncio.sleep(0.5)
        waiting = [
            ask(fleet, client, "full", token, stream=stream, timeout=2)
            for client in ("chat", "messages")
            for stream in (False, True)
        ]
        # The smallest timeout counts, on every path.
        bodies: dict[str, Any] = {
            "/invoke": {"question": "Hello", "target": "full"},
            "/v1/responses": {"model": "full", "input": "Hello"},
            "/p/v1/messages": {"model": "full", "messages": HELLO, "max_tokens": 9},
        }
        said = {"x-stainless-read-timeout": "2", "x-stainless-timeout": "600.0", "authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(base_url=fleet.url, headers=said) as http:
            posts = [http.post(path, json=body, timeout=20) for path, body in bodies.items()]
            ended = await asyncio.gather(*waiting, *posts)
        assert [each[0] if isinstance(each, tuple) else each.status_code for each in ended] == [504] * 7
        assert await running == "Hello"
        async with open_gateway_client(fleet.url, token) as door:
            assert await door.read_call_count() == 1


async def test_a_call_at_its_provider_goes_on_and_the_clients_retry_joins_it(fleet: ModelFleet) -> None:
    fleet.provider.response_for = lambda request: ScriptedResponse(
        body=(CHAT if "chat" in request.path else ANTHROPIC).answer("Fine."), delay_seconds=3
    )
    asked, token = len(fleet.provider.requests), await fleet.token()
    named = {"default_headers": {"idempotency-key": "mine"}}
    try:
        answers = await asyncio.gather(
            ask(fleet, "chat", "model", token, timeout=2, max_retries=9),
            ask(fleet, "messages", "claude", token, timeout=2, max_retries=9, **named),
        )
    finally:
        fleet.provider.response_for = None
    assert (answers, len(fleet.provider.requests) - asked) == (["Fine."] * 2, 2)


async def test_a_stream_of_a_call_at_its_provider_is_kept_open(fleet: ModelFleet) -> None:
    assert await ask(fleet, "chat", "slow", await fleet.token(), stream=True, timeout=1) == "Hello"


@pytest.mark.parametrize("said", ["0", "-3", "nan", "inf", "1e9", "soon", "", "1, 2", "None", "9" * 30])
async def test_a_timeout_that_says_no_seconds_bounds_nothing(fleet: ModelFleet, said: str) -> None:
    headers = {"authorization": f"Bearer {await fleet.token()}", "x-stainless-timeout": said}
    async with httpx2.AsyncClient(base_url=fleet.url, headers=headers) as http:
        body = {"model": "words", "messages": HELLO}
        assert (await http.post(PATH, json=body, timeout=30)).status_code == 200


# Gateways with other limits: how long the status of a whole answer is held, and which retries join a call.

CONFIG = """
targets:
  slow: {provider: mock, delay_ms: 1500, response: "At last"}
  broken: {provider: mock, delay_ms: 1200, fail_rate: 1, max_tries: 1}
  words: {provider: mock, response: "one two three four", chunk_delay_ms: 400}
"""

#: How long the official clients wait at least before they retry. A gateway may see the end of a stream that late.
BACKOFF_SECONDS = 0.5
ASK = {"model": "slow", "messages": HELLO}


@contextlib.asynccontextmanager
async def open_door(folder: Path, **limits: Any) -> AsyncIterator[tuple[GatewayClient, MemoryFleet]]:
    async with (
        memory_fleet(folder, CONFIG, limits=GatewayLimits(keep_alive_seconds=0.2, **limits)) as fleet,
        open_gateway_client(fleet.gateway_url, (await fleet.open_session("slow", 5)).token) as door,
    ):
        yield door, fleet


async def test_a_whole_answer_that_takes_too_long_is_504_and_only_a_named_call_goes_on(tmp_path: Path) -> None:
    async with open_door(tmp_path, answer_seconds=0.4) as (door, _):
        late = await door.http.post(PATH, json=ASK)
        assert (late.status_code, late.json()["error"]["code"], late.headers["x-should-retry"]) == (
            504,
            "timeout",
            "false",
        )
        info = (await door.get("/info"))[1]
        assert (info["running"], info["callCount"]) == (0, 1)
        headers = {"Idempotency-Key": "mine"}
        late = await door.http.post(PATH, json=ASK, headers=headers)
        assert (late.status_code, late.headers["x-should-retry"]) == (504, "true")
        assert late.json()["error"]["code"] == "still_running"
        async with asyncio.timeout(10):
            while (answer := await door.http.post(PATH, json=ASK, headers=headers)).status_code == 504:
                await asyncio.sleep(0.05)
        assert answer.json()["choices"][0]["message"]["content"] == "At last"
        assert await door.read_call_count() == 2


async def test_an_early_status_is_200_and_the_body_begins_with_newlines(tmp_path: Path) -> None:
    async with open_door(tmp_path, early_status=True) as (door, _):

        async def body_of(model: str) -> Any:
            async with door.http.stream("POST", PATH, json={**ASK, "model": model}) as response:
                assert (response.status_code, "x-quintain-call-count" in response.headers) == (200, False)
                raw = response.aiter_raw()
                assert (await anext(raw)).strip() == b""
                return json.loads(b"".join([piece async for piece in raw]))

        answered, failed = await asyncio.gather(body_of("slow"), body_of("broken"))
    assert answered["choices"][0]["message"]["content"] == "At last"
    assert (failed["error"]["code"], failed["error"]["charged"]) == ("provider_error", True)


async def post_and_leave(door: GatewayClient, *, times: int = 1, **body: object) -> None:
    """Ask so many times at once, leave as soon as all of these calls run, and wait as official clients do."""

    async def count_running() -> int:
        return int((await door.get("/info"))[1]["running"])

    before = await count_running()
    posts = [asyncio.create_task(door.http.post(PATH, json={**ASK, **body}, headers=attempt(0))) for _ in range(times)]
    async with asyncio.timeout(10):
        while await count_running() < before + times:
            await asyncio.sleep(0.02)
    for post in posts:
        post.cancel()
    await asyncio.gather(*posts, return_exceptions=True)
    await asyncio.sleep(BACKOFF_SECONDS)


def attempt(number: int) -> dict[str, str]:
    return {"x-stainless-retry-count": str(number)}


async def test_a_retry_joins_the_call_that_its_client_left_and_begins_with_the_first_word(tmp_path: Path) -> None:
    async with open_door(tmp_path) as (door, _):
        await post_and_leave(door, model="words", stream=True)
        response = await door.http.post(PATH, json={**ASK, "model": "words", "stream": True}, headers=attempt(1))
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
        assert (text, await door.read_call_count()) == ("one two three four", 1)


async def test_only_a_retry_with_one_candidate_of_its_session_joins_a_call(tmp_path: Path) -> None:
    async def answered(door: GatewayClient, **body: object) -> None:
        assert (await door.http.post(PATH, json={**ASK, **body}, headers=attempt(1))).status_code == 200

    async with open_door(tmp_path) as (door, fleet), contextlib.AsyncExitStack() as stack:
        tokens = [(await fleet.open_session("slow", 5)).token for _ in range(3)]
        two, other, stranger = [
            await stack.enter_async_context(open_gateway_client(fleet.gateway_url, token)) for token in tokens
        ]
        await asyncio.gather(post_and_leave(two, times=2), post_and_leave(other, temperature=1), post_and_leave(door))
        # Two candidates, another body, another session: each is a call of its own.
        await asyncio.gather(answered(two), answered(other, temperature=0), answered(stranger))
        assert [await each.read_call_count() for each in (two, other, stranger)] == [3, 2, 1]


async def test_a_call_that_no_retry_joins_is_cancelled(tmp_path: Path) -> None:
    async with open_door(tmp_path, retry_window_seconds=0.2) as (door, _):
        await post_and_leave(door)
        async with asyncio.timeout(10):
            while 'code="cancelled",target="slow"} 1.0' not in (await door.http.get("/metrics")).text:
                await asyncio.sleep(0.02)

"""A client that gives up by a timeout of its own: it is told in time that its call waits, and what runs goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest
import pytest_asyncio

from support.gateway_client import open_gateway_client
from support.model_fleet import OVER_MEMORY, ModelFleet, model_fleet
from support.model_server import ScriptedResponse
from support.model_wires import ANTHROPIC, CHAT

pytestmark = [pytest.mark.asyncio(loop_scope="module"), OVER_MEMORY]

HELLO: Any = [{"role": "user", "content": "Hello"}]
FULL = "targets: {full: {provider: mock, delay_ms: 6000, max_concurrency: 1}}\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(bus_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModelFleet]:
    """A fleet with the limits of a deployment: a call goes on for as long as its client may wait before it retries."""
    async with model_fleet(tmp_path_factory.mktemp("fleet"), broker_url=bus_url) as fleet:
        yield fleet


async def ask(fleet: ModelFleet, client: str, model: str, token: str, *, stream: bool = False, **options: Any) -> Any:
    """What a client of its own says of one call, whole or streamed; its status where that is an error."""
    more = {"api_key": token, "max_retries": 0, **options}
    of_openai = openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", **more)
    of_anthropic = anthropic.AsyncAnthropic(base_url=fleet.url, **more)
    try:
        if client == "anthropic":
            answer: Any = await of_anthropic.messages.create(model=model, max_tokens=9, messages=HELLO, stream=stream)
            return [event async for event in answer][-1].type if stream else answer.content[0].text
        answer = await of_openai.chat.completions.create(model=model, messages=HELLO, stream=stream)
        if stream:
            return "".join([chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices])
        return answer.choices[0].message.content
    except (openai.APIStatusError, anthropic.APIStatusError) as refused:
        return refused.status_code, refused.response.headers.get("retry-after")
    finally:
        await of_openai.close()
        await of_anthropic.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", ["openai", "anthropic"])
async def test_a_throttled_call_is_429_before_its_client_gives_up(fleet: ModelFleet, client: str, stream: bool) -> None:
    fleet.provider.set_responses(ScriptedResponse(status=429, headers={"retry-after": "30"}, body={}))
    status, retry_after = await ask(fleet, client, "limited", await fleet.token(), stream=stream, timeout=8)
    assert (status, 0 < int(retry_after or 0) <= 30) == (429, True)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_still_waits_is_504_before_its_client_gives_up(fleet: ModelFleet, stream: bool) -> None:
    async with fleet.worker(FULL):
        token = await fleet.token()
        running = asyncio.create_task(ask(fleet, "openai", "full", token, timeout=30))
        await asyncio.sleep(0.5)
        waiting = [ask(fleet, client, "full", token, stream=stream, timeout=2) for client in ("openai", "anthropic")]
        assert await asyncio.gather(*waiting) == [(504, None), (504, None)]
        assert await running == "Hello"
        async with open_gateway_client(fleet.url, token) as door:
            assert await door.read_call_count() == 1


@pytest.mark.parametrize("options", [{}, {"default_headers": {"idempotency-key": "mine"}}])
@pytest.mark.parametrize("client", ["openai", "anthropic"])
async def test_a_call_at_its_provider_goes_on_and_the_clients_retry_joins_it(
    fleet: ModelFleet, client: str, options: dict[str, Any]
) -> None:
    answer = CHAT.answer("Fine.") if client == "openai" else ANTHROPIC.answer("Fine.")
    fleet.provider.set_responses(ScriptedResponse(body=answer, delay_seconds=3))
    fleet.provider.requests.clear()
    token, model = await fleet.token(), "model" if client == "openai" else "claude"
    assert await ask(fleet, client, model, token, timeout=2, max_retries=9, **options) == "Fine."
    assert len(fleet.provider.requests) == 1


async def test_a_stream_of_a_call_at_its_provider_is_kept_open(fleet: ModelFleet) -> None:
    assert await ask(fleet, "openai", "slow", await fleet.token(), stream=True, timeout=1) == "Hello"


@pytest.mark.parametrize("said", ["0", "-3", "nan", "inf", "1e9", "soon", "", "1, 2", "None", "9" * 30])
async def test_a_timeout_that_says_no_seconds_bounds_nothing(fleet: ModelFleet, said: str) -> None:
    headers = {"authorization": f"Bearer {await fleet.token()}", "x-stainless-timeout": said}
    async with httpx2.AsyncClient(base_url=fleet.url, headers=headers) as http:
        body = {"model": "words", "messages": HELLO}
        assert (await http.post("/v1/chat/completions", json=body, timeout=30)).status_code == 200


async def test_the_smallest_timeout_counts_on_every_path(fleet: ModelFleet) -> None:
    async with fleet.worker(FULL):
        token = await fleet.token()
        running = asyncio.create_task(ask(fleet, "openai", "full", token, timeout=30))
        await asyncio.sleep(2)  # it has the only slot by now
        said = [
            ("x-stainless-read-timeout", "2"),
            ("x-stainless-timeout", "600.0"),
            ("authorization", f"Bearer {token}"),
        ]
        bodies = {
            "/invoke": {"question": "Hello", "target": "full"},
            "/v1/responses": {"model": "full", "input": "Hello"},
            "/p/v1/messages": {"model": "full", "messages": HELLO, "max_tokens": 9},
        }
        async with httpx2.AsyncClient(base_url=fleet.url, headers=said) as http:
            answers = await asyncio.gather(*(http.post(path, json=body, timeout=20) for path, body in bodies.items()))
        assert [answer.status_code for answer in answers] == [504, 504, 504]
        running.cancel()

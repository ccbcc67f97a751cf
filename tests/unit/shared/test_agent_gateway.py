"""The gateway of an agent: its key stands for a session's token, and calls are passed on to a gateway elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from quintain.programs.agent_gateway import AgentUrlApp, forward_agent_urls
from quintain.programs.agent_urls import NO_GATEWAY, AgentUrls
from quintain.runtime.http_server import LOOPBACK, open_listener, serve_uvicorn, url_of

# The loopback that passes the calls of a program's URL on to a gateway on another machine.


class Gateway:
    """Answers with what it was sent, or with two pieces, of which the second waits for ``go_on``."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = (await request.body()).decode()
        headers = dict(request.headers)
        answer: Response = JSONResponse([request.method, scope["path"], request.url.query, headers, body], 418)
        if body == "stream":
            answer = StreamingResponse(self._pieces(), media_type="text/event-stream", headers={"x-request-id": "r1"})
        await answer(scope, receive, send)

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield b"one"
        await self.go_on.wait()
        yield b"two"


@asynccontextmanager
async def forwarded(url: str) -> AsyncIterator[tuple[AgentUrls, aiohttp.ClientSession]]:
    async with forward_agent_urls(url, {}) as urls, aiohttp.ClientSession() as http:
        yield urls, http


async def test_a_request_reaches_the_gateway_with_the_token_for_which_its_url_stands() -> None:
    gateway, listener = Gateway(), open_listener(LOOPBACK, 0)
    async with (
        serve_uvicorn(listener, gateway, "gateway"),
        forwarded(f"{url_of('http', LOOPBACK, listener)}/below") as (urls, http),
    ):
        url = urls.add()
        key = url.url.rpartition("/")[2]
        sent = {"headers": {"authorization": f"Bearer {key}", "x-api-key": key, "x-own": "kept"}, "data": "stream"}
        async with http.post(f"{url.url}/v1/messages", **sent) as early:  # type: ignore[arg-type]
            assert early.status == 401
        with url.standing_for("token"):
            async with http.post(f"{url.url}/v1/messages?beta=1%2B1", **{**sent, "data": "hi"}) as response:  # type: ignore[arg-type]
                method, path, query, headers, body = await response.json()
            assert (response.status, method, path, query, body) == (
                418,
                "POST",
                "/below/v1/messages",
                "beta=1%2B1",
                "hi",
            )
            assert (headers["authorization"], headers["x-own"]) == ("Bearer token", "kept")
            assert "x-api-key" not in headers
            # A client that takes no URL with a path has the key only.
            async with http.post(f"{urls.base_url}/v1/messages", **sent) as response:  # type: ignore[arg-type]
                assert await response.content.readexactly(3) == b"one"
                gateway.go_on.set()
                assert await response.content.read() == b"two"
            assert (response.status, response.content_type) == (200, "text/event-stream")
            assert response.headers["x-request-id"] == "r1"


async def test_a_gateway_that_cannot_be_reached_is_an_error_of_the_call() -> None:
    async with forwarded(NO_GATEWAY) as (urls, http):
        url = urls.add()
        with url.standing_for("token"):
            async with http.get(f"{url.url}/v1/models") as response:
                assert (response.status, (await response.json())["code"]) == (502, "target_unavailable")


# The key of an agent's own gateway: read from either header, in any spelling of its scheme.


async def passed_on(scope: Scope, receive: Receive, send: Send) -> None:
    headers = Request(scope).headers
    await Response(f"{headers.getlist('authorization')} {headers.get('x-api-key')}")(scope, receive, send)


@pytest.mark.parametrize(
    ("headers", "is_known"),
    [
        ([("authorization", "Bearer KEY")], True),
        ([("authorization", "bearer   KEY")], True),
        ([("authorization", "BEARER\t KEY")], True),
        ([("x-api-key", "KEY")], True),
        ([("x-api-key", ""), ("authorization", "Bearer KEY")], True),
        ([("x-api-key", "another"), ("authorization", "Bearer KEY")], True),
        ([("authorization", "Bearer KEY"), ("authorization", "Bearer KEY")], True),
        ([("authorization", "Bearer KEY"), ("authorization", "Bearer another")], False),
        ([("authorization", "BearerKEY")], False),
        ([("authorization", "Basic KEY")], False),
        ([("authorization", "KEY")], False),
        ([("authorization", "Bearer")], False),
        ([("x-api-key", "")], False),
        ([], False),
    ],
)
async def test_an_agents_key_stands_for_its_sessions_token(headers: list[tuple[str, str]], is_known: bool) -> None:
    urls = AgentUrls("http://127.0.0.1:9")
    app = AgentUrlApp(passed_on, urls, lambda _, fault: Response(status_code=fault.status))
    transport, url = httpx2.ASGITransport(app=app), urls.add()
    key = url.url.rpartition("/")[2]
    sent = [(name, value.replace("KEY", key)) for name, value in headers]
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client:
        with url.standing_for("the token"):
            answer = await client.get("/v1/models", headers=sent)
    assert answer.status_code == (200 if is_known else 401)
    assert not is_known or answer.text == "['Bearer the token'] None"

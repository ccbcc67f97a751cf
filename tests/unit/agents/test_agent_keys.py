"""The key of an agent's own gateway: read from either header, in any spelling of its scheme."""

from __future__ import annotations

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quintain.programs.agent_gateway import AgentUrlApp
from quintain.programs.agent_urls import AgentUrls


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

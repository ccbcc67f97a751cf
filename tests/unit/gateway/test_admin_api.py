"""Sessions over HTTP: opened, listed, amended and closed with the admin token, and by nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from quintain.client.client import Client
from quintain.client.http_transport import open_http_transport
from quintain.contracts.credentials import SessionToken
from quintain.contracts.session import SessionState
from quintain.errors import Unauthorized
from quintain_metadata.ledger import sessions
from support.gateway_client import GatewayClient, open_gateway_client
from support.memory_fleet import ADMIN_TOKEN, MemoryFleet, memory_fleet

CONFIG = "targets: {echo: {provider: mock}}\n"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MemoryFleet]:
    async with memory_fleet(tmp_path_factory.mktemp("fleet"), CONFIG) as fleet:
        yield fleet


@pytest_asyncio.fixture(loop_scope="module")
async def admin(fleet: MemoryFleet) -> AsyncIterator[GatewayClient]:
    async with open_gateway_client(fleet.gateway_url, ADMIN_TOKEN) as admin:
        yield admin


async def test_the_sessions_come_a_page_at_a_time(
    fleet: MemoryFleet, admin: GatewayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PAGE_SIZE", 5)
    for old in [one["sessionId"] for one in (await admin.get("/sessions?state=open"))[1]["sessions"]]:
        await admin.send("DELETE", f"/sessions/{old}")
    ids = [(await fleet.open_session("echo")).session_id for _ in range(8)]
    await admin.send("DELETE", f"/sessions/{ids[0]}")
    listed: list[str] = []
    cursor, pages = "", 0
    while cursor is not None:
        status, page = await admin.get(f"/sessions?state=open&cursor={cursor}")
        assert status == 200
        listed += [one["sessionId"] for one in page["sessions"]]
        cursor, pages = page.get("cursor"), pages + 1
    assert (pages, len(listed), set(listed)) == (2, 7, set(ids[1:]))


@pytest.mark.parametrize("session_id", ["nobody", "0" * 12, "a%00b", "%F0%9F%92%A9", "a" * 2000, "%2e%2e"])
@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
async def test_a_session_that_is_not_there_is_404(admin: GatewayClient, method: str, session_id: str) -> None:
    status, answer = await admin.send(method, f"/sessions/{session_id}", {"maxCalls": 1} if method == "PATCH" else None)
    assert (status, answer["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/sessions", b""),
        ("POST", "/sessions", b"[]"),
        ("POST", "/sessions", {"defaultTarget": "two words"}),
        ("POST", "/sessions", {"defaultTarget": "echo", "maxCalls": 10**30}),
        *(
            ("POST", "/sessions", b'{"defaultTarget": "echo", "maxCostUsd": %b}' % amount)
            for amount in (b"0", b"-1", b"NaN", b"1e400", b"1000001", b'"25$"', b'"25"', b"true")
        ),
        ("PATCH", "/sessions/{id}", b'{"maxCostUsd": 0}'),
        ("POST", "/sessions", {"defaultTarget": "echo", "x" * 5000: 1}),
        ("PATCH", "/sessions/{id}", {"max_call": 5}),
        ("GET", "/sessions?stat=open", None),
        ("GET", "/sessions?state=ajar", None),
        ("GET", "/sessions?cursor=elsewhere", None),
        ("PATCH", "/sessions/{id}", {"maxCalls": "many"}),
        ("PATCH", "/sessions/{id}", {"state": "ajar"}),
        ("PATCH", "/sessions/{id}", b"{"),
    ],
)
async def test_an_unreadable_body_is_400_with_the_admin_token_and_401_without(
    fleet: MemoryFleet, admin: GatewayClient, method: str, path: str, body: object
) -> None:
    session_id = (await fleet.open_session("echo")).session_id
    status, answer = await admin.send(method, path.format(id=session_id), body)
    assert (status, answer["code"], len(answer["error"]) < 1000) == (400, "bad_request", True)
    for token in ("", "not the admin token of this", SessionToken.mint().text):
        async with open_gateway_client(fleet.gateway_url, token) as stranger:
            status, answer = await stranger.send(method, path.format(id=session_id), body)
        assert (status, answer["error"]) == (401, "Unauthorized")


async def test_a_session_opens_and_closes_its_children_and_nothing_else(fleet: MemoryFleet) -> None:
    parent = await fleet.open_session("echo", 4)
    async with open_gateway_client(fleet.gateway_url, parent.token) as door:
        half = {"defaultTarget": "echo", "maxCalls": 2, "reserve": True}
        children = [(await door.post("/sessions", half))[1] for _ in range(2)]
        assert {child["parentId"] for child in children} == {parent.session_id}
        assert (await door.post("/sessions", half))[0] == 429
        for wrong in (b"{", {"defaultTarget": "echo", "maxCalls": 5}):
            assert (await door.post("/sessions", wrong))[0] == 400
        assert (await door.get("/info"))[1]["reserved"] == 4
        async with open_gateway_client(fleet.gateway_url, children[0]["token"]) as child:
            assert (await child.post("/invoke", {"question": "counts"}))[0] == 200
            assert (await child.send("DELETE", f"/sessions/{parent.session_id}/children", None))[0] in {401, 404}
        one = {"defaultTarget": "echo", "maxCalls": 1}
        status, limited = await door.post("/sessions", {**one, "maxCostUsd": 0.5})
        assert status == 201
        async with open_gateway_client(fleet.gateway_url, limited["token"]) as child:
            status, answer = await child.post("/sessions", {**one, "maxCostUsd": 0.6})
            assert (status, answer["error"][:10]) == (400, "maxCostUsd")
        for method in ("GET", "PATCH", "DELETE"):
            assert (await door.send(method, f"/sessions/{children[0]['sessionId']}", {"maxCalls": 1}))[0] == 401
        assert (await door.get("/sessions"))[0] == 401
    async with open_http_transport(fleet.gateway_url, parent.token) as transport:
        client = Client(transport)
        info = await client.close_children()
        assert (info.reserved, info.call_count, info.state) == (0, 1, SessionState.OPEN)
        for child in children:
            async with open_http_transport(fleet.gateway_url, child["token"]) as of_child:
                with pytest.raises(Unauthorized):
                    await Client(of_child).get_info()
        assert (await client.close_session()).state is SessionState.CLOSED

"""Sessions over HTTP: opened, listed, amended and closed with the admin token, and by nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quintain.client.client import Client
from quintain.client.http_transport import open_http_transport
from quintain.contracts.credentials import SessionToken
from quintain.contracts.session import OpenSession, SessionState
from quintain.errors import BudgetExhausted, Unauthorized
from quintain_metadata.ledger.sessions import PAGE_SIZE
from support.gateway_client import GatewayClient, open_gateway_client
from support.memory_fleet import ADMIN_TOKEN, MemoryFleet, memory_fleet

CONFIG = "targets: {echo: {provider: mock}}\n"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[MemoryFleet]:
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        yield fleet


@pytest.fixture
async def admin(fleet: MemoryFleet) -> AsyncIterator[GatewayClient]:
    async with open_gateway_client(fleet.gateway_url, ADMIN_TOKEN) as admin:
        yield admin


async def test_the_sessions_come_a_page_at_a_time(admin: GatewayClient) -> None:
    ids = [(await admin.post("/sessions", {"defaultTarget": "echo"}))[1]["sessionId"] for _ in range(PAGE_SIZE + 3)]
    await admin.send("DELETE", f"/sessions/{ids[0]}")
    listed: list[str] = []
    cursor, pages = "", 0
    while cursor is not None:
        status, page = await admin.get(f"/sessions?state=open&cursor={cursor}")
        assert status == 200
        listed += [one["sessionId"] for one in page["sessions"]]
        cursor, pages = page.get("cursor"), pages + 1
    assert (pages, len(listed), set(listed)) == (2, PAGE_SIZE + 2, set(ids[1:]))
    assert [one["sessionId"] for one in (await admin.get("/sessions?state=closed"))[1]["sessions"]] == ids[:1]


@pytest.mark.parametrize(
    ("method", "path", "body", "named"),
    [
        ("POST", "/sessions", {"targets": ["echo"], "maxcalls": 5}, ["'targets'", "'allowedTargets'", "'maxCalls'"]),
        ("POST", "/sessions", {"defaultTarget": "echo", "expiresIn": 5}, ["'expiresIn'", "'expiresInSeconds'"]),
        ("POST", "/sessions", {"defaultTarget": "echo", "x" * 5000: 1}, ["xxxxx", "maxCalls"]),
        ("PATCH", "/sessions/{id}", {"max_call": 5}, ["'max_call'", "'maxCalls'"]),
        ("GET", "/sessions?stat=open", None, ["'stat'", "'state'"]),
    ],
)
async def test_an_unknown_key_is_refused_with_the_nearest_known_one(
    fleet: MemoryFleet, admin: GatewayClient, method: str, path: str, body: object, named: list[str]
) -> None:
    session_id = (await fleet.open_session("echo")).session_id
    status, answer = await admin.send(method, path.format(id=session_id), body)
    assert (status, answer["code"]) == (400, "bad_request")
    assert all(name in answer["error"] for name in named), answer["error"]
    assert len(answer["error"]) < 1000
    assert len((await admin.get("/sessions"))[1]["sessions"]) == 1


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
        ("POST", "/sessions", {}),
        ("POST", "/sessions", {"defaultTarget": "two words"}),
        ("POST", "/sessions", {"defaultTarget": "echo", "maxCalls": -1}),
        ("POST", "/sessions", {"defaultTarget": "echo", "maxCalls": 10**30}),
        *(
            ("POST", "/sessions", b'{"defaultTarget": "echo", "maxCostUsd": %b}' % amount)
            for amount in (b"0", b"-1", b"NaN", b"1e400", b"1000001", b'"25$"', b'"25"', b"true")
        ),
        ("PATCH", "/sessions/{id}", b'{"maxCostUsd": 0}'),
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
    assert (status, answer["code"]) == (400, "bad_request")
    for token in ("", "not the admin token of this", SessionToken.mint().text):
        async with open_gateway_client(fleet.gateway_url, token) as stranger:
            status, answer = await stranger.send(method, path.format(id=session_id), body)
        assert (status, answer["error"]) == (401, "Unauthorized")


async def test_a_child_session_reserves_its_calls_and_closes_itself_over_http(fleet: MemoryFleet) -> None:
    parent = await fleet.open_session("echo", 3)
    async with open_http_transport(fleet.gateway_url, parent.token) as transport:
        client = Client(transport)
        child = await client.open_child(OpenSession(default_target="echo", max_calls=2, reserve=True))
        with pytest.raises(BudgetExhausted):
            await client.open_child(OpenSession(default_target="echo", max_calls=2, reserve=2))
        assert (await client.get_info()).reserved == 2
        async with open_http_transport(fleet.gateway_url, child.token) as child_transport:
            assert (await Client(child_transport).close_session()).state is SessionState.CLOSED
        info = await client.get_info()
        assert (info.reserved, info.call_count, info.state) == (0, 0, SessionState.OPEN)


async def test_a_session_closes_its_children_and_stays_open_itself(fleet: MemoryFleet) -> None:
    parent = await fleet.open_session("echo", 4)
    async with open_http_transport(fleet.gateway_url, parent.token) as transport:
        client = Client(transport)
        children = [
            await client.open_child(OpenSession(default_target="echo", max_calls=2, reserve=True)) for _ in range(2)
        ]
        async with open_http_transport(fleet.gateway_url, children[0].token) as child_transport:
            child = Client(child_transport)
            await child.invoke("counts")
            await child.open_child(OpenSession(default_target="echo", max_calls=1, reserve=True))
        info = await client.close_children()
        assert (info.reserved, info.call_count, info.state) == (0, 1, SessionState.OPEN)
        assert (await client.close_children()).call_count == 1
        async with open_http_transport(fleet.gateway_url, children[1].token) as child_transport:
            with pytest.raises(Unauthorized):
                await Client(child_transport).get_info()
    async with open_gateway_client(fleet.gateway_url, children[0].token) as stranger:
        assert (await stranger.send("DELETE", f"/sessions/{parent.session_id}/children", None))[0] in {401, 404}


async def test_a_sessions_own_token_opens_its_children_and_nothing_else(fleet: MemoryFleet) -> None:
    parent = await fleet.open_session("echo", 3)
    async with open_gateway_client(fleet.gateway_url, parent.token) as door:
        status, child = await door.post("/sessions", {"defaultTarget": "echo", "maxCalls": 2})
        assert (status, child["parentId"]) == (201, parent.session_id)
        assert (await door.post("/sessions", {"defaultTarget": "echo", "maxCalls": 4}))[0] == 400
        status, limited = await door.post("/sessions", {"defaultTarget": "echo", "maxCalls": 2, "maxCostUsd": 0.5})
        assert status == 201
        async with open_gateway_client(fleet.gateway_url, limited["token"]) as child_door:
            above = {"defaultTarget": "echo", "maxCalls": 1, "maxCostUsd": 0.6}
            status, answer = await child_door.post("/sessions", above)
            assert (status, answer["error"][:10]) == (400, "maxCostUsd")
        assert (await door.post("/sessions", b"{"))[0] == 400
        path = f"/sessions/{child['sessionId']}"
        for method in ("GET", "PATCH", "DELETE"):
            assert (await door.send(method, path, {"maxCalls": 1}))[0] == 401
        assert (await door.get("/sessions"))[0] == 401

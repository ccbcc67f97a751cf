"""The Fleet page over HTTP: for the holder of the admin token, and what it shows of a fleet."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from quintain.contracts.fleet_figures import FleetFigures, TargetCondition, TargetFigures
from quintain_gateway.fleet_page import TARGETS_PER_PAGE, FleetFilter, render_fleet
from support.memory_fleet import ADMIN_TOKEN, MemoryFleet, memory_fleet

CONFIG = "targets: {echo: {provider: mock}, lame: {provider: mock, fail_rate: 1, max_tries: 1}}\n"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[MemoryFleet]:
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        yield fleet


@contextlib.asynccontextmanager
async def browser(fleet: MemoryFleet) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=fleet.gateway_url, timeout=30) as client:
        yield client


async def enter(client: httpx2.AsyncClient, token: str = ADMIN_TOKEN, **headers: str) -> httpx2.Response:
    return await client.post("/fleet/enter", json={"token": token}, headers=headers)


async def test_only_the_admin_token_opens_the_page(fleet: MemoryFleet) -> None:
    session = await fleet.open_session("echo", 5)
    async with browser(fleet) as client:
        for path in ("/fleet", "/fleet/figures"):
            answer = await client.get(path)
            assert answer.status_code == 401, path
            assert "echo" not in answer.text
        for token in ("", "wrong", session.token):
            assert (await enter(client, token)).status_code == 401
            header = {"Authorization": f"Bearer {token or 'x'}"}
            assert (await client.get("/fleet/figures", headers=header)).status_code == 401
        assert (await enter(client, Origin="http://page.example")).status_code == 401
        assert (await client.get("/fleet")).status_code == 401
        entered = await enter(client, Origin=fleet.gateway_url)
        assert entered.status_code == 200
        assert "HttpOnly" in entered.headers["set-cookie"]
        assert "SameSite=strict" in entered.headers["set-cookie"]
        page = await client.get("/fleet")
        assert page.status_code == 200
        assert 'data-target="echo"' in page.text
        assert ADMIN_TOKEN not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        # It is loaded again each second.
        assert 'data-reload="1000"' in page.text
        # The cookie is for looking: it opens nothing else.
        assert (await client.get("/sessions")).status_code == 401


async def test_the_figures_follow_the_fleet(fleet: MemoryFleet) -> None:
    session = await fleet.open_session("echo", 1)
    caller, admin = ({"Authorization": f"Bearer {token}"} for token in (session.token, ADMIN_TOKEN))
    async with browser(fleet) as client:

        async def is_spent() -> bool:
            figures = FleetFigures.from_wire((await client.get("/fleet/figures", headers=admin)).content)
            return any(budget.is_spent for budget in figures.budgets)

        assert not await is_spent()
        for status in (200, 429):
            assert (await client.post("/invoke", json={"question": "?"}, headers=caller)).status_code == status
        async with asyncio.timeout(30):
            while not await is_spent():
                await asyncio.sleep(0.05)


def test_a_thousand_targets_have_pages_also_under_a_filter() -> None:
    names = [f"target-{number:04}" for number in range(1_000)]
    known = {"provider": "mock", "condition": TargetCondition.READY, "running": 0, "limit": 4}
    targets = [TargetFigures(name=name, **known) for name in names]
    figures = FleetFigures(targets=targets, workers=[], budgets=[], services=[])
    shown = []
    for page in range(1, 1_000 // TARGETS_PER_PAGE + 1):
        html = render_fleet(figures, FleetFilter(page=page))
        shown += re.findall(r'data-target="([^"]+)"', html)
        assert ('rel="prev"' in html, 'rel="next"' in html) == (page > 1, page < 1_000 // TARGETS_PER_PAGE)
    assert shown == names
    last = render_fleet(figures, FleetFilter(page=99_999))
    assert re.findall(r'data-target="([^"]+)"', last) == names[-TARGETS_PER_PAGE:]
    some = render_fleet(figures, FleetFilter(text="target-0", page=2))
    assert len(re.findall("data-target=", some)) == TARGETS_PER_PAGE
    assert 'href="/fleet?q=target-0&amp;page=3"' in some
    one = render_fleet(figures, FleetFilter(text="\ud800<&"))
    assert "rel=" not in one.partition("<main")[2]
